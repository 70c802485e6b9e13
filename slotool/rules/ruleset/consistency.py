"""Whether the parts of a rules file fit each other: a file that was edited must not promise what was never proven."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Protocol

from slotool.errors import InputError
from slotool.rules.evidence.losses import TOLERANCE_KINDS
from slotool.rules.policies.points import from_point
from slotool.rules.policies.routing import OSFA
from slotool.tables import OperatingPoint

# Bounds and tolerances were written in decimal.
ROUNDING = 1e-9
_REMEDY = "undo the change, or make the rules again with gen-rules"


class Tier(Protocol):
    """What is looked at of a ``Rule``."""

    @property
    def id(self) -> str: ...
    @property
    def objective(self) -> str: ...
    @property
    def tolerance(self) -> float: ...
    @property
    def point(self) -> OperatingPoint: ...
    @property
    def bound(self) -> float | None: ...
    @property
    def certified(self) -> bool: ...
    @property
    def saves_at_least(self) -> float: ...


class Tiers(Protocol):
    """What is looked at of a ``RuleSet``, which imports this module."""

    @property
    def tolerance_kind(self) -> str: ...
    @property
    def confidence(self) -> float: ...
    @property
    def best_version(self) -> str: ...
    @property
    def best_error(self) -> float: ...
    @property
    def reference(self) -> str: ...
    @property
    def config(self) -> Mapping[str, Any]: ...
    @property
    def largest_loss(self) -> float: ...
    @property
    def rules(self) -> Sequence[Tier]: ...


def require_consistent(rules: Tiers, entries: Sequence[Mapping[str, Any]], source: object) -> None:
    """Raises ``InputError`` naming the first thing in the file ``source`` that cannot be. ``entries``: its rules as the
    file states them, which repeat for readers what their points say."""
    for problem in (*_of_settings(rules), *_of_ids(rules), *_of_rules(rules), *_of_entries(rules, entries)):
        raise InputError(f"{source}: {problem}; {_REMEDY}")


def _of_ids(rules: Tiers) -> Iterator[str]:
    ids = Counter(rule.id for rule in rules.rules)
    for name, count in ids.items():
        if count > 1:
            yield f"{count} rules have the id {name[:40]!r}, by which requests are counted and labels judged"


def _of_settings(rules: Tiers) -> Iterator[str]:
    config = rules.config
    if rules.tolerance_kind not in TOLERANCE_KINDS:
        yield f"tolerance_kind is {rules.tolerance_kind[:40]!r}, expected {', '.join(TOLERANCE_KINDS)}"
    if rules.reference not in ("any", "named", "observed"):
        yield f"reference is {rules.reference[:40]!r}, expected any, named or observed"
    if not 0.5 < rules.confidence < 1:
        yield f"confidence is {rules.confidence:g}, expected a number between 0.5 and 1"
    if config and "max_error" not in config:
        yield "max_error is missing from config: what no error exceeds"
        return
    max_error = config.get("max_error", 1.0)
    if not _is_number(max_error) or not 0 < max_error < math.inf:
        yield f"max_error is {max_error!r}, expected a number above 0"
        return
    if not 0 <= rules.best_error <= max_error:
        yield f"best_error is {rules.best_error:g}, expected a number from 0 to max_error, {max_error:g}"
    errors = config.get("version_errors", {rules.best_version: rules.best_error})
    if not isinstance(errors, Mapping) or not all(map(_is_number, errors.values())) or not errors:
        yield "version_errors of config is another thing than numbers by version"
    elif rules.best_version not in errors or (
        rules.reference != "named" and errors[rules.best_version] > min(errors.values())
    ):
        best = min(errors, key=lambda version: errors[version])
        yield f"best_version is {rules.best_version!r}, but by version_errors of config it is {best!r}"
    limit = config.get("loss_limit", 0.0)
    if not _is_number(limit) or not 0 <= limit < max_error:
        yield f"loss_limit is {limit!r}, expected a number from 0 to below max_error, {max_error:g}"
    groups = config.get("groups", {})
    if not isinstance(groups, Mapping) or ("group" in config) != bool(groups):
        yield "group and groups of config do not fit each other"
    if not isinstance(config.get("group", ""), str) or not isinstance(config.get("small", []), list):
        yield "group or small of config is of another type than gen-rules writes"


def _of_rules(rules: Tiers) -> Iterator[str]:
    best = OSFA(rules.best_version).point
    certifying = any(rule.certified for rule in rules.rules)
    seen: set[tuple[str, float]] = set()
    for at, rule in enumerate(rules.rules, 1):
        where, largest = f"rule {at} ({rule.id[:40]})", math.inf
        if rules.tolerance_kind != "relative":
            largest = rules.largest_loss
        if rule.tolerance > largest + ROUNDING:
            yield f"{where}: tolerance {rule.tolerance:g} is above the greatest loss there can be, {largest:g}"
        if (rule.objective, rule.tolerance) in seen:
            yield f"{where}: tolerance {rule.tolerance:g} for {rule.objective} is there twice"
        seen.add((rule.objective, rule.tolerance))
        if rule.certified and (rule.bound is None or rule.bound > rule.tolerance + ROUNDING):
            above = rule.bound is not None and f"bound {rule.bound:g} is above its tolerance {rule.tolerance:g}"
            yield f"{where}: {above or 'it has no bound'}, yet it is called certified"
        if rule.certified and rule.point == best and rules.reference != "any":
            yield f"{where}: it serves best_version {rules.best_version!r} alone, yet has a certificate"
        if certifying and not rule.certified and rule.point != best:
            yield (
                f"{where}: it has no certificate, so that best_version should serve alone; best_version is "
                f"{rules.best_version!r}, the rule serves {from_point(rule.point).words[:60]}"
            )
        if not 0 <= rule.saves_at_least <= 1:
            yield f"{where}: saves_at_least is {rule.saves_at_least:g}, expected a share from 0 to 1"


def _of_entries(rules: Tiers, entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What is written for readers says the same as the point, by which requests are answered."""
    for at, (rule, entry) in enumerate(zip(rules.rules, entries, strict=True), 1):
        policy = from_point(rule.point)
        said = {"policy": policy.kind, "versions": list(policy.versions), "threshold": rule.point.get("threshold")}
        for name, own in said.items():
            if name in entry and entry[name] != own:
                yield (
                    f"rule {at} ({rule.id[:40]}): {name} is {str(entry[name])[:60]}, but its point, by which requests "
                    f"are answered, says {str(own)[:60]}"
                )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
