"""Simulations of SuperServe's supernet over time: what SlackFit chooses, and the slack that queries have left."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from slotool.reports.text import duration, percent
from slotool.reproduction.paper import Found
from slotool.reproduction.plots import curves
from slotool.reproduction.supernets import (
    CV2,
    LOADS,
    TRACE,
    Service,
    arrivals_file,
    clippers,
    lasting,
    ramp,
    service_of,
)
from slotool.reproduction.workspace import Workspace
from slotool.scheduling.batching import ControlGrid, make_policy, read_profile
from slotool.simulation import Scenario, ServiceTimes, SimulationResult, simulate
from slotool.simulation.dynamics import Dynamics, dynamics
from slotool.tables import LatencyTable, OutcomeTable
from slotool.workloads import ArrivalTable

# Bins of a time course; and the part of them that is called the busiest and the calmest.
BINS, PART = 60, 0.25
# Buckets of latency, evenly sized, as SlackFit has them.
BUCKETS = 8


@dataclass(frozen=True)
class Simulations:
    """Policies on ``arrivals``, a file in the workspace, as ``slotool simulate`` runs them."""

    workspace: Workspace
    service: Service
    arrivals: str

    @cached_property
    def _grid(self) -> ControlGrid:
        latencies, outcomes = self.service.tables.split(" --outcomes ")
        return read_profile(LatencyTable.load(latencies), OutcomeTable.load(outcomes)).grid

    def run(self, policy: str) -> SimulationResult:
        times_s = ArrivalTable.load(self.workspace.path(self.arrivals)).times_s
        scenario = Scenario.of(times_s, self.service.deadline_ms / 1e3, self.service.workers)
        grid = self._grid
        chosen = make_policy(policy, grid, self.service.deadline_ms * 1e3)
        return simulate(chosen, scenario, ServiceTimes.planned(grid))


def control_choices(workspace: Workspace) -> Found:
    """Points × batch sizes by bucket of latency."""
    service = service_of(workspace)
    latency_s = service.latency_s.ravel()
    edges_s = np.linspace(latency_s.min(), latency_s.max(), BUCKETS + 1)
    counts = np.histogram(latency_s, edges_s)[0]
    half = BUCKETS // 2
    return Found(
        says=f"of {len(latency_s)} choices {counts[:half].sum()} lie in the lower half of the latencies and "
        f"{counts[half:].sum()} in the upper half",
        agrees=bool(counts[:half].sum() > counts[half:].sum()),
        columns=("latency", "choices of subnet and batch size"),
        rows=[
            (f"{duration(low)} to {duration(high)}", f"{count}")
            for low, high, count in zip(edges_s[:-1], edges_s[1:], counts, strict=True)
        ],
        data=f"{service.data}; {BUCKETS} evenly sized buckets",
    )


def bursts_over_time(workspace: Workspace) -> Found:
    """As many queries as the largest subnet can serve, and more or less variation."""
    service = service_of(workspace)
    rate = service.capacity(len(service.points) - 1)
    loads = {f"CV² {cv2}": f"--kind bursty --rate {rate:.0f} --cv2 {cv2}" for cv2 in (CV2[0], CV2[-1])}
    lasts = f" --duration {lasting(workspace, rate)}"
    return _dynamics(workspace, service, {name: options + lasts for name, options in loads.items()}, "Bursty loads")


def ramps_over_time(workspace: Workspace) -> Found:
    service = service_of(workspace)
    slow, fast = (ramp(workspace, service, share, CV2[-1]) for share in (0.5, 0.05))
    return _dynamics(workspace, service, {"slow rise": slow, "fast rise": fast}, "Loads that rise")


def trace_over_time(workspace: Workspace) -> Found:
    trace, service = workspace.data_set([TRACE]), service_of(workspace)
    rate = LOADS[1] * service.capacity(len(service.points) - 1)
    options = f"--trace {trace} --rate {rate:.0f} --duration {lasting(workspace, rate)}"
    return _dynamics(workspace, service, {"the trace": options}, "Microsoft Azure Functions, 2019")


def _dynamics(workspace: Workspace, service: Service, loads: Mapping[str, str], title: str) -> Found:
    """What SlackFit chooses where the load is highest and lowest. ``loads``: by name options of ``generate arrivals``,
    from the easiest to the hardest."""
    files = {name: arrivals_file(workspace, options) for name, options in loads.items()}
    results = {name: Simulations(workspace, service, file).run("slackfit") for name, file in files.items()}
    courses = {name: dynamics(result, BINS) for name, result in results.items()}
    parts = {name: (_part(course, busiest=False), _part(course, busiest=True)) for name, course in courses.items()}
    means = [result.summary()["accuracy"] for result in results.values()]
    follows = [calm[0] >= busy[0] and calm[1] <= busy[1] for calm, busy in parts.values()]
    shown = next(reversed(courses))
    (calm_accuracy, calm_batch), (busy_accuracy, busy_batch) = parts[shown]
    return Found(
        says=f"{shown}: accuracy {percent(calm_accuracy)} with batches of {calm_batch:.1f} in the calmest quarter of "
        f"the time, {percent(busy_accuracy)} with {busy_batch:.1f} in the busiest; mean accuracy "
        f"{', '.join(f'{percent(mean)} ({name})' for name, mean in zip(results, means, strict=True))}",
        agrees=all(follows) and bool(np.all(np.diff(means) <= 0)),
        columns=("load", "attainment", "accuracy", "calmest quarter: accuracy", "batch", "busiest: accuracy", "batch"),
        rows=[
            (name, percent(results[name].summary()["attainment"], 2), percent(mean),
             *(cell for accuracy, batch in parts[name] for cell in (percent(accuracy), f"{batch:.1f}")))
            for name, mean in zip(results, means, strict=True)
        ],
        data=f"{service.data}; {service.workers} simulated workers, deadline {service.deadline_ms:g} ms, SlackFit",
        plot=curves(
            title,
            "Accuracy that SlackFit serves, by the time since the load began.",
            ("seconds", "linear"),
            ("accuracy", "share"),
            {name: _known(course) for name, course in courses.items()},
            style="line",
        ),
    )  # fmt: skip


def _known(course: Dynamics) -> tuple[np.ndarray, np.ndarray]:
    served = np.isfinite(course.accuracy)
    return course.begin_s[served], course.accuracy[served]


def _part(course: Dynamics, *, busiest: bool) -> tuple[float, float]:
    """Mean accuracy and batch size of the bins with the most, or the fewest, arrivals."""
    served = np.flatnonzero(np.isfinite(course.accuracy))
    order = served[np.argsort(course.arrived_per_s[served], kind="stable")]
    count = max(1, round(PART * len(order)))
    chosen = order[-count:] if busiest else order[:count]
    return float(course.accuracy[chosen].mean()), float(course.batch[chosen].mean())


def slack_left(workspace: Workspace) -> Found:
    """Slack of queries as they are served, by SlackFit and by fixed points."""
    service = service_of(workspace)
    deadline_us, rate = service.deadline_ms * 1e3, LOADS[1] * service.capacity(len(service.points) - 1)
    file = arrivals_file(workspace, f"--rate {rate:.0f} --duration {lasting(workspace, rate)}")
    simulations = Simulations(workspace, service, file)
    least_us = 1e6 * float(service.latency_s.min())
    rows, unserved, plotted = [], {}, {}
    for policy in ("slackfit", *clippers(service)):
        result = simulations.run(policy)
        served = result.row >= 0
        slack_us = result.scenario.deadline_us[served] - result.started_us[served]
        name = policy.replace("fixed@", "")
        unserved[name] = float(1 - (served.sum() - (slack_us < least_us).sum()) / len(served))
        quantiles = np.quantile(slack_us, (0.1, 0.5, 0.9)) if served.any() else np.full(3, np.nan)
        plotted[name] = (np.sort(slack_us) / 1e3, np.linspace(0, 1, len(slack_us)))
        cells = (percent(result.summary()["attainment"], 2), *(duration(us * 1e-6) for us in quantiles))
        rows.append((name, *cells, percent(unserved[name], 2)))
    ours, *_, largest = unserved.values()
    return Found(
        says=f"of {duration(deadline_us * 1e-6)} until the deadline SlackFit leaves {percent(ours, 2)} of the queries "
        f"less than the {duration(least_us * 1e-6)} that the quickest call takes, the most accurate subnet alone "
        f"{percent(largest, 2)}",
        agrees=ours <= largest and ours < 1e-2,
        columns=("policy", "attainment", "slack as served: p10", "p50", "p90", "no slack left for any call"),
        rows=rows,
        data=f"{service.data}; {service.workers} simulated workers",
        plot=curves(
            "Slack of queries as they are served",
            "Share of the queries that were served with at most so much time left until their deadline.",
            ("slack, ms", "linear"),
            ("share of queries", "share"),
            {name: (x[:: max(1, len(x) // 200)], y[:: max(1, len(y) // 200)]) for name, (x, y) in plotted.items()},
            style="line",
        ),
    )
