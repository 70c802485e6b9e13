"""``slotool.gen_rules``: the cheapest ensemble of versions that keeps each tolerance."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slotool.api.arguments import typed
from slotool.api.display import Part, duration
from slotool.api.generated_rules import GeneratedRules
from slotool.api.inputs import FilePath, as_list, loaded
from slotool.api.outputs import writes
from slotool.api.progress import Reporting, reporter_of
from slotool.api.result import Result
from slotool.errors import ArgumentError, InputError

if TYPE_CHECKING:
    from slotool.rules import RuleSet
    from slotool.tables import OutcomeTable

TOLERANCES = tuple(round(0.01 * step, 2) for step in range(11))
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
    best: str | None = None,
    max_error: float | None = None,
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
        best: Version that tolerances are relative to; None: the truly best one, whichever the table shows, so that
            each tier is proven against every version.
        max_error: Upper limit of an error; None: 1 or, where errors are larger, the largest of the table.
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
        best=best,
    )
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
    max_error: float | None = None,
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
    from slotool.rules.generate.estimate import estimate
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


def _no_groups(outcomes: OutcomeTable, column: str) -> str:
    """Why a column makes no groups: it tells examples apart, or its values are rare."""
    from slotool.rules.evidence.groups import MIN_EXAMPLES

    values, examples = len(set(outcomes.text(column))), len(outcomes.examples)
    many = "identifies examples and groups none" if 2 * values > examples else "has no value that is frequent enough"
    return (
        f"column {column!r} {many}: {values:,} values of {examples:,} examples, each of fewer than {MIN_EXAMPLES}; "
        "tolerances hold for all examples together only"
    )


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
