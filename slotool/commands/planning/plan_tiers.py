"""Tolerance tiers of ``slotool.plan`` with rules, in arguments and in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from slotool.commands.arguments import tolerance_shares
from slotool.errors import ArgumentError, InputError

if TYPE_CHECKING:
    from slotool.commands.inputs import FilePath
    from slotool.planning.tiers import TierMix
    from slotool.rules import RuleSet

# One tolerance of all requests, or the share of the requests by tolerance.
Tolerance = float | Mapping[float, float] | None
_OF = {"relative": " of its error", "absolute": " of error", "quantile": " of the requests"}

_CANCELS = {
    True: "of versions that are asked at once the second is cancelled where the first is sure enough",
    False: "of versions that are asked at once the second runs to its end, as this model cannot be cancelled",
    None: "of versions that are asked at once the second counts as running to its end; with the artifact the plan says "
    "whether it is cancelled",
}


def mixes(rules: RuleSet, tolerance: Tolerance, objective: str | None) -> list[TierMix]:
    """Return the mixes of tiers that requests may have. Raises ``ArgumentError`` for shares that do not add up to 1,
    ``InputError`` for an objective without tiers."""
    from slotool.planning.tiers import mixes_of

    shares = tolerance_shares(tolerance)
    for each in shares:
        _require_meant(rules, each)
    return mixes_of(rules, shares or None, objective)


def _require_meant(rules: RuleSet, tolerance: float) -> None:
    try:
        rules.require_meant(tolerance)
    except InputError as error:
        raise ArgumentError("tolerance", str(error)) from None


def require_alike(
    outcomes: Any,
    rules: FilePath | RuleSet | None,
    tolerance: Tolerance,
    objective: str | None,
) -> None:
    """Raises ``ArgumentError`` for arguments that do not go together."""
    if rules is None:
        for name, given in (("tolerance", tolerance), ("objective", objective)):
            if given is not None:
                raise ArgumentError(name, "it says which tiers of rules requests ask for: give rules too")
    elif outcomes is None:
        raise ArgumentError("outcomes", "with rules this table is needed: requests are simulated as its examples")


def tier_lines(row: Mapping[str, Any], facts: Mapping[str, Any]) -> list[str]:
    """Describe the tiers that a fleet serves, a line each, and the load of the versions."""
    best_version = facts["best_version"]
    lines = [_promised(tier, best_version) for tier in row["tiers"]]
    calls = row["version_calls"]
    each = ", ".join(f"{facts['rate_per_s'] * count:,.1f} of {version}" for version, count in calls.items())
    lines.append(f"calls per second: {each}; {sum(calls.values()):.3f} calls a request")
    if row["other_tier"]:
        lines.append(
            f"{row['other_tier']:.2%} of the requests get a stricter tier or {best_version}, as their own could be late"
        )
    if any(tier["at_once"] for tier in row["tiers"]):
        lines.append(_CANCELS[facts["cancels"]])
    return lines


def _promised(tier: Mapping[str, Any], best_version: str) -> str:
    share = "" if tier["share"] == 1 else f" ({tier['share']:.0%} of the requests)"
    own = tier["tier"]
    named = f"tier {tier['tolerance']:g}{share}"
    if own is None:
        named = f"tolerance {tier['tolerance']:g}{share}, stricter than every tier"
    elif own != tier["tolerance"]:
        named = f"tolerance {tier['tolerance']:g}{share}, answered by tier {own:g}"
    said = f"{named}: {tier['routing']}; "
    if tier["bound"] == 0 and not tier["note"]:
        return f"{said}answers as {best_version}"
    if not tier["certified"]:
        return f"{said}{tier['note'] or 'no bound is proven'}"
    return f"{said}at most {_bound(tier)} worse than {tier['above']}, at confidence {tier['confidence']:g}"


def _bound(tier: Mapping[str, Any]) -> str:
    """``2 % of its error``, ``2 points of error``: as ``gen-rules`` shows them."""
    from slotool.rules.evidence.units import tolerance_unit

    kind = str(tier["tolerance_kind"])
    return f"{tolerance_unit(kind, tier['max_error']).amount(tier['bound'])}{_OF.get(kind, '')}"


def strictest_of(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the first fleet of each tolerance."""
    found: dict[float, Mapping[str, Any]] = {}
    for row in rows:
        found.setdefault(row["tiers"][0]["tolerance"], row)
    return list(found.values())
