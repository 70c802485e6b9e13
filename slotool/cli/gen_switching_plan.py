"""``slotool gen-switching-plan``: up to which arrival rate each operating point keeps a deadline."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import DataName, Force, Json, Out, Seed, panel, parse_duration, plots_folder

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.rules.switching import SwitchingPlan

MIN_TEST_S = 0.5
_search = panel("Search")


def register(app: typer.Typer) -> None:
    app.command("gen-switching-plan")(gen_switching_plan)


def gen_switching_plan(
    artifact: Annotated[Path, typer.Argument(help="The artifact to serve.")],
    out: Out,
    outcomes: Annotated[Path, typer.Option("--outcomes", help="Its outcome table.")],
    latency: Annotated[Path, typer.Option("--latency", help="Its latency table, over batch sizes where it may batch.")],
    deadline_ms: Annotated[float, typer.Option("--deadline-ms", min=0.1, help="Deadline of every request.")],
    by: Annotated[
        str,
        typer.Option("--by", help="A point serves while it keeps the deadline at p99, or by effective-accuracy."),
    ] = "p99",
    configurations: Annotated[
        str | None,
        _search("--configurations", help="Replicas x threads to try: 1x1,2x1.", show_default="what the cores allow"),
    ] = None,
    duration: Annotated[str, _search("--duration", help="How long each load test lasts.")] = "4s",
    data: DataName = "auto",
    dry_run: Annotated[
        bool, _search("--dry-run", help="Print the number of load tests and the expected time; start no server.")
    ] = False,
    plots: Annotated[
        Path | None,
        typer.Option("--plots", callback=plots_folder, help="Folder for plots (PNG) of the plan and of P99 by load."),
    ] = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Find by load tests which operating point may serve which load.

    Real servers are started to find up to which arrival rate each point keeps the deadline. By effective-accuracy a
    point serves as long as no less accurate one answers more requests correctly and in time. serve --policy switching
    --plan follows the plan.

    Example: slotool gen-switching-plan family --outcomes family-outcomes.parquet --latency family-latency.parquet
    --deadline-ms 20 -o plan.json
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli import output as shown
    from slotool.planning import PlanSearch, possible_configurations
    from slotool.rules.switching import CRITERIA, best_configuration

    refuse_existing(out, force)
    if by not in CRITERIA:
        raise typer.BadParameter(f"{by!r} is neither {' nor '.join(CRITERIA)}", param_hint="--by")
    test_s = parse_duration(duration, "--duration")
    if test_s is None or test_s < MIN_TEST_S:
        raise typer.BadParameter(f"{duration} is shorter than {MIN_TEST_S:g} s", param_hint="--duration")
    tried = _configurations(configurations) if configurations else possible_configurations()
    search = PlanSearch(artifact, outcomes, latency, deadline_ms / 1e3, test_s, tried, data, seed, by)
    output = shown.Output(as_json=json)
    said = (
        f"{search.subject}: {search.points} points on {_words(tried)}, about {search.load_tests} load tests, "
        f"{shown.duration(search.expected_s)}"
    )
    if dry_run:
        document = {"load_tests": search.load_tests, "seconds": search.expected_s, "configurations": tried}
        output.result("gen-switching-plan-dry-run", document, said)
        return
    output.note(said)
    with output.progress("load tests", total=search.load_tests) as progress:
        plans = search.run(progress.advance)
    plan = best_configuration(plans)
    plan.save(out)
    _report(output, plan, plans, out, [] if plots is None else _draw(plan, out, plots))


def _configurations(text: str) -> tuple[tuple[int, int], ...]:
    """``1x1,2x1`` as ⟨replicas, threads⟩."""
    try:
        found = tuple((int(r), int(t)) for r, _, t in (part.partition("x") for part in text.split(",")))
    except ValueError:
        found = ((0, 0),)
    if min(min(configuration) for configuration in found) < 1:
        raise typer.BadParameter(
            f"{text!r} is no list like 1x1,2x1 (replicas x threads)", param_hint="--configurations"
        )
    return found


def _words(configurations: tuple[tuple[int, int], ...]) -> str:
    return "⟨replicas, threads⟩ " + ", ".join(f"⟨{r}, {t}⟩" for r, t in configurations)


def _draw(plan: SwitchingPlan, out: Path, folder: Path) -> list[Path]:
    from slotool.reports.plots import save_plots
    from slotool.reports.series.switching import plan_figures

    return save_plots(plan_figures(plan, out.name), folder)


def _report(output: Output, plan: SwitchingPlan, plans: list[SwitchingPlan], out: Path, plots: list[Path]) -> None:
    from slotool.cli.output import table
    from slotool.rules.switching import EFFECTIVE_ACCURACY

    columns = ["point", "accuracy", *(f"⟨{other.replicas}, {other.threads}⟩, requests/s" for other in plans)]
    cells: list[list[Any]] = [
        [point, f"{plan.accuracy[point]:.4f}", *(f"{other.rates_per_s[point]:,.0f}" for other in plans)]
        for point in plan.rates_per_s
    ]
    limit = f"P99 ≤ {plan.deadline_s * 1e3:g} ms"
    if plan.by == EFFECTIVE_ACCURACY:
        limit = f"no faster point is right more often within {plan.deadline_s * 1e3:g} ms"
    title = f"{plan.subject}: rates up to which {limit}"
    steps = "; ".join(f"up to {rate:,.0f}/s {point}" for rate, point in plan.breakpoints)
    said = f"plan on ⟨{plan.replicas}, {plan.threads}⟩: {steps}; beyond that the fastest"
    document = {"out": str(out), "plan": plan.document(), "plots": [str(path) for path in plots]}
    wrote = [f"wrote {path}" for path in (out, *plots)]
    output.result("gen-switching-plan", document, table(title, columns, cells), said, *wrote)
