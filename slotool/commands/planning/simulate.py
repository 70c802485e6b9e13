"""``slotool.simulate``: comparison of scheduling policies on a virtual clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.display import Column, Part
from slotool.commands.outputs import writes
from slotool.commands.result import Result, listed, output, result, unlisted
from slotool.commands.values import at_least, between, numbers
from slotool.devices import devices_of
from slotool.errors import InputError
from slotool.printable import counted
from slotool.progress import Reporter, Reporting, reporter_of
from slotool.sources import FilePath, loaded, name_of

if TYPE_CHECKING:
    from slotool.scheduling.batching import ControlGrid
    from slotool.simulation import Scenario, ServiceTimes
    from slotool.tables import LatencyTable, OutcomeTable
    from slotool.workloads import ArrivalTable

POLICIES = ("hindsight", "value-iteration", "slackfit", "maxbatch", "maxacc", "mincost", "switching", "fixed")
OPTIMA = ("auto", "bound")


@result
class Simulation(Result):
    """Figures of each policy (``rows``); ``best``: upper limit of effective accuracy; ``facts``: simulated scenario.

    ``log``: file with the result of every query, or None.
    """

    rows: Sequence[Mapping[str, Any]] = listed("policies")
    best: float = listed("best_possible")
    facts: Mapping[str, Any] = unlisted()
    log: Path | None = output(default=None)

    schema = "simulate"
    rows_key = "policies"
    columns = (
        *(Column("policy"), Column("attainment", form=".4%"), Column("accuracy", form=".4f")),
        *(Column("effective_accuracy", "effective", ".4f"), Column("regret", form=".4f"), Column("drops", form=",")),
        *(Column("late", form=","), Column("mean_batch", "batch", ".1f"), Column("utilisation", form=".1%")),
    )

    @property
    def title(self) -> str:
        return f"{self.rows[0]['queries']:,} queries of {self.facts['deadline_ms']:g} ms to {self.facts['subject']}"

    def findings(self) -> Mapping[str, Any]:
        return {**self.facts, **super().findings()}

    def shown(self) -> list[Part]:
        best = f"best possible with all arrivals known ({self.facts['best_by']}): {self.best:.4f} effective accuracy"
        return [self.table(), best]


@command_line(
    arguments=("profile",),
    panels={
        "Profile": ("outcomes", "subject", "device"),
        "Service": ("policies", "workers", "deaths_s", "noise", "quantile"),
        "Result": ("optimum", "log"),
    },
    values={"deaths_s": numbers},
)
@writes("log")
def simulate(
    profile: FilePath | LatencyTable,
    arrivals: FilePath | ArrivalTable,
    deadline_ms: Annotated[float, at_least(0.001)],
    *,
    outcomes: FilePath | OutcomeTable | None = None,
    subject: str | None = None,
    device: str | None = None,
    policies: str | Sequence[str] = POLICIES,
    workers: Annotated[int, at_least(1)] = 1,
    deaths_s: Sequence[float] = (),
    noise: bool = True,
    quantile: Annotated[float, between(0, 1)] = 0.95,
    optimum: str = "auto",
    log: FilePath | None = None,
    force: bool = False,
    seed: Annotated[int, at_least(0)] = 0,
    progress: Reporting = "auto",
) -> Simulation:
    """Compare scheduling policies on a virtual clock.

    SLO attainment and effective accuracy are over all queries; accuracy is the mean over those answered in time. Regret
    is the effective accuracy lost against the best possible with all arrivals known: the optimum with one worker, no
    deaths and ``noise=False``, else a fluid upper bound.

    Example: slotool simulate profile.csv --arrivals bursts.parquet --deadline-ms 36 --workers 2

    Example: slotool simulate profile.csv --arrivals bursts.parquet --deadline-ms 36 --policies value-iteration,slackfit
    --log queries.parquet

    Args:
        profile: Latency table (Parquet or CSV) of points × batch sizes.
        arrivals: Arrival table, as ``generate_arrivals`` writes it.
        deadline_ms: Deadline of every query, milliseconds.
        outcomes: Accuracy of the points, needed for several; None: column accuracy of the profile.
        subject: Subject of the rows; None: the only one of the profile.
        device: Only rows of this device; None: the only one of the profile.
        policies: Policies to compare; ``"fixed@POINT"`` serves one point.
        workers: Workers of the queue.
        deaths_s: Seconds at which workers die.
        noise: Draw call latencies from the profile's samples, or use the planned ones.
        quantile: Quantile of the samples to plan with.
        optimum: The best possible: ``"auto"`` or ``"bound"``, which is fast and never too low.
        log: File (.parquet) for every query's result under each policy. ``report`` draws it.
        force: Replace ``log`` if it exists.

    Returns:
        Figures of each policy (``rows``, ``frame()``) and the best possible (``best``).

    Raises:
        InputError: The profile cannot be planned with, or no policy or optimum has this name.
        ArgumentError: There is no worker, or no time, or ``log`` is no name of a Parquet file.
        AlreadyExistsError: ``log`` exists.
        TableError: A table cannot be read.
    """
    from slotool.scheduling.batching import make_policy, read_profile
    from slotool.scheduling.batching.registry import policies_named
    from slotool.simulation import Scenario, ServiceTimes
    from slotool.simulation import simulate as run
    from slotool.simulation.query_log import QueryLog
    from slotool.tables import LatencyTable, OutcomeTable
    from slotool.workloads import ArrivalTable

    if optimum not in OPTIMA:
        raise InputError(f"no optimum {optimum!r}; there are {', '.join(OPTIMA)}")
    named = policies_named(policies)
    latencies = loaded(LatencyTable, profile)
    accuracies = None if outcomes is None else loaded(OutcomeTable, outcomes)
    service = read_profile(latencies, accuracies, subject=subject, quantile=quantile, devices=devices_of(device))
    scenario = Scenario.of(loaded(ArrivalTable, arrivals).times_s, deadline_ms / 1e3, workers, tuple(deaths_s))
    reporter = reporter_of(progress)
    service.grid.require_deadline(deadline_ms * 1e3)
    chosen = {name: make_policy(name, service.grid, deadline_ms * 1e3) for name in named}
    for remark in (*service.grid.remarks, *service.grid.unknown_accuracy):
        reporter.warn(remark)
    times = {
        name: ServiceTimes.sampled(policy.grid, service.samples_us, seed)
        if noise
        else ServiceTimes.planned(policy.grid)
        for name, policy in chosen.items()
    }
    # A noisy call at a point that policies do not choose may be the fastest of all.
    widest = max(chosen, key=lambda name: len(chosen[name].grid.points))
    if optimum == "auto":
        optimum = "dp" if not noise and workers == 1 and not deaths_s else "bound"
    best, method = _best(chosen[widest].grid, scenario, times[widest], optimum, reporter)
    results = {}
    with reporter.progress(f"{len(scenario):,} queries, {counted(workers, 'worker')}", total=len(chosen)) as steps:
        for name, policy in chosen.items():
            results[name] = run(policy, scenario, times[name])
            steps.advance()
    figures = {name: outcome.summary() for name, outcome in results.items()}
    # Sums in another order differ in their last digits.
    rows = [
        {"policy": name, **row, "regret": max(0.0, best - row["effective_accuracy"])} for name, row in figures.items()
    ]
    facts = {
        "subject": service.subject, "device": device, "points": len(service.grid.points), "workers": workers,
        "deadline_ms": deadline_ms, "arrivals": name_of(arrivals), "noise": noise, "quantile": quantile, "seed": seed,
        "best_by": method,
    }  # fmt: skip
    if log is not None:
        QueryLog.of_results(results, facts).save(log)
    return Simulation(rows, best, facts, None if log is None else Path(log))


def _best(grid: ControlGrid, scenario: Scenario, times: ServiceTimes, by: str, reporter: Reporter) -> tuple[float, str]:
    """Return the best possible effective accuracy, and the method that found it."""
    from slotool.simulation import fluid_bound, optimum_of_one_worker
    from slotool.simulation.optimum import PASSES

    min_us = times.min_us.reshape(grid.latency_us.shape)
    if by == "bound":
        return fluid_bound(grid, scenario, min_us) / len(scenario), "fluid bound"
    with reporter.progress("best possible with all arrivals known", total=PASSES * len(scenario)) as steps:
        optimum = optimum_of_one_worker(grid, scenario, advance=steps.advance)
    gap = (optimum.bound - optimum.reached) / len(scenario)
    return optimum.bound / len(scenario), f"{optimum.method}, within {gap:.4f}"
