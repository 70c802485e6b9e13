"""Simulations of SuperServe's supernet over time: what SlackFit chooses, and the slack that queries have left."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from benchmarks.reproduction.paper import Found
from benchmarks.reproduction.plots import curves
from benchmarks.reproduction.supernets import (
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
from benchmarks.reproduction.workspace import Workspace
from slotool.reports.figure import duration, percent
from slotool.simulation.query_log import Dynamics, QueryLog, dynamics

# Bins of a time course; and the part of them that is called the busiest and the calmest.
BINS, PART = 60, 0.25
# Buckets of latency, evenly sized, as SlackFit has them.
BUCKETS = 8
# What `simulate` says of each policy, by its name.
Figures: TypeAlias = Mapping[str, Mapping[str, Any]]


def _simulated(
    workspace: Workspace, service: Service, arrivals: str, policies: Sequence[str]
) -> tuple[Figures, QueryLog]:
    """Figures of every policy on ``arrivals``, a file in the workspace, and what became of every query."""
    log = arrivals.replace("arrivals", "queries" if policies == ("slackfit",) else "queries-by-policy", 1)
    document = workspace.slotool(
        f"simulate {service.tables} --arrivals {arrivals} --deadline-ms {service.deadline_ms:g} "
        f"--workers {service.workers} --policies {','.join(policies)} --no-noise --optimum bound --log {log}"
    )
    return {row["policy"]: row for row in document["policies"]}, QueryLog.load(workspace.path(log))


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
    results = {name: _simulated(workspace, service, file, ("slackfit",)) for name, file in files.items()}
    courses = {name: dynamics(log, "slackfit", BINS) for name, (_, log) in results.items()}
    summaries = {name: figures["slackfit"] for name, (figures, _) in results.items()}
    parts = {name: (_part(course, busiest=False), _part(course, busiest=True)) for name, course in courses.items()}
    means = [summary["accuracy"] for summary in summaries.values()]
    follows = [calm[0] > busy[0] and calm[1] < busy[1] for calm, busy in parts.values()]
    shown = next(reversed(courses))
    (calm_accuracy, calm_batch), (busy_accuracy, busy_batch) = parts[shown]
    return Found(
        says=f"{shown}: accuracy {percent(calm_accuracy)} with batches of {calm_batch:.1f} in the calmest quarter of "
        f"the time, {percent(busy_accuracy)} with {busy_batch:.1f} in the busiest; mean accuracy "
        f"{', '.join(f'{percent(mean)} ({name})' for name, mean in zip(summaries, means, strict=True))}",
        agrees=all(follows) and bool(np.all(np.diff(means) < 0)),
        columns=("load", "attainment", "accuracy", "calmest quarter: accuracy", "batch", "busiest: accuracy", "batch"),
        rows=[
            (name, percent(summaries[name]["attainment"], 2), percent(mean),
             *(cell for accuracy, batch in parts[name] for cell in (percent(accuracy), f"{batch:.1f}")))
            for name, mean in zip(summaries, means, strict=True)
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
    policies = ("slackfit", *clippers(service))
    figures, log = _simulated(workspace, service, file, policies)
    shortest_us = 1e6 * float(service.latency_s.min())
    rows, unserved, plotted = [], {}, {}
    for policy in policies:
        queries = log.of_policy(policy)
        waited_s = (queries["started_s"] - queries["arrival_s"]).to_numpy()
        served = np.isfinite(waited_s)
        slack_us = 1e6 * (queries["deadline_s"].to_numpy() - waited_s)[served]
        name = policy.replace("fixed@", "")
        unserved[name] = float(1 - (served.sum() - (slack_us < shortest_us).sum()) / len(served))
        quantiles = np.quantile(slack_us, (0.1, 0.5, 0.9)) if served.any() else np.full(3, np.nan)
        plotted[name] = (np.sort(slack_us) / 1e3, np.linspace(0, 1, len(slack_us)))
        cells = (percent(figures[policy]["attainment"], 2), *(duration(us * 1e-6) for us in quantiles))
        rows.append((name, *cells, percent(unserved[name], 2)))
    ours, *_, largest = unserved.values()
    return Found(
        says=f"of {duration(deadline_us * 1e-6)} until the deadline SlackFit leaves {percent(ours, 2)} of the queries "
        f"less than the {duration(shortest_us * 1e-6)} that the quickest call takes, the most accurate subnet alone "
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
