"""Routing rules as readable JSON: which ensemble of service versions keeps which tolerance, by what evidence.

A file that was edited must not promise what was never proven: its parts are compared with each other when it is read.
"""

from __future__ import annotations

import math
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from slotool import strict_json
from slotool.artifacts.document import load_document, save_document
from slotool.errors import InputError
from slotool.rules.evidence.losses import (
    TOLERANCE_KINDS,
    UNITLESS,
    Comparison,
    LossUnit,
    comparison_of,
    degradation,
    error_unit,
    excess_of,
    losses,
    tolerance_unit,
)
from slotool.rules.policies.cascades import Cascade
from slotool.rules.policies.points import from_point
from slotool.rules.policies.routing import OSFA
from slotool.tables import OperatingPoint, OutcomeTable

RULES_SCHEMA = "slotool/rules"
RULES_VERSION = 4
# Version that bounds are above: the truly best one, a named one, or the one with the fewest observed errors.
ANY, NAMED, OBSERVED = "any", "named", "observed"
REFERENCES = (ANY, NAMED, OBSERVED)
OBJECTIVES = ("response-time", "cost")


@dataclass(frozen=True)
class Rule:
    """Tier of one objective.

    ``point`` is the ensemble: ``policy=osfa,version=V``, or ``policy=seq|conc,first=V,second=W,threshold=T`` (the
    ``second`` version is consulted, or in Conc waited for, only when the ``first`` answers with confidence < T; of two
    answers the more confident is returned), or ``cascade=…,id=…,tree=…`` of ``Cascade.point``, whose label is ``point``
    and whose ``Cascade.document`` is ``tree`` in the file. ``bound``: upper limit of the error degradation with the
    rule set's confidence, None where there is none; ``degradation``: the mean observed on the table, above
    ``best_version``. ``certified``: ``point`` was proven to keep the tolerance. It is False where ``best_version``
    serves alone and tolerances are relative to it (degradation 0 by definition), where it serves and nothing is
    promised (``promised``), and for methods without a proof; ``note`` then says so. ``why``: why not the next cheaper
    ensemble. ``saves_at_least``: proven saving on the objective, as a share of the best version's figure; all tiers'
    hold at once with the rule set's confidence. ``groups``: observed degradation in each group (of the column
    ``config["group"]``), where tolerances hold for each.
    """

    id: str
    objective: str
    tolerance: float
    point: OperatingPoint
    degradation: float
    bound: float | None
    response_time_s: float
    cost: float
    certified: bool = True
    note: str = ""
    why: str = ""
    saves_at_least: float = 0.0
    groups: Mapping[str, float] = field(default_factory=dict)

    @property
    def promised(self) -> bool:
        """True if its bound is within its tolerance."""
        return self.bound is not None and self.bound <= self.tolerance + ROUNDING


