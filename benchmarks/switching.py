"""Model-Switching on a real server beside each of its models alone, deadline by deadline (the paper's Fig. 4b).

``python -m benchmarks switching`` serves three points of the network of ``traces``, whose largest takes milliseconds
(the shipped family's models take microseconds: there the front end decides, and the largest is never too slow). What
each attains at which rate is measured once; from that follow the plans for all deadlines, by effective accuracy. Then
every model alone, and switching, meet the same arrivals: load that twice rises from what the largest serves easily to
more than it can at all, and falls again. ``$SLOTOOL_BENCH_PLOTS`` names a folder for the plot.
``SLOTOOL_BENCH_SECONDS``: how long these arrivals last (10).
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np

from benchmarks.traces import Setting, arguments_of, prepared
from slotool.data import Dataset, load_dataset
from slotool.machine import machine_id
from slotool.planning.server_process import server_process
from slotool.process import bound_to, cores_by_preference
from slotool.reports.figure import Axis, Curve, Figure, Rows, percent, share_axis
from slotool.reports.plots import save_png
from slotool.rules.switching import EFFECTIVE_ACCURACY, LoadTest, SwitchingPlan
from slotool.workloads import ArrivalProcess, Poisson
from slotool.workloads.arrivals.recorded import RateTrace
from slotool.workloads.client.channels import TargetServer
from slotool.workloads.client.endpoint import Terms
from slotool.workloads.client.open_loop import LoadPlan, LocalRun
from slotool.workloads.requests import RequestLog

DEADLINES_S = (0.03, 0.045, 0.07, 0.1)
# Of what the largest point can serve: rates at which each is measured, and between which the load swings.
SHARES, LEAST, MOST = (0.2, 0.5, 0.8, 0.9, 1.0, 1.1, 1.2, 1.3, 1.45, 1.6), 0.2, 1.5
# How long each is measured, and how long the client waits for an answer: longer than every deadline.
MEASURED_S, TIMEOUT_S = 2.0, 10.0


def main() -> None:
    lasts_s = float(os.environ.get("SLOTOOL_BENCH_SECONDS", "10"))
    data = load_dataset("fashion-mnist")
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        setting = prepared(data, folder)
        grid = setting.profile.grid
        models = [grid.points[at].key for at in (0, len(grid.points) // 2, len(grid.points) - 1)]
        print(f"models {', '.join(models)}; the largest serves {setting.unit:.0f}/s", flush=True)
        measured = _measured(setting, data, models)
        swing = LEAST + (MOST - LEAST) * 0.5 * (1 - np.cos(np.linspace(0, 4 * np.pi, 200)))
        arrivals = RateTrace(swing, float(swing.mean()) * setting.unit)
        plans = [_plan(setting, models, measured, deadline_s) for deadline_s in DEADLINES_S]
        figures = {"switching": _switched(setting, data, arrivals, lasts_s, plans, folder)}
        figures |= {model: _alone(setting, data, arrivals, lasts_s, model) for model in models}
    if folder_of_plots := os.environ.get("SLOTOOL_BENCH_PLOTS"):
        _plot(setting, figures, Path(folder_of_plots))
    for at, deadline_s in enumerate(DEADLINES_S):
        best = max(models, key=lambda model: figures[model][at])
        ahead = 100 * (figures["switching"][at] - figures[best][at])
        shown = ", ".join(f"{name} {figures[name][at]:.4f}" for name in figures)
        print(f"{deadline_s * 1e3:.0f} ms: {shown}: {ahead:+.2f} points beside the best single model (target: 0)")
    print(json.dumps({"benchmark": "switching", "deadlines_s": DEADLINES_S, "effective_accuracy": figures,
                      "breakpoints": [plan.breakpoints for plan in plans]}))  # fmt: skip


@contextmanager
def _server(setting: Setting, policy: str, *more: str) -> Iterator[str]:
    with server_process([*arguments_of(setting, policy), *more]) as url, bound_to(cores_by_preference()[1:] or [0]):
        yield url


def _load(
    url: str, setting: Setting, data: Dataset, arrivals: ArrivalProcess, lasts_s: float, deadline_s: float | None
) -> RequestLog:
    plan = LoadPlan.draw(arrivals, lasts_s, data.test, seed=1)
    run = LocalRun(plan, TargetServer(url, "infer", setting.profile.subject, Terms(deadline_s), TIMEOUT_S))
    run.drive()
    return run.log()


def _measured(setting: Setting, data: Dataset, models: list[str]) -> dict[tuple[str, float], np.ndarray]:
    """By model and rate the latencies of all requests, without a deadline; of those not answered, the client's timeout.

    A plan is a JSON file, which knows no infinite p99."""
    figures = {}
    for model in models:
        with _server(setting, f"fixed@{model}") as url:
            for share in SHARES:
                log = _load(url, setting, data, Poisson(share * setting.unit), MEASURED_S, None)
                figures[model, share * setting.unit] = np.where(log.answered, log.latency_s, TIMEOUT_S)
    return figures


def _plan(
    setting: Setting, models: list[str], measured: dict[tuple[str, float], np.ndarray], deadline_s: float
) -> SwitchingPlan:
    grid = setting.profile.grid
    accuracy = {point.key: float(a) for point, a in zip(grid.points, grid.accuracy, strict=True)}
    loads = [
        LoadTest(model, 1, 1, rate, float(np.quantile(latency_s, 0.99)), float((latency_s <= deadline_s).mean()))
        for (model, rate), latency_s in measured.items()
    ]
    rates = dict.fromkeys(accuracy, 0.0) | _rates_by_effective_accuracy(loads, accuracy)
    subject = setting.profile.subject
    return SwitchingPlan(subject, deadline_s, 1, 1, rates, accuracy, tuple(loads), machine_id(), EFFECTIVE_ACCURACY)


def _rates_by_effective_accuracy(loads: Sequence[LoadTest], accuracy: Mapping[str, float]) -> dict[str, float]:
    """Per point the greatest rate tried up to which no less accurate point answers more correctly and in time.

    A point may miss more than a hundredth there, as long as its accuracy makes up for it (model-switching, §3: the
    controller maximises effective accuracy). Every point must have been tried at the same rates; 0 for one that is
    beaten at the lowest already.
    """
    figures = {(load.point, load.rate_per_s): accuracy[load.point] * load.attainment for load in loads}
    points = sorted({load.point for load in loads}, key=lambda point: accuracy[point])
    rates = sorted({load.rate_per_s for load in loads})
    greatest = dict.fromkeys(points, 0.0)
    for at, point in enumerate(points):
        for rate in rates:
            if any(figures[other, rate] > figures[point, rate] for other in points[:at]):
                break
            greatest[point] = rate
    return greatest


def _plot(setting: Setting, figures: Mapping[str, Sequence[float]], folder: Path) -> None:
    short = dict(zip(figures, ("switching", "small alone", "medium alone", "large alone"), strict=True))
    drawn = {short[name]: shares for name, shares in figures.items()}
    figure = _by_deadline(setting.profile.subject, DEADLINES_S, drawn, "benchmarks")
    save_png(figure, folder / "switching-deadlines.png")


def _by_deadline(
    name: str, deadlines_s: Sequence[float], figures: Mapping[str, Sequence[float]], source: str
) -> Figure:
    """Share of all requests answered correctly and in time, by deadline (paper, Fig. 4b).

    ``figures``: per policy, the first of which is drawn on top of the others, the share at each of ``deadlines_s``.
    """
    deadlines_ms = 1e3 * np.asarray(deadlines_s)
    shares = {policy: np.asarray(values, dtype=np.float64) for policy, values in figures.items()}
    names = [(*[""] * (len(deadlines_ms) - 1), policy) for policy in shares]
    curves = [
        Curve(
            policy, deadlines_ms, y, "dots and line", at, labels=names[at], labels_above=at in (0, 3), in_legend=False
        )
        for at, (policy, y) in enumerate(shares.items())
    ]
    return Figure(
        id="switching-deadlines",
        title=f"{name}: effective accuracy by deadline",
        caption="Share of all requests sent that were answered correctly and in time; the same arrivals for all.",
        source=source,
        x=Axis("deadline, ms"),
        y=share_axis("effective accuracy"),
        curves=(*curves[1:], curves[0]),
        table=Rows(
            ("policy", *(f"{at:g} ms" for at in deadlines_ms)),
            tuple((policy, *(percent(share, 2) for share in y)) for policy, y in shares.items()),
        ),
    )


def _switched(
    setting: Setting, data: Dataset, arrivals: ArrivalProcess, lasts_s: float, plans: list[SwitchingPlan], folder: Path
) -> list[float]:
    rows = []
    for plan in plans:
        path = folder / f"plan-{plan.deadline_s}.json"
        plan.save(path)
        with _server(setting, "switching", "--plan", str(path)) as url:
            log = _load(url, setting, data, arrivals, lasts_s, plan.deadline_s)
        rows.append(log.effective_accuracy)
        shares = ", ".join(f"{row['point']} {row['share']:.0%}" for row in log.points())
        print(f"switching at {plan.deadline_s * 1e3:.0f} ms, plan {plan.breakpoints}: {log.effective_accuracy:.4f} "
              f"({shares})", file=sys.stderr, flush=True)  # fmt: skip
    return rows


def _alone(setting: Setting, data: Dataset, arrivals: ArrivalProcess, lasts_s: float, model: str) -> list[float]:
    with _server(setting, f"fixed@{model}") as url:
        return [_load(url, setting, data, arrivals, lasts_s, d).effective_accuracy for d in DEADLINES_S]


if __name__ == "__main__":
    main()
