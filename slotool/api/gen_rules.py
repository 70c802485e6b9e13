"""``slotool.gen_rules``: the cheapest ensemble of versions that keeps each tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slotool.api.arguments import typed
from slotool.api.display import Part, Table, duration, number, table
from slotool.api.inputs import FilePath, as_list, loaded
from slotool.api.outputs import writes
from slotool.api.progress import Reporting, reporter_of
from slotool.api.result import Result
from slotool.errors import ArgumentError, InputError

if TYPE_CHECKING:
    from slotool.rules import RuleSet
    from slotool.rules.analysis import VersionFacts
    from slotool.rules.units import LossUnit
    from slotool.tables import OutcomeTable

TOLERANCES = tuple(round(0.01 * step, 2) for step in range(11))
_UNITS = {"cost": "", "response-time": "_s"}  # of names in the rules' settings
POLICIES = ("osfa", "seq", "conc", "cascade")
Price = float | Mapping[str, float] | None


@writes("out", folders=("plots",))
def gen_rules(
    outcomes: FilePath | OutcomeTable,
    out: FilePath | None = None,
    *,
    tolerances: Sequence[float] = TOLERANCES,
    tolerance_kind: Literal["relative", "absolute", "quantile"] = "relative",
    loss_limit: float = 0.0,
    method: str = "certified",
    confidence: float = 0.999,
    max_error: float = 1.0,
    objective: str = "both",
    policies: str | Sequence[str] = POLICIES,
    thresholds: int = 50,
    group: str | None = None,
    price: Price = None,
    prices: FilePath | Mapping[str, float] | None = None,
    budgets: Sequence[float] = (),
    explain: bool = False,
    plots: FilePath | None = None,
    seed: int = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> GeneratedRules:
    """Find the cheapest ensemble of versions that keeps each tolerance.

    Args:
        outcomes: Outcome table, or its file (Parquet, or CSV example,version,error,confidence,latency_s[,cost]).
        out: File to write the rules into.
        tolerances: Tiers to offer: shares of the best version's error, points of error, or shares of requests.
        tolerance_kind: What the tolerances are: ``"relative"``, ``"absolute"``, or ``"quantile"``: shares of requests
            whose error may lie above the best version's by more than ``loss_limit``.
        loss_limit: Of ``"quantile"``: points of error.
        method: ``"certified"`` (proven), ``"bootstrap"`` (the paper's) or ``"naive"`` (best single version).
        confidence: Probability that no tier exceeds its tolerance.
        max_error: Upper limit of an error in the table.
        objective: ``"response-time"``, ``"cost"`` or ``"both"``.
        policies: Ensembles to choose from, of ``"osfa"``, ``"seq"``, ``"conc"`` and ``"cascade"``.
        thresholds: Thresholds to try per pair of versions.
        group: Column of the table; each tolerance then holds for each of its values at once.
        price: Price per second, one for all versions or by version; None: the table's, else machine time.
        prices: Price of a call by version, or a price list as of ``import_outcomes``; in place of ``price``.
        budgets: Mean costs of a request; the strictest tier within each is named.
        explain: Show for each tier why no cheaper ensemble serves it.
        plots: Folder for plots (PNG) of versions and tiers.
        seed: Same seed, same rules.
        force: Replace ``out`` if it exists.
        progress: Who hears of warnings; see ``slotool.api.progress``.

    Returns:
        ``rules``, the ``RuleSet``; ``frame()`` has a row per version.

    Raises:
        TableError: The outcome table cannot be used.
        InputError: A setting cannot be, such as a confidence of 1.
        ArgumentError: ``budgets`` are not positive, or the objective is not the cost.
        AlreadyExistsError: ``out`` exists.
        MissingPackageError: ``plots`` is given and matplotlib is not installed.
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.rules import OBJECTIVES, generate_rules
    from slotool.rules.generator import constant_versions
    from slotool.rules.groups import OTHERS
    from slotool.tables import OutcomeTable

    if out is not None:
        refuse_existing(Path(out), force)
    if objective not in (*OBJECTIVES, "both"):
        raise InputError(f"no objective {objective!r}; there are {', '.join(OBJECTIVES)} and both")
    if budgets and objective == "response-time":
        raise ArgumentError("budgets", "are of cost; the objective is the response time")
    if not all(budget > 0 for budget in budgets):
        raise ArgumentError("budgets", "must be above 0")
    found = priced(loaded(OutcomeTable, outcomes), price, prices)
    make = partial(
        generate_rules,
        found,
        tolerances,
        OBJECTIVES if objective == "both" else (objective,),
        confidence,
        method,
        tolerance_kind,
        thresholds=thresholds,
        max_error=max_error,
        seed=seed,
        loss_limit=loss_limit,
    )
    rules = make(policies=as_list(policies), group=group)
    if out is not None:
        rules.save(Path(out), replace=force)
    reporter = reporter_of(progress)
    for version in constant_versions(found):
        reporter.warn(f"{version} has one constant confidence, so it never answers first")
    if group is not None and list(rules.config["groups"]) == [OTHERS]:
        reporter.warn(_no_groups(found, group))
    drawn: list[Path] = []
    if plots is not None:
        name = "rules" if out is None else Path(out).stem
        drawn = _draw(found, rules, make(policies=["osfa"]), Path(plots), name)
    written = None if out is None else Path(out)
    return GeneratedRules(rules, found, written, tuple(budgets), explain=explain, plots=tuple(drawn))


@typed
def estimate_rules(
    outcomes: FilePath | OutcomeTable,
    *,
    tolerances: Sequence[float] = TOLERANCES,
    method: str = "certified",
    policies: str | Sequence[str] = POLICIES,
    thresholds: int = 50,
    max_error: float = 1.0,
) -> RulesEstimate:
    """How many ensembles ``gen_rules`` would compare, and about how long it would take.

    Args:
        outcomes: Outcome table or its file.
        tolerances: As of ``gen_rules``.
        method: As of ``gen_rules``.
        policies: As of ``gen_rules``.
        thresholds: As of ``gen_rules``.
        max_error: As of ``gen_rules``.

    Returns:
        The counts, and ``predicted_s``, seconds.

    Raises:
        TableError: The outcome table cannot be used.
        InputError: A setting cannot be.
    """
    from slotool.rules.estimate import estimate
    from slotool.tables import OutcomeTable

    found = loaded(OutcomeTable, outcomes)
    expected = estimate(found, list(tolerances), method, as_list(policies), thresholds, max_error)
    return RulesEstimate(
        examples=len(found.examples),
        versions=tuple(found.versions),
        pairs=expected.pairs,
        candidates=expected.candidates,
        cascades=expected.cascades,
        tolerances=len(tolerances),
        method=method,
        predicted_s=expected.predicted_s,
    )


def priced(outcomes: OutcomeTable, price: Price, prices: FilePath | Mapping[str, float] | None = None) -> OutcomeTable:
    """``outcomes`` with costs from a price per second, of every version or by version, or from ``prices`` of a call;
    None: as it is."""
    from slotool.tables.importing import read_prices

    if prices is not None:
        if price is not None:
            raise ArgumentError("prices", "are of a call and price is of a second; give one of the two")
        by_call, currency = (prices, "") if isinstance(prices, Mapping) else read_prices(Path(prices))
        found = outcomes.priced_by_call(by_call)
        found.provenance["currency"] = currency
        return found
    if price is None:
        return outcomes
    return outcomes.priced(dict(price) if isinstance(price, Mapping) else dict.fromkeys(outcomes.versions, price))


def _draw(outcomes: OutcomeTable, rules: RuleSet, alone: RuleSet, folder: Path, name: str) -> list[Path]:
    """Write the plots into ``folder`` and return their paths; ``alone``: the rules of single versions only."""
    from slotool.reports.plots import save_plots
    from slotool.reports.series.savings import savings_against_tolerance
    from slotool.reports.series.versions import version_figures

    return save_plots([*version_figures(name, outcomes), *savings_against_tolerance(name, rules, alone)], folder)


@dataclass(frozen=True, repr=False, eq=False)
class RulesEstimate(Result):
    """What ``gen_rules`` would do: ``pairs`` of ``versions``, ensembles to compare at most (``candidates``),
    ``cascades`` among them, and seconds."""

    examples: int
    versions: tuple[str, ...]
    pairs: int
    candidates: int
    cascades: int
    tolerances: int
    method: str
    predicted_s: float

    schema = "gen-rules-dry-run"

    def findings(self) -> dict[str, Any]:
        return asdict(self)

    def shown(self) -> list[Part]:
        return [
            f"at most {self.candidates:,} candidates, {self.cascades:,} of them cascades ({len(self.versions)} "
            f"versions, {self.pairs} ordered pairs), on {self.examples:,} examples for {self.tolerances} tolerances",
            f"{self.method} takes about {duration(self.predicted_s)}; nothing was written",
        ]


@dataclass(frozen=True, repr=False, eq=False)
class GeneratedRules(Result):
    """``rules`` made from ``outcomes``; ``out``: the file written, if any; ``plots``: files drawn; ``budgets``: mean
    costs of a request that a tier is looked for."""

    rules: RuleSet
    outcomes: OutcomeTable
    out: Path | None = None
    budgets: tuple[float, ...] = ()
    explain: bool = False
    plots: tuple[Path, ...] = ()

    schema = "gen-rules"
    rows_key = "versions"

    def findings(self) -> dict[str, Any]:
        from slotool.rules.analysis import category_shares

        return {
            "out": None if self.out is None else str(self.out),
            "rules": self.rules.document(),
            "versions": [asdict(fact) for fact in self._facts],
            "categories": category_shares(self.outcomes),
            "budgets": [_within(self.rules, budget) for budget in self.budgets],
            "plots": [str(path) for path in self.plots],
        }

    def shown(self) -> list[Part]:
        from slotool.rules.analysis import category_shares

        shares = category_shares(self.outcomes)
        split = ", ".join(f"{share:.1%} {name}" for name, share in shares.items())
        objectives = dict.fromkeys(rule.objective for rule in self.rules.rules)
        written = [] if self.out is None else [self.out]
        return [
            _version_table(self._facts, self.rules, _cost_heading(self.outcomes)),
            f"requests, from the fastest version to the slowest: {split}",
            *(_tier_table(self.rules, objective) for objective in objectives),
            *_groups(self.rules),
            *(_afforded(self.rules, budget) for budget in self.budgets),
            *(_explanations(self.rules) if self.explain else []),
            *_remarks(self.rules),
            *(f"wrote {path}" for path in (*written, *self.plots)),
        ]

    @property
    def _facts(self) -> list[VersionFacts]:
        from slotool.rules.analysis import version_facts

        return version_facts(self.outcomes)


def _cost_heading(outcomes: OutcomeTable) -> str:
    """``cost``, and its unit where that is known: machine time where the table has no prices."""
    if currency := outcomes.provenance.get("currency"):
        return f"cost, {currency}"
    of_time = (outcomes.matrix("cost") == outcomes.matrix("latency_s")).all()
    return "cost, machine s" if of_time else "cost"


def _version_table(facts: list[VersionFacts], rules: RuleSet, cost: str) -> Table:
    cells = [
        [
            f.version + (" (best)" if f.version == rules.best_version else ""),
            f"{f.error:.4f}",
            duration(f.response_time_s),
            number(f.cost),
            f"{f.confidence:.3f}",
            "yes" if f.pareto else "no",
        ]
        for f in facts
    ]
    title = f"Versions on {rules.sample_size:,} examples"
    return table(title, ["version", "mean error", "response time", cost, "confidence", "Pareto"], cells)


def _tier_table(rules: RuleSet, objective: str) -> Table:
    from slotool.rules import from_point

    base_s, base_cost, unit = rules.config["best_response_time_s"], rules.config["best_cost"], rules.unit
    tiers = [rule for rule in rules.rules if rule.objective == objective]
    cells = []
    for point, group in groupby(tiers, key=lambda rule: rule.point):
        same = list(group)
        least = f" (≥ {same[0].saves_at_least:.0%})" if same[0].saves_at_least > 0 else ""
        rule, span = same[0], dict.fromkeys((unit.number(same[0].tolerance), unit.number(same[-1].tolerance)))
        cells.append(
            [
                unit.named("–".join(span)),
                from_point(point).words,
                unit.number(rule.bound),
                unit.number(rule.degradation),
                *([weakest_group(rule.groups, unit)] if rule.groups else []),
                duration(rule.response_time_s),
                _saving(rule.response_time_s, base_s) + (least if objective == "response-time" else ""),
                _saving(rule.cost, base_cost) + (least if objective == "cost" else ""),
            ]
        )
    named, said = objective.replace("-", " "), f"{rules.loss_words}, confidence {rules.confidence:g}"
    weakest = ["most by group"] if tiers and tiers[0].groups else []
    columns = ["tolerance", "ensemble", "at most", "observed", *weakest, "time", "time saved", "cost saved"]
    return table(f"Tiers for the least {named}: {rules.method}, {said}", columns, cells)


def _within(rules: RuleSet, budget: float) -> dict[str, Any]:
    rule = rules.strictest_within(budget)
    named = (None, None, None) if rule is None else (rule.id, rule.tolerance, rule.cost)
    return {"budget": budget, **dict(zip(("rule", "tolerance", "cost"), named, strict=True))}


def _afforded(rules: RuleSet, budget: float) -> str:
    """The least error that a budget buys."""
    rule, most = rules.strictest_within(budget), f"for {number(budget)} a request at most"
    if rule is None:
        least = min(rule.cost for rule in rules.rules if rule.objective == "cost")
        return f"{most}: no tier; the cheapest takes {number(least)}"
    return f"{most}: tier {rules.unit.amount(rule.tolerance)}, which takes {number(rule.cost)}"


def weakest_group(groups: Mapping[str, float], unit: LossUnit) -> str:
    """The group that loses most, and how much."""
    name = max(groups, key=lambda own: groups[own])
    return f"{unit.number(groups[name])} ({name})"


def _groups(rules: RuleSet) -> list[Part]:
    """Which groups the tolerances hold for."""
    from slotool.rules.groups import OTHERS

    if "group" not in rules.config:
        return []
    sizes, small = rules.config["groups"], rules.config["small"]
    if list(sizes) == [OTHERS]:
        return []  # the warning says why there are no groups
    named = ", ".join(f"{name} ({count:,})" for name, count in sizes.items())
    said = f"each tolerance holds for each {rules.config['group']} (examples): {named}"
    if not small:
        return [said]
    names = ", ".join(small[:5]) + (f" and {len(small) - 5} more" if len(small) > 5 else "")
    together = "are others" if "others" in sizes else "have no guarantee of their own"
    return [said, f"too small for a guarantee of their own: {names}; together they {together}"]


def _no_groups(outcomes: OutcomeTable, column: str) -> str:
    """Why a column makes no groups: it tells examples apart, or its values are rare."""
    from slotool.rules.groups import MIN_EXAMPLES

    values, examples = len(set(outcomes.text(column))), len(outcomes.examples)
    many = "identifies examples and groups none" if 2 * values > examples else "has no value that is frequent enough"
    return (
        f"column {column!r} {many}: {values:,} values of {examples:,} examples, each of fewer than {MIN_EXAMPLES}; "
        "tolerances hold for all examples together only"
    )


def _explanations(rules: RuleSet) -> list[Part]:
    cells = []
    for (objective, _, why), group in groupby(rules.rules, key=lambda rule: (rule.objective, rule.point, rule.why)):
        same = list(group)
        span = "–".join(dict.fromkeys(rules.unit.number(rule.tolerance) for rule in (same[0], same[-1])))
        cells.append([f"{objective} {span}", why])
    return [table("Why not cheaper", [rules.unit.heading("tier"), "why"], cells), *_trees(rules)]


def _trees(rules: RuleSet) -> list[str]:
    """Each cascade as a picture."""
    from slotool.rules import from_point
    from slotool.rules.cascades import Cascade

    policies = {rule.point: from_point(rule.point) for rule in rules.rules}
    serving = {
        point: [f"{rule.objective} {rules.unit.amount(rule.tolerance)}" for rule in rules.rules if rule.point == point]
        for point in policies
    }
    return [
        "\n".join([f"{serving[point][0]}{' and more' if serving[point][1:] else ''}:", *policy.tree])
        for point, policy in policies.items()
        if isinstance(policy, Cascade)
    ]


def _saving(value: float, base: float) -> str:
    return f"{1.0 - value / base + 0.0:.0%}" if base > 0 else "–"


def _remarks(rules: RuleSet) -> list[str]:
    said, widest = [], max(rule.tolerance for rule in rules.rules)
    if rules.tolerance_kind == "relative" and widest > 1:
        said = [
            f"tolerance {widest:g} is {widest:.0%} of {rules.best_version}'s error; {widest:g} % is {widest / 100:g}"
        ]
    objectives = {rule.objective for rule in rules.rules}
    free = {
        "cost": f"{rules.best_version} costs nothing, so that no tier can save cost",
        "response-time": f"{rules.best_version} takes no time in this table, so that no tier can save any: "
        "--objective cost leaves these tiers out",
    }
    nothing = [own for own in objectives if rules.config[f"best_{own.replace('-', '_')}{_UNITS[own]}"] == 0]
    said += [free[own] for own in sorted(nothing)]
    return said if len(nothing) == len(objectives) else [*said, *_remarks_on_proofs(rules)]


def _remarks_on_proofs(rules: RuleSet) -> list[str]:
    best = rules.best_version
    if rules.method != "certified":
        return [f"{rules.method} proves nothing: its bounds are there for comparison with --method certified"]
    alone = [rule for rule in rules.rules if not rule.certified]
    if len(alone) < len(rules.rules):
        return [f"where {best} serves alone, no cheaper ensemble was proven to keep the tolerance"] if alone else []
    needed = rules.config["examples_for_first_saving"]
    if needed is None:
        return [
            f"nothing saved: no cheaper ensemble keeps the widest tolerance even as observed, so {best} serves alone"
        ]
    more = needed - rules.sample_size
    alone_for_now = f"nothing certified, so {best} serves alone"
    if more <= 0:
        return [f"{alone_for_now}: more examples, a wider tolerance or a lower --confidence are needed"]
    how = f"about {float(f'{more:.2g}'):,.0f} more examples"
    return [
        f"{alone_for_now}: {how} would be needed for the widest tolerance, or fewer at a lower --confidence than "
        f"{rules.confidence:g}"
    ]