@dataclass(frozen=True)
class RuleSet:
    """All tiers of a service.

    ``best_version`` serves where nothing cheaper may, and observed degradations are relative to it; ``reference``: what
    bounds are relative to, of ``REFERENCES``. ``models``: by version the identity of its model, such as a checksum,
    where the table states it. ``config["loss_limit"]``: allowed excess of an error, for tolerances of kind
    ``quantile``.
    """

    method: str
    confidence: float
    tolerance_kind: str
    best_version: str
    best_error: float
    sample_size: int
    table_sha256: str
    rules: tuple[Rule, ...]
    config: Mapping[str, Any] = field(default_factory=dict)
    reference: str = OBSERVED
    models: Mapping[str, str] = field(default_factory=dict)

    def changed(self, models: Mapping[str, str]) -> list[str]:
        """Return versions whose identity in ``models`` differs from the model that the rules were made of."""
        return [name for name, identity in self.models.items() if models.get(name, identity) != identity]

    def changed_words(self, models: Mapping[str, str], artifact: object = "ARTIFACT") -> str:
        """Return a sentence on ``changed`` with the commands that certify again; empty where nothing is."""
        if not (changed := self.changed(models)):
            return ""
        return (
            f"certified with another {' and '.join(changed)} than the one here, of which they promise nothing; certify "
            f"again: slotool evaluate {artifact} -o outcomes.parquet, then {self.certify_again}"
        )

    @property
    def certify_again(self) -> str:
        """Command that makes rules of the same settings from fresh outcomes."""
        tiers = ",".join(f"{tolerance:g}" for tolerance in sorted({rule.tolerance for rule in self.rules}))
        objectives = {rule.objective for rule in self.rules}
        options: dict[str, Any] = {
            "tolerances": tiers,
            "tolerance-kind": self.tolerance_kind,
            "confidence": f"{self.confidence:g}",
            "objective": "".join(objectives) if len(objectives) == 1 else None,
            "group": self.config.get("group"),
            "best": self.best_version if self.reference == NAMED else None,
            "loss-limit": self.config.get("loss_limit") or None,
            "max-error": f"{self.max_error:g}" if self.max_error != 1 else None,
        }
        stated = " ".join(f"--{name} {shlex.quote(str(value))}" for name, value in options.items() if value is not None)
        return f"slotool gen-rules outcomes.parquet -o rules.json {stated}"

    def unchecked(self, models: Mapping[str, str]) -> list[str]:
        """Return versions that tiers rest on and that ``changed`` cannot compare."""
        return sorted({*self.versions, self.best_version} - (models.keys() & self.models.keys()))

    def rule_for(self, tolerance: float, objective: str) -> Rule:
        """Return the tier with the greatest tolerance up to ``tolerance``. Raises ``InputError`` if there is none."""
        tiers = [rule for rule in self.rules if rule.objective == objective]
        if not tiers:
            offered = sorted({rule.objective for rule in self.rules})
            raise InputError(f"no rules for objective {objective!r}; there are rules for {', '.join(offered)}")
        allowed = [rule for rule in tiers if rule.tolerance <= tolerance + 1e-12]
        if not allowed:
            strictest = min(rule.tolerance for rule in tiers)
            raise InputError(f"tolerance {tolerance:g} is stricter than the strictest tier, {strictest:g}")
        return max(allowed, key=lambda rule: rule.tolerance)

    @cached_property
    def widest(self) -> float:
        """Greatest tolerance of a tier."""
        return max(rule.tolerance for rule in self.rules)

    @property
    def are_shares(self) -> bool:
        """True if tolerances are shares, of errors up to 1 or of another error; else they are in the errors' unit."""
        return self.unit is not UNITLESS

    def require_meant(self, tolerance: float) -> None:
        """Raise ``InputError`` for a tolerance from 1, above the widest tier: a percentage in place of a share."""
        if self.are_shares and tolerance >= 1 and tolerance > self.widest:
            raise InputError(
                f"tolerance {tolerance:g}: tolerances are shares, and the widest tier is {self.widest:g}; "
                f"for {tolerance:g} % give {tolerance / 100:g}"
            )

    def strictest_within(self, budget: float) -> Rule | None:
        """Return the strictest tier for the least cost with a mean cost per request up to ``budget``, or None.

        Raises ``InputError`` where no tiers are for the least cost.
        """
        tiers = [rule for rule in self.rules if rule.objective == "cost"]
        if not tiers:
            raise InputError("budgets are of cost, and no tiers are for the least cost")
        affordable = [rule for rule in tiers if rule.cost <= budget]
        return min(affordable, key=lambda rule: rule.tolerance, default=None)

    @property
    def versions(self) -> frozenset[str]:
        """Service versions that some rule may consult."""
        return frozenset(version for rule in self.rules for version in from_point(rule.point).versions)

    @property
    def comparison(self) -> Comparison:
        """Comparison of mean losses with the best version's."""
        return comparison_of(self.tolerance_kind)

    @property
    def max_error(self) -> float:
        """Upper limit of the table's errors."""
        return float(self.config.get("max_error", 1.0))

    @property
    def best_bound(self) -> float | None:
        """``Rule.bound`` of ``best_version`` alone: 0 where tolerances are relative to it."""
        bound = self.config.get("best_bound") if self.reference == ANY else 0.0
        return None if bound is None else float(bound)

    @property
    def largest_loss(self) -> float:
        """Upper limit of ``losses``."""
        return 1.0 if self.tolerance_kind == "quantile" else self.max_error

    def knows_group(self, name: str) -> bool:
        """True if the rules were made for this group, or it is empty."""
        return not name or name in self.config.get("groups", ()) or name in self.config.get("small", ())

    @property
    def unit(self) -> LossUnit:
        """Unit of tolerances, bounds and degradations."""
        return tolerance_unit(self.tolerance_kind, self.max_error)

    @property
    def loss_unit(self) -> LossUnit:
        """Unit of differences of losses: with ``quantile`` shares of requests, else errors."""
        return self.unit if self.tolerance_kind == "quantile" else error_unit(self.max_error)

    @property
    def loss_words(self) -> str:
        """Meaning of tolerances, bounds and degradations in words."""
        best = self.best_words
        if self.tolerance_kind == "relative":
            return f"loss in % of {best}'s error"
        if self.tolerance_kind == "quantile":
            limit = float(self.config.get("loss_limit", 0.0))
            beyond = f" by more than {limit:g}" if limit else ""
            return f"loss in % of requests with an error above {best}'s{beyond}"
        unit = "the table's unit of error" if self.unit is UNITLESS else "points of error (0.01)"
        return f"loss in {unit} above {best}'s"

    @property
    def best_words(self) -> str:
        """Reference of the bounds: the name of a version, or "the best version"."""
        return "the best version" if self.reference == ANY else self.best_version

    def references(self, outcomes: OutcomeTable) -> list[str]:
        """Return versions of ``outcomes`` above which a bound holds if it holds above the best one."""
        others = self.config.get("version_errors", {}) if self.reference == ANY else {}
        return list(dict.fromkeys([self.best_version, *(name for name in others if name in outcomes.versions)]))

    def require_errors(self, outcomes: OutcomeTable) -> None:
        """Raise ``InputError`` for an error above the limit of these rules."""
        errors, greatest = outcomes.matrix("error"), self.max_error
        if (worst := float(errors.max())) > greatest:
            example, version = (int(at) for at in np.argwhere(errors == worst)[0])
            raise InputError(
                f"{outcomes.source}: error {worst:g} of version {outcomes.versions[version]!r} on example "
                f"{outcomes.examples[example]!r} is above {greatest:g}; the rules were made for errors up to that"
            )

    def losses(self, outcomes: OutcomeTable, best: str = "") -> OutcomeTable:
        """Return ``outcomes`` with the losses that tolerances limit. Raises ``InputError`` if they lack ``best``."""
        limit = float(self.config.get("loss_limit", 0.0))
        return losses(outcomes, self.tolerance_kind, limit, best or self.best_version)

    def degradation(self, loss: np.ndarray, best_loss: np.ndarray) -> float:
        """Return the mean degradation from the best version's losses, both float64 [examples], as in tolerances."""
        return float(degradation(loss.mean(), float(best_loss.mean()), self.comparison))

    def excess(self, tolerance: float, loss: np.ndarray, best_loss: np.ndarray) -> tuple[np.ndarray, float]:
        """Return each loss's excess over the tolerance, scaled to at most 1, and the largest possible shortfall."""
        largest = self.largest_loss
        scaled = tolerance / largest if self.comparison == "absolute" else tolerance
        return excess_of(loss / largest, best_loss / largest, scaled, self.comparison), 1.0 + scaled

    def document(self) -> dict[str, Any]:
        rules = [asdict(rule) | _readable(rule.point) for rule in self.rules]
        return {"schema": RULES_SCHEMA, "schema_version": RULES_VERSION, **asdict(self), "rules": rules}

    def save(self, path: str | Path, *, replace: bool = True) -> None:
        """Write the JSON file, atomically. Raises ``AlreadyExistsError`` without ``replace`` where ``path`` exists."""
        save_document(path, self.document(), replace=replace)

    @classmethod
    def load(cls, path: str | Path) -> RuleSet:
        """Read the JSON file. Raises ``InputError`` for another file, schema version, or contradictory parts."""
        remedy = "rules are made of a table of outcomes by slotool gen-rules TABLE -o rules.json"
        document = load_document(path, RULES_SCHEMA, RULES_VERSION, "rule set", from_table=remedy)
        with strict_json.assembling(path, "a rule set"):
            entries = document.get("rules")
            if not isinstance(entries, list) or not entries:
                raise TypeError("rules is not a list of rules")
            read = strict_json.convert({**document, "rules": []}, cls)
            rules = replace(read, rules=tuple(_rule(entry, f"{path}: rule {i}") for i, entry in enumerate(entries, 1)))
            require_consistent(rules, entries, path)
            return rules


