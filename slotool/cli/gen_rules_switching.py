"""``slotool gen-rules --method switching``: real servers under real load, point by point, ⟨R, T⟩ by ⟨R, T⟩."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from slotool.cli.server_process import server_process

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.data.dataset import Split
    from slotool.rules.switching import Load, SwitchingPlan
    from slotool.scheduling.batching import ControlGrid
    from slotool.tables import OperatingPoint

# Load tests that finding a point's rate takes, about, and seconds until a server is warm.
TESTS_PER_POINT, START_S = 7, 8.0
# Where the search for a point's rate begins: half of what it can do at its best batch, or what any front end can do.
FIRST_SHARE, FIRST_MAX_PER_S = 0.5, 500.0


@dataclass(frozen=True)
class SwitchingRequest:
    """What to find a plan for: files, the deadline, how long each load test lasts, the ⟨replicas, threads⟩ to try, and
    which data are sent."""

    artifact: Path
    outcomes: Path
    latency: Path
    deadline_s: float
    seconds: float
    shapes: tuple[tuple[int, int], ...]
    data: str
    seed: int


def gen_switching_plan(
    output: Output, asked: SwitchingRequest, out: Path, *, dry_run: bool, plots: Path | None = None
) -> None:
    """Measure, write and print the plan of the best ⟨R, T⟩ that this machine's cores allow."""
    from slotool.cli.output import duration
    from slotool.data import load_dataset
    from slotool.rules.switching import best_configuration

    name, grid = _grid(asked)
    shapes = asked.shapes
    tests = len(shapes) * len(grid.points) * TESTS_PER_POINT
    expected_s = tests * (asked.seconds + 1.0) + len(shapes) * len(grid.points) * START_S
    said = f"{name}: {len(grid.points)} points on {_words(shapes)}, about {tests} load tests, {duration(expected_s)}"
    if dry_run:
        output.result("gen-rules", {"tests": tests, "seconds": expected_s, "configurations": shapes}, said)
        return
    output.note(said)
    split = load_dataset(asked.data).test
    with output.progress("load tests", total=tests) as progress:
        plans = [_plan(asked, name, grid, split, r, t, progress.advance) for r, t in shapes]
    plan = best_configuration(plans)
    plan.save(out)
    _report(output, plan, plans, out, [] if plots is None else _draw(plan, out, plots))


def _grid(asked: SwitchingRequest) -> tuple[str, ControlGrid]:
    from slotool.elastic import load_model
    from slotool.scheduling import ControlSpace
    from slotool.scheduling.batching import ControlGrid
    from slotool.tables import LatencyTable, OutcomeTable

    model = load_model(str(asked.artifact))
    tables = LatencyTable.load(asked.latency), OutcomeTable.load(asked.outcomes)
    grid = ControlGrid(ControlSpace.of_tables(model.name, model.points, *tables, co_runners="", replicas=1))
    grid.require_deadline(asked.deadline_s * 1e6)
    return model.name, grid


def _plan(
    asked: SwitchingRequest,
    name: str,
    grid: ControlGrid,
    split: Split,
    replicas: int,
    threads: int,
    advance: Callable[[], None],
) -> SwitchingPlan:
    from slotool.machine import machine_id
    from slotool.rules.switching import SwitchingPlan, greatest_rate

    rates: dict[str, float] = {}
    loads: list[Load] = []
    for row, point in enumerate(grid.points):
        first_per_s = min(FIRST_SHARE * replicas * float(grid.best_rate_per_s[row]), FIRST_MAX_PER_S)
        with _served(asked, point, replicas, threads, split, advance) as measure:
            rates[point.key], seen = greatest_rate(measure, first_per_s, asked.deadline_s)
        loads += seen
    accuracy = {point.key: float(a) for point, a in zip(grid.points, grid.accuracy, strict=True)}
    return SwitchingPlan(name, asked.deadline_s, replicas, threads, rates, accuracy, tuple(loads), machine_id())


