"""Policies that the points of rules name."""

from __future__ import annotations

from functools import lru_cache

from slotool import strict_json
from slotool.errors import InputError
from slotool.rules.policies.cascades import Cascade
from slotool.rules.policies.routing import OSFA, PAIRS, Conc, RoutingPolicy, Seq
from slotool.tables import OperatingPoint


@lru_cache(maxsize=1_024)
def from_point(point: OperatingPoint) -> RoutingPolicy:
    """Return the policy that a rule's point names, cached for servers. Raises ``InputError`` for other points."""
    kind, version = point.get("policy"), point.get("version")
    if kind == OSFA.kind and version is not None:
        return OSFA(str(version))
    first, second, threshold = (point.get(name) for name in ("first", "second", "threshold"))
    if kind in PAIRS and first is not None and second is not None and isinstance(threshold, int | float):
        return PAIRS[str(kind)](str(first), str(second), float(threshold))
    if (tree := point.get("tree")) is not None:
        return Cascade.from_document(strict_json.decode(str(tree)))
    if point.get("cascade") is not None:
        raise InputError(f"{point} names a cascade; what it does stands under tree in the rules it comes from")
    raise InputError(f"{point} is no routing policy; expected policy=osfa, seq or conc and its settings, or a cascade")


def in_turn(point: OperatingPoint) -> OperatingPoint | None:
    """Return the Seq point with the answers of a Conc point, which come later; None for other points."""
    if point.get("policy") != Conc.kind:
        return None
    pair = from_point(point)
    assert isinstance(pair, Conc)
    return Seq(pair.first, pair.second, pair.threshold).point