def _readable(point: OperatingPoint) -> dict[str, Any]:
    """Return the point and its contents for readers; only ``point`` and a cascade's ``tree`` are read again."""
    policy = from_point(point)
    tree = {"tree": policy.document()} if isinstance(policy, Cascade) else {}
    return {
        "point": point.label,
        "policy": policy.kind,
        "versions": list(policy.versions),
        "threshold": point.get("threshold"),
        **tree,
    }


def _rule(entry: Any, where: str) -> Rule:
    with strict_json.assembling(where, "a rule"):
        point = _point(OperatingPoint.parse(strict_json.convert(entry["point"], str)), entry)
        # Other statements about its point are for readers.
        rule = strict_json.convert({**entry, "point": {}}, Rule)
        if rule.objective not in OBJECTIVES or min(rule.tolerance, rule.response_time_s, rule.cost) < 0:
            raise ValueError(f"an objective other than {' and '.join(OBJECTIVES)}, or a negative figure")
        try:
            from_point(point)
        except InputError as error:
            raise InputError(f"{where}: {error}") from None
        return replace(rule, point=point)


def _point(written: OperatingPoint, entry: Mapping[str, Any]) -> OperatingPoint:
    """Return the point of a file's text, a cascade's from its tree."""
    if written.get("cascade") is None:
        return written
    if "tree" not in entry:
        raise ValueError("its point names a cascade, and tree, which says what that does, is missing")
    try:
        point = Cascade.from_document(entry["tree"]).point
    except InputError as error:
        raise ValueError(str(error)) from error
    if point.get("id") != str(written.get("id")):
        raise ValueError(f"its tree is cascade {point.get('id')}, its point names {written.get('id')}")
    return point


