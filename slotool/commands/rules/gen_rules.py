"""``slotool.gen_rules``: the cheapest ensemble of versions that keeps each tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from slotool.commands.command_line import Ineffective, command_line
from slotool.commands.inputs import FilePath, as_list, loaded
from slotool.commands.outputs import writes
from slotool.commands.progress import Reporting, reporter_of
from slotool.commands.rules.generated_rules import GeneratedRules
from slotool.commands.values import at_least, prices_per_second
from slotool.errors import ArgumentError, InputError

if TYPE_CHECKING:
    from slotool.tables import OutcomeTable

TOLERANCES = tuple(round(0.01 * step, 2) for step in range(11))
POLICIES = ("osfa", "seq", "conc", "cascade")
Price = float | Mapping[str, float] | None


@command_line(
    required=("out",),
    values={"price": prices_per_second},
    repeatable=("price",),
    panels={
        "Guarantee": (
            *("tolerances", "tolerance_kind", "loss_limit", "method", "confidence", "best", "max_error", "group"),
        ),
        "Ensembles to choose from": ("objective", "policies", "thresholds", "price", "prices", "budgets"),
        "Output": ("explain", "plots"),
    },
    ineffective=(
        Ineffective(("confidence", "policies", "thresholds", "seed"), "method", when="naive"),
        Ineffective(("loss_limit",), "tolerance_kind", unless="quantile"),
    ),
)
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
    best: str | None = None,
    max_error: float | None = None,
    objective: str = "both",
    policies: str | Sequence[str] = POLICIES,
    thresholds: Annotated[int, at_least(1)] = 50,
    group: str | None = None,
    price: Price = None,
    prices: FilePath | Mapping[str, float] | None = None,
    budgets: Sequence[float] = (),
    explain: bool = False,
    plots: FilePath | None = None,
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
        loss_limit: Points of error above the best version's, with quantile.
        method: ``"certified"`` (proven), ``"bootstrap"`` (the paper's) or ``"naive"`` (best single version).
        confidence: Probability that no tier exceeds its tolerance.
        best: Version to compare with; None: the truly best one. Each tier is then proven against every version.
        max_error: Upper limit of an error; None: 1, or the largest.
        objective: ``"response-time"``, ``"cost"`` or ``"both"``.
        policies: Ensembles to choose from, some of osfa, seq, conc and cascade.
        thresholds: Thresholds to try per pair.
        group: Column: tolerances hold for each of its values.
        price: Price per second: a number, or VERSION=PRICE,…; None: machine time.
        prices: Price of a call: a list as of ``import_outcomes``; in place of ``price``.
        budgets: Costs of a request: name the strictest tier within each.
        explain: Show for each tier why no cheaper ensemble serves it.
        plots: Folder for plots (PNG) of versions and tiers.
        seed: Same seed, same result.
        force: Replace ``out`` if it exists.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.commands.progress``.

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
    from slotool.rules.evidence.groups import OTHERS
    from slotool.rules.generate.generator import constant_versions
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
        generate_rules, found, tolerances, OBJECTIVES if objective == "both" else (objective,), confidence, method,
        tolerance_kind, thresholds=thresholds, max_error=max_error, seed=seed, loss_limit=loss_limit, best=best,
    )  # fmt: skip
    rules = make(policies=as_list(policies), group=group)
    if out is not None:
        rules.save(Path(out), replace=force)
    reporter = reporter_of(progress)
    constant = constant_versions(found)
    if len(constant) == len(found.versions):
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
        reporter.warn(_no_groups(found, group))
    drawn: list[Path] = []
    if plots is not None:
        from slotool.reports.plots import save_plots
        from slotool.reports.series.tiers import savings_against_tolerance, version_figures

        name, alone = "rules" if out is None else Path(out).stem, make(policies=["osfa"])
        figures = [*version_figures(name, found), *savings_against_tolerance(name, rules, alone)]
        drawn = save_plots(figures, Path(plots))
    return GeneratedRules(rules, found, None if out is None else Path(out), tuple(budgets), explain, drawn)


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


def _no_groups(outcomes: OutcomeTable, column: str) -> str:
    """Why a column makes no groups: it tells examples apart, or its values are rare."""
    from slotool.rules.evidence.groups import MIN_EXAMPLES

    values, examples = len(set(outcomes.text(column))), len(outcomes.examples)
    many = "identifies examples and groups none" if 2 * values > examples else "has no value that is frequent enough"
    return (
        f"column {column!r} {many}: {values:,} values of {examples:,} examples, each of fewer than {MIN_EXAMPLES}; "
        "tolerances hold for all examples together only"
    )
