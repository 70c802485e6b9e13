"""``slotool.gen_rules``: the cheapest ensemble of versions that keeps each tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from slotool.commands.command_line import Ineffective, command_line
from slotool.commands.display import Column, Part, Table, records_table, table
from slotool.commands.outputs import writes
from slotool.commands.result import Result, output, result, unlisted
from slotool.commands.values import above, at_least, prices_per_second
from slotool.errors import ArgumentError, InputError
from slotool.printable import counted, duration, name_list, number
from slotool.progress import Reporting, reporter_of, short_phase
from slotool.sources import FilePath, as_list, loaded, numbers_in

if TYPE_CHECKING:
    from slotool.rules import RuleSet
    from slotool.rules.evidence.losses import LossUnit
    from slotool.tables import OutcomeTable

TOLERANCES = tuple(round(0.01 * step, 2) for step in range(11))
POLICIES = ("osfa", "seq", "conc", "cascade")
Price = float | Mapping[str, float] | None
_UNITS = {"cost": "", "response-time": "_s"}  # of names in the rules' settings
# Keys of a budget's tier in the document, and attributes of the rule.
_OF_BUDGET = {"rule": "id", "tolerance": "tolerance", "cost": "cost"}


@command_line(
    required=("out",),
    values={"price": prices_per_second},
    repeatable=("price",),
    panels={
        "Guarantee": (
            *("tolerances", "tolerance_kind", "loss_limit", "method", "confidence", "best", "max_error", "group"),
        ),
        "Ensembles to choose from": ("objective", "policies", "thresholds", "price", "prices", "budgets"),
        "Output": ("explain",),
    },
    ineffective=(
        Ineffective(("confidence", "policies", "thresholds", "seed"), "method", when="naive"),
        Ineffective(("loss_limit",), "tolerance_kind", unless="quantile"),
    ),
)
@writes("out")
def gen_rules(
    outcomes: FilePath | OutcomeTable,
    out: FilePath | None = None,
    *,
    tolerances: float | Sequence[float] = TOLERANCES,
    tolerance_kind: Literal["relative", "absolute", "quantile"] = "relative",
    loss_limit: float = 0.0,
    method: str = "certified",
    confidence: float = 0.999,
    best: str | None = None,
    max_error: float | None = None,
    objective: str = "both",
    policies: str | Sequence[str] = POLICIES,
    thresholds: Annotated[int, at_least(1)] = 50,
    group: str | None = None,
    price: Price = None,
    prices: FilePath | Mapping[str, float] | None = None,
    budgets: Annotated[float | Sequence[float], above(0)] = (),
    explain: bool = False,
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> GeneratedRules:
    """Find the cheapest ensemble that keeps each tolerance.

    Example: slotool gen-rules family-outcomes.parquet -o rules.json --tolerance-kind absolute --explain

    Args:
        outcomes: Outcome table: Parquet, or CSV example,version,error,confidence,latency_s[,cost].
        out: File to write the rules into.
        tolerances: Tiers to offer: start:stop:step or a list.
        tolerance_kind: relative: share of the best version's error; absolute: points of error (0.01 = 1 point);
            quantile: share of requests worse by more than ``loss_limit``.
        loss_limit: Points of error above the best version's, for quantile.
        method: ``"certified"`` (proven), ``"bootstrap"`` (the paper's) or ``"naive"`` (best single version).
        confidence: Probability that no tier exceeds its tolerance.
        best: Version to compare with; None: the truly best one. Each tier is then proven against every version.
        max_error: Upper limit of an error; None: 1, or the largest.
        objective: ``"response-time"``, ``"cost"`` or ``"both"``.
        policies: Ensembles to choose from, some of osfa, seq, conc and cascade.
        thresholds: Thresholds to try per pair.
        group: Column of groups that each tolerance holds for.
        price: Price per second: a number, or VERSION=PRICE,…; None: machine time.
        prices: Prices of a call: a list as for ``import_outcomes``; in place of ``price``.
        budgets: Costs of a request, for each of which the strictest tier is shown.
        explain: Show for each tier why no cheaper ensemble serves it.

    Returns:
        ``rules``, the ``RuleSet``; ``frame()`` has a row per version.

    Raises:
        TableError: The outcome table cannot be used.
        InputError: A setting cannot be, such as a confidence of 1.
        ArgumentError: ``budgets`` are not positive, or the objective excludes them or needs seconds that no answer has.
    """
    from slotool.rules import OBJECTIVES, generate_rules
    from slotool.rules.evidence.groups import OTHERS
    from slotool.rules.generate.generator import constant_versions
    from slotool.tables import OutcomeTable

    limits = numbers_in(budgets)
    if objective not in (*OBJECTIVES, "both"):
        raise InputError(f"no objective {objective!r}; there are {', '.join(OBJECTIVES)} and both")
    if limits and objective == "response-time":
        raise ArgumentError("budgets", "are of cost; the objective is the response time")
    priced_table = priced(loaded(OutcomeTable, outcomes), price, prices)
    reporter = reporter_of(progress)
    if not priced_table.matrix("latency_s").any():
        if objective == "response-time":
            raise ArgumentError("objective", "no answer has seconds: rules can only be made with --objective cost")
        if objective == "both":
            reporter.warn("no answer has seconds: there are tiers of cost alone")
            objective = "cost"
    with short_phase(reporter, f"certifying combinations of {counted(len(priced_table.versions), 'version')}"):
        rules = generate_rules(
            priced_table, numbers_in(tolerances), OBJECTIVES if objective == "both" else (objective,), confidence,
            method, tolerance_kind, thresholds=thresholds, max_error=max_error, seed=seed, loss_limit=loss_limit,
            best=best, policies=as_list(policies), group=group,
        )  # fmt: skip
    if out is not None:
        rules.save(Path(out), replace=force)
    constant = constant_versions(priced_table)
    if len(constant) == len(priced_table.versions):
        reporter.warn("each version has one constant confidence, so no threshold separates requests")
    else:
        for version in constant:
            reporter.warn(f"{version} has one constant confidence, so it never answers first")
    if "max_error_observed" in rules.config:
        reporter.warn(
            f"proofs assume that no error exceeds {rules.max_error:g}, the largest of the table; give --max-error if "
            "larger ones can occur"
        )
    if group is not None and list(rules.config["groups"]) == [OTHERS]:
        reporter.warn(_no_groups(priced_table, group))
    return GeneratedRules(rules, priced_table, None if out is None else Path(out), tuple(limits), explain)


def priced(outcomes: OutcomeTable, price: Price, prices: FilePath | Mapping[str, float] | None = None) -> OutcomeTable:
    """Return ``outcomes`` with costs by a price per second or ``prices`` of a call; unchanged without either."""
    if prices is not None:
        if price is not None:
            raise ArgumentError("prices", "are of a call and price is of a second; give one of the two")
        from slotool.tables.importing import prices_of

        by_call, currency = prices_of(prices)
        by_price = outcomes.priced_by_call(by_call)
        by_price.provenance["currency"] = currency
        return by_price
    if price is None:
        return outcomes
    return outcomes.priced(dict(price) if isinstance(price, Mapping) else dict.fromkeys(outcomes.versions, price))


def _no_groups(outcomes: OutcomeTable, column: str) -> str:
    """Describe why a column makes no groups: it identifies examples, or its values are rare."""
    from slotool.rules.evidence.groups import MIN_EXAMPLES

    values, examples = len(set(outcomes.text(column))), len(outcomes.examples)
    many = "identifies examples and groups none" if 2 * values > examples else "has no value that is frequent enough"
    return (
        f"column {column!r} {many}: {values:,} values of {examples:,} examples, each of fewer than {MIN_EXAMPLES}; "
        "tolerances hold for all examples together only"
    )


@result
class GeneratedRules(Result):
    """Generated ``rules``, made from ``outcomes``; ``budgets``: mean costs of a request to show a tier for."""

    rules: RuleSet = unlisted()
    outcomes: OutcomeTable = unlisted()
    out: Path | None = output(default=None)
    budgets: tuple[float, ...] = unlisted(default=())
    explain: bool = unlisted(default=False)

    schema = "gen-rules"
    rows_key = "versions"

    def findings(self) -> dict[str, Any]:
        from slotool.rules.analysis import category_shares

        budgets = []
        for budget in self.budgets:
            rule = self.rules.strictest_within(budget)
            named = {name: rule and getattr(rule, key) for name, key in _OF_BUDGET.items()}
            budgets.append({"budget": budget, **named})
        shares = category_shares(self.outcomes)
        return {**super().findings(), "rules": self.rules.document(), "categories": shares, "budgets": budgets}

    def records(self) -> list[dict[str, Any]]:
        from slotool.rules.analysis import version_facts

        return [asdict(fact) for fact in version_facts(self.outcomes)]

    def shown(self) -> list[Part]:
        from slotool.rules.analysis import category_shares

        rules, shares = self.rules, category_shares(self.outcomes)
        split = ", ".join(f"{share:.1%} {name}" for name, share in shares.items())
        objectives = dict.fromkeys(rule.objective for rule in rules.rules)
        columns = (
            *(
                Column("version"),
                Column("error", "mean error", ".4f"),
                Column("response_time_s", "response time", duration),
            ),
            *(Column("cost", _cost_heading(self.outcomes), number), Column("confidence", form=".3f")),
            Column("pareto", "Pareto", lambda pareto: "yes" if pareto else "no"),
        )
        rows = self.records()
        for row in rows:
            row["version"] += " (best)" if row["version"] == rules.best_version else ""
        return [
            records_table(f"Versions on {rules.sample_size:,} examples", rows, columns),
            f"requests, from the fastest version to the slowest: {split}",
            *(_tier_table(rules, objective) for objective in objectives),
            *_groups(rules),
            *(_afforded(rules, budget) for budget in self.budgets),
            *(_explanations(rules) if self.explain else []),
            *_remarks(rules),
        ]

    @property
    def warnings(self) -> list[str]:
        from slotool.elastic.evaluation import timing_warnings

        return timing_warnings(self.outcomes)


def _cost_heading(outcomes: OutcomeTable) -> str:
    """Return ``cost`` with its unit if known: machine time if the table has no prices."""
    if currency := outcomes.provenance.get("currency"):
        return f"cost, {currency}"
    of_time = (outcomes.matrix("cost") == outcomes.matrix("latency_s")).all()
    return "cost, machine s" if of_time else "cost"


def _tier_table(rules: RuleSet, objective: str) -> Table:
    """Return the tiers of an objective; equal ones of an ensemble share a row."""
    from slotool.rules import from_point

    base_s, base_cost, unit = rules.config["best_response_time_s"], rules.config["best_cost"], rules.unit
    tiers = [rule for rule in rules.rules if rule.objective == objective]
    rows = []
    for _, group in groupby(tiers, key=lambda rule: (rule.point, rule.promised)):
        rule, *others = group
        span = dict.fromkeys(unit.number(tier.tolerance) for tier in (rule, *others[-1:]))
        saved = {"response-time": _saving(rule.response_time_s, base_s), "cost": _saving(rule.cost, base_cost)}
        saved[objective] += f" (≥ {rule.saves_at_least:.0%})" if rule.saves_at_least > 0 else ""
        rows.append(
            {
                "tolerance": unit.named("–".join(span)),
                "ensemble": from_point(rule.point).words,
                "at_most": None if rule.bound is None else unit.number(rule.bound),
                "observed": unit.number(rule.degradation),
                **({"most_by_group": weakest_group(rule.groups, unit)} if rule.groups else {}),
                "time": duration(rule.response_time_s),
                "time_saved": saved["response-time"],
                "cost_saved": saved["cost"],
            }
        )
    named, condition = objective.replace("-", " "), f"{rules.loss_words}, confidence {rules.confidence:g}"
    keys = ("tolerance", "ensemble", "at_most", "observed", "most_by_group", "time", "time_saved", "cost_saved")
    return records_table(f"Tiers for the least {named}: {rules.method}, {condition}", rows, map(Column, keys))


def _afforded(rules: RuleSet, budget: float) -> str:
    """Describe the least error that a budget buys."""
    rule, most = rules.strictest_within(budget), f"for {number(budget)} a request at most"
    if rule is None:
        least = min(rule.cost for rule in rules.rules if rule.objective == "cost")
        return f"{most}: no tier; the cheapest takes {number(least)}"
    return f"{most}: tier {rules.unit.amount(rule.tolerance)}, which takes {number(rule.cost)}"


def weakest_group(groups: Mapping[str, float], unit: LossUnit) -> str:
    """Return the group of the largest loss, and that loss."""
    name = max(groups, key=lambda group: groups[group])
    return f"{unit.number(groups[name])} ({name})"


def _groups(rules: RuleSet) -> list[Part]:
    """Describe the groups that the tolerances hold for."""
    from slotool.rules.evidence.groups import OTHERS

    if "group" not in rules.config:
        return []
    sizes, small = rules.config["groups"], rules.config["small"]
    if list(sizes) == [OTHERS]:
        return []  # the warning says why there are no groups
    named = ", ".join(f"{name} ({count:,})" for name, count in sizes.items())
    sentence = f"each tolerance holds for each {rules.config['group']} (examples): {named}"
    if not small:
        return [sentence]
    names = name_list(small, 6)
    together = "are others" if "others" in sizes else "have no guarantee of their own"
    return [sentence, f"too small for a guarantee of their own: {names}; together they {together}"]


def _explanations(rules: RuleSet) -> list[Part]:
    cells = []
    for (objective, _, why), group in groupby(rules.rules, key=lambda rule: (rule.objective, rule.point, rule.why)):
        same = list(group)
        span = "–".join(dict.fromkeys(rules.unit.number(rule.tolerance) for rule in (same[0], same[-1])))
        cells.append([f"{objective} {span}", why])
    return [table("Why not cheaper", [rules.unit.heading("tier"), "why"], cells), *_trees(rules)]


def _trees(rules: RuleSet) -> list[str]:
    """Draw each cascade as a tree."""
    from slotool.rules import from_point
    from slotool.rules.policies.cascades import Cascade

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
    remarks, widest = [], max(rule.tolerance for rule in rules.rules)
    if rules.tolerance_kind == "relative" and widest > 1:
        remarks = [
            f"tolerance {widest:g} is {widest:.0%} of {rules.best_words}'s error; {widest:g} % is {widest / 100:g}"
        ]
    objectives = {rule.objective for rule in rules.rules}
    free = {
        "cost": f"{rules.best_version} costs nothing, so that no tier can save cost",
        "response-time": f"{rules.best_version} takes no time in this table, so that no tier can save any: "
        "--objective cost leaves these tiers out",
    }
    nothing = [name for name in objectives if rules.config[f"best_{name.replace('-', '_')}{_UNITS[name]}"] == 0]
    remarks += [free[name] for name in sorted(nothing)]
    return remarks if len(nothing) == len(objectives) else [*remarks, *_remarks_on_proofs(rules)]


def _remarks_on_proofs(rules: RuleSet) -> list[str]:
    from slotool.rules import OSFA
    from slotool.rules.generate.generator import generator_class

    best = rules.best_version
    if not generator_class(rules.method).proves:
        return [f"{rules.method} proves nothing: its bounds are there for comparison with --method certified"]
    unproven, alone = _unproven(rules), [rule for rule in rules.rules if rule.point == OSFA(best).point]
    if len(alone) < len(rules.rules):
        dearest = f"{best} alone: no cheaper ensemble is proven to keep the tolerance"
        return [*unproven, *([dearest] if any(rule.promised for rule in alone) else [])]
    if "examples_for_first_saving" not in rules.config:  # those of plugins need not estimate it
        return [*unproven, f"nothing saved, so {best} serves alone"]
    needed = rules.config["examples_for_first_saving"]
    if needed is None:
        cause = "no cheaper ensemble keeps the widest tolerance on these examples"
        return [*unproven, f"nothing saved: {cause}, so {best} serves alone"]
    more, nothing = needed - rules.sample_size, f"nothing saved, so {best} serves alone"
    if more <= 0:
        return [*unproven, f"{nothing}: more examples, a wider tolerance or a lower --confidence are needed"]
    how = f"about {float(f'{more:.2g}'):,.0f} more examples"
    return [
        *unproven,
        f"{nothing}: {how} would be needed for the widest tolerance, or fewer at a lower --confidence than "
        f"{rules.confidence:g}",
    ]


def _unproven(rules: RuleSet) -> list[str]:
    """Describe tiers that promise nothing, and the option that helps."""
    unproven = sorted({rule.tolerance for rule in rules.rules if not rule.promised})
    if not unproven:
        return []
    best, unit = rules.best_version, rules.unit
    span = unit.named("–".join(dict.fromkeys(map(unit.number, (unproven[0], unproven[-1])))))
    doubt = "no version is proven to be the best"
    if rules.best_bound is not None:
        doubt = f"{best} alone is proven to keep only {unit.amount(rules.best_bound)}"
    return [f"{span}: no promise, because {doubt}; --best {best} compares errors with {best}'s instead"]