@contextmanager
def _served(
    asked: SwitchingRequest,
    point: OperatingPoint,
    replicas: int,
    threads: int,
    split: Split,
    advance: Callable[[], None],
) -> Iterator[Callable[[float], Load]]:
    """A server that answers at ``point`` alone, and what measures it at a rate."""
    from slotool.rules.switching import Load
    from slotool.workloads import Poisson
    from slotool.workloads.channels import Target, ask_first_model
    from slotool.workloads.client import LoadPlan, LocalRun
    from slotool.workloads.endpoint import Terms

    tables = ["--latency", str(asked.latency), "--outcomes", str(asked.outcomes), "--policy", f"fixed@{point.key}"]
    workers = ["--engine", "local", "--replicas", str(replicas), "--threads", str(threads)]
    with server_process([str(asked.artifact), *tables, *workers]) as url:
        target = Target(url, "infer", ask_first_model(url, "infer"), Terms(asked.deadline_s, None, None, None), 10.0)

        def measure(rate_per_s: float) -> Load:
            run = LocalRun(LoadPlan.draw(Poisson(rate_per_s), asked.seconds, split, asked.seed), target)
            run.drive()
            advance()
            log = run.log()
            return Load(point.key, replicas, threads, rate_per_s, log.tail_of_all_s(0.99), float(log.in_time.mean()))

        yield measure


def shapes_of(text: str | None) -> tuple[tuple[int, int], ...]:
    """``1x1,2x1`` as ⟨replicas, threads⟩; without a text, powers of two that the cores given to this process allow."""
    from slotool.cli.options import cores_given

    cores = cores_given(None)
    if text is None:
        return tuple((r, t) for r in _powers(cores) for t in _powers(cores) if r * t <= cores)
    try:
        shapes = tuple((int(r), int(t)) for r, _, t in (part.partition("x") for part in text.split(",")))
    except ValueError:
        shapes = ((0, 0),)
    if min(min(shape) for shape in shapes) < 1:
        raise typer.BadParameter(
            f"{text!r} is no list like 1x1,2x1 (replicas x threads)", param_hint="--configurations"
        )
    return shapes


def _powers(most: int) -> list[int]:
    return [2**i for i in range(most.bit_length()) if 2**i <= most]


def _words(shapes: tuple[tuple[int, int], ...]) -> str:
    return "⟨replicas, threads⟩ " + ", ".join(f"⟨{r}, {t}⟩" for r, t in shapes)


def _draw(plan: SwitchingPlan, out: Path, folder: Path) -> list[Path]:
    from slotool.reports.plots import save_png
    from slotool.reports.series.switching import tail_against_load

    figure = tail_against_load(plan, out.name)
    folder.mkdir(parents=True, exist_ok=True)
    save_png(figure, folder / f"{figure.id}.png")
    return [folder / f"{figure.id}.png"]


def _report(output: Output, plan: SwitchingPlan, plans: list[SwitchingPlan], out: Path, plots: list[Path]) -> None:
    from slotool.cli.output import table

    columns = ["point", "accuracy", *(f"⟨{other.replicas}, {other.threads}⟩, requests/s" for other in plans)]
    cells: list[list[Any]] = [
        [point, f"{plan.accuracy[point]:.4f}", *(f"{other.rates_per_s[point]:,.0f}" for other in plans)]
        for point in plan.rates_per_s
    ]
    title = f"{plan.subject}: rates up to which P99 ≤ {plan.deadline_s * 1e3:g} ms"
    stairs = "; ".join(f"up to {rate:,.0f}/s {point}" for rate, point in plan.stairs)
    said = f"plan on ⟨{plan.replicas}, {plan.threads}⟩: {stairs}; beyond that the fastest"
    document = {"out": str(out), "plan": plan.document(), "plots": [str(path) for path in plots]}
    wrote = [f"wrote {path}" for path in (out, *plots)]
    output.result("gen-rules", document, table(title, columns, cells), said, *wrote)