# Bounds and tolerances are written in decimal.
ROUNDING = 1e-9
_REMEDY = "undo the change, or make the rules again with gen-rules"


def require_consistent(rules: RuleSet, entries: Sequence[Mapping[str, Any]], source: object) -> None:
    """Raise ``InputError`` naming the first contradiction in ``source``; ``entries`` are its rules as in the file."""
    for problem in (*_of_settings(rules), *_of_ids(rules), *_of_rules(rules), *_of_entries(rules, entries)):
        raise InputError(f"{source}: {problem}; {_REMEDY}")


def _of_ids(rules: RuleSet) -> Iterator[str]:
    ids = Counter(rule.id for rule in rules.rules)
    for name, count in ids.items():
        if count > 1:
            yield f"{count} rules have the id {name[:40]!r}, by which requests are counted and labels judged"


def _of_settings(rules: RuleSet) -> Iterator[str]:
    config = rules.config
    if rules.tolerance_kind not in TOLERANCE_KINDS:
        yield f"tolerance_kind is {rules.tolerance_kind[:40]!r}, expected {', '.join(TOLERANCE_KINDS)}"
    if rules.reference not in REFERENCES:
        yield f"reference is {rules.reference[:40]!r}, expected {', '.join(REFERENCES)}"
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
        rules.reference != NAMED and errors[rules.best_version] > min(errors.values())
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


def _of_rules(rules: RuleSet) -> Iterator[str]:
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
        if rule.certified and rule.point == best and rules.reference != ANY:
            yield f"{where}: it serves best_version {rules.best_version!r} alone, yet has a certificate"
        if certifying and not rule.certified and rule.point != best:
            yield (
                f"{where}: it has no certificate, so that best_version should serve alone; best_version is "
                f"{rules.best_version!r}, the rule serves {from_point(rule.point).words[:60]}"
            )
        if not 0 <= rule.saves_at_least <= 1:
            yield f"{where}: saves_at_least is {rule.saves_at_least:g}, expected a share from 0 to 1"


def _of_entries(rules: RuleSet, entries: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield contradictions between a point, which answers requests, and its repetition for readers."""
    for at, (rule, entry) in enumerate(zip(rules.rules, entries, strict=True), 1):
        repeated = _readable(rule.point)
        for name in ("policy", "versions", "threshold"):
            if name in entry and entry[name] != (value := repeated[name]):
                yield (
                    f"rule {at} ({rule.id[:40]}): {name} is {str(entry[name])[:60]}, but its point, by which requests "
                    f"are answered, says {str(value)[:60]}"
                )


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
