"""``slotool simulate``: scheduling policies side by side, on a virtual clock and one profile."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import Json, Seed, panel, parse_numbers, plots_folder

if TYPE_CHECKING:
    from slotool.scheduling.batching import ControlGrid
    from slotool.simulation import Scenario, ServiceTimes
    from slotool.simulation.dynamics import Dynamics

ALL = "value-iteration,slackfit,maxbatch,maxacc,mincost,switching,fixed"
OPTIMA = ("auto", "milp", "bound")

_profile, _service, _result = map(panel, ("Profile", "Service", "Result"))


def register(app: typer.Typer) -> None:
    app.command()(simulate)


def simulate(
    profile: Annotated[Path, typer.Argument(help="Latency table (Parquet or CSV) of points × batch sizes.")],
    arrivals: Annotated[Path, typer.Option("--arrivals", help="File of slotool generate arrivals.")],
    deadline_ms: Annotated[float, typer.Option("--deadline-ms", min=0.001, help="Deadline of every query.")],
    outcomes: Annotated[
        Path | None,
        _profile("--outcomes", help="Accuracy of the points.", show_default="column accuracy of the profile"),
    ] = None,
    subject: Annotated[
        str | None, _profile("--subject", help="Subject of the rows.", show_default="the only one of the profile")
    ] = None,
    policies: Annotated[str, _service("--policies", help="Comma-separated; fixed@POINT serves one point.")] = ALL,
    workers: Annotated[int, _service("--workers", min=1, help="Workers of the queue.")] = 1,
    deaths: Annotated[str | None, _service("--deaths", help="Seconds at which workers die: 10,20.")] = None,
    noise: Annotated[
        bool,
        _service("--noise/--no-noise", help="Draw call latencies from the profile's samples, or use the planned ones."),
    ] = True,
    quantile: Annotated[
        float, _service("--quantile", min=0.0, max=1.0, help="Quantile of the samples to plan with.")
    ] = 0.95,
    optimum: Annotated[
        str,
        _result(
            "--optimum",
            help="The best possible: auto, milp (integer program: any workers, up to a hundred queries) or bound.",
        ),
    ] = "auto",
    plots: Annotated[
        Path | None,
        _result(
            "--plots",
            callback=plots_folder,
            help="Folder for plots (PNG) of rate, accuracy, batch and queue over time.",
        ),
    ] = None,
    seed: Seed = 0,
    json: Json = False,
) -> None:
    """Compare scheduling policies on the same arrivals, on a virtual clock.

    SLO attainment and effective accuracy are over all queries; accuracy is the mean over those answered in time. Regret
    is the effective accuracy lost against the best possible with all arrivals known: the optimum with one worker, no
    deaths and --no-noise, else a fluid upper bound. --optimum milp solves the paper's integer program instead, also for
    several workers and deaths, on at most a hundred queries.

    Example: slotool simulate profile.csv --arrivals bursts.parquet --deadline-ms 36 --workers 2

    Example: slotool simulate profile.csv --arrivals bursts.parquet --deadline-ms 36 --policies value-iteration,slackfit
    --plots plots
    """
    from slotool.cli.output import Output
    from slotool.errors import InputError
    from slotool.scheduling.batching import make_policy, read_profile
    from slotool.simulation import Scenario, ServiceTimes
    from slotool.simulation import simulate as run
    from slotool.simulation.dynamics import dynamics
    from slotool.tables import LatencyTable, OutcomeTable
    from slotool.workloads import ArrivalTable

    output = Output(as_json=json)
    if optimum not in OPTIMA:
        raise InputError(f"no optimum {optimum!r}; there are {', '.join(OPTIMA)}")
    table = LatencyTable.load(profile)
    accuracies = None if outcomes is None else OutcomeTable.load(outcomes)
    known = read_profile(table, accuracies, subject=subject, quantile=quantile)
    dying = tuple(parse_numbers(deaths, "--deaths")) if deaths else ()
    scenario = Scenario.of(ArrivalTable.load(arrivals).times_s, deadline_ms / 1e3, workers, dying)
    for remark in known.grid.remarks:
        output.warn(remark)
    known.grid.require_deadline(deadline_ms * 1e3)
    sampled = ServiceTimes.sampled(known.grid, known.samples_us, seed)
    times = sampled if noise else ServiceTimes.planned(known.grid)
    chosen = {name: make_policy(name.strip(), known.grid, deadline_ms * 1e3) for name in policies.split(",")}
    if optimum == "auto":
        optimum = "dp" if not noise and workers == 1 and not dying else "bound"
    best, method = _best(known.grid, scenario, times, optimum)
    rows, drawn = [], {}
    with output.progress(f"{len(scenario):,} queries, {workers} workers", total=len(chosen)) as progress:
        for name, policy in chosen.items():
            outcome = run(policy, scenario, times)
            figures = {"policy": name, **outcome.summary()}
            if plots is not None:
                drawn[name] = dynamics(outcome)
            figures["regret"] = best - figures["effective_accuracy"]
            rows.append(figures)
            progress.advance()
    _report(output, rows, best, {"subject": known.subject, "points": len(known.grid.points), "workers": workers,
            "deadline_ms": deadline_ms, "arrivals": str(arrivals), "noise": noise, "quantile": quantile, "seed": seed,
            "best_by": method}, [] if plots is None else _draw(known.subject, drawn, plots))  # fmt: skip


def _best(grid: ControlGrid, scenario: Scenario, times: ServiceTimes, by: str) -> tuple[float, str]:
    """Effective accuracy that nothing can surpass, and how it was found."""
    from slotool.simulation import fluid_bound, optimum_by_integer_program, optimum_of_one_worker

    least_us = times.least_us.reshape(grid.latency_us.shape)
    if by == "bound":
        return fluid_bound(grid, scenario, least_us) / len(scenario), "fluid bound"
    if by == "dp":
        found = optimum_of_one_worker(grid, scenario)
    else:
        found = optimum_by_integer_program(grid, scenario, latency_us=least_us)
    gap = (found.bound - found.reached) / len(scenario)
    return found.bound / len(scenario), f"{found.method}, within {gap:.4f}"


def _draw(subject: str, runs: dict[str, Dynamics], folder: Path) -> list[Path]:
    from slotool.reports.plots import save_plots
    from slotool.reports.series.dynamics import dynamics_figures

    return save_plots(dynamics_figures(subject, runs), folder)


def _report(output: Any, rows: list[dict[str, Any]], best: float, facts: dict[str, Any], plots: list[Path]) -> None:
    from slotool.cli.output import table

    columns = ["policy", "attainment", "accuracy", "effective", "regret", "drops", "late", "batch", "utilisation"]
    cells = [
        [
            row["policy"],
            f"{row['attainment']:.4%}",
            f"{row['accuracy']:.4f}",
            f"{row['effective_accuracy']:.4f}",
            f"{row['regret']:.4f}",
            f"{row['drops']:,}",
            f"{row['late']:,}",
            f"{row['mean_batch']:.1f}",
            f"{row['utilisation']:.1%}",
        ]
        for row in rows
    ]
    title = f"{rows[0]['queries']:,} queries of {facts['deadline_ms']:g} ms to {facts['subject']}"
    found = f"best possible with all arrivals known ({facts['best_by']}): {best:.4f} effective accuracy"
    document = {**facts, "best_possible": best, "policies": rows, "plots": [str(path) for path in plots]}
    output.result("simulate", document, table(title, columns, cells), found, *(f"wrote {path}" for path in plots))
