"""Workers of a real server die under load: SuperServe's Figure 11a, served and not simulated."""

from __future__ import annotations

from benchmarks.reproduction.paper import Found
from benchmarks.reproduction.workspace import Workspace
from slotool.artifacts.bundle import shipped_artifact
from slotool.reports.figure import duration, percent
from slotool.tables import LatencyTable

REPLICAS = 2
# Of what all workers serve at the most accurate subnet, one example at a time; and at most so many requests per second,
# which one front end on a core that it shares with the client answers.
LOAD, MAX_PER_S = 0.6, 300.0
# Calls of a millisecond at most leave the rest of it to the front end and the client.
DEADLINE_MS = 50.0
HELD = 0.999


def served_deaths(workspace: Workspace) -> Found:
    """The second of two workers dies halfway and stays dead; SlackFit beside the most accurate subnet alone."""
    supernet = str(shipped_artifact("supernet").path)
    workspace.slotool(
        f"profile points {supernet} -o served-latency.parquet --co-runners 0 --batch-size 1,2,4,8 --threads 1 "
        f"--max-seconds-per-item {workspace.pick('1', '10')}"
    )
    points = workspace.slotool(f"evaluate {supernet} -o served-outcomes.parquet --data digits --repeats 1")["points"]
    best = max(points, key=lambda point: point["accuracy"])["version"]
    rows = LatencyTable.load(workspace.path("served-latency.parquet")).where(status="ok", batch_size=1).statistics()
    latency_s = float(rows.loc[rows["point"] == best, "median_s"].iloc[0])
    rate, seconds = min(MAX_PER_S, LOAD * REPLICAS / latency_s), workspace.pick(8, 60)
    tables = "--outcomes served-outcomes.parquet --latency served-latency.parquet"
    workspace.slotool(
        f"generate arrivals -o served-arrivals.parquet --kind bursty --cv2 2 --rate {rate:.0f} --duration {seconds}s "
        f"--seed {workspace.seed}"
    )
    figures = {}
    for name, policy in (("slackfit", "slackfit"), ("the most accurate subnet", f"fixed@{best}")):
        figures[name] = workspace.loaded(
            f"{supernet} {tables} --engine local --replicas {REPLICAS} --allow-faults --deadline-ms {DEADLINE_MS:g} "
            f"--policy {policy}",
            f"loadtest URL --data digits --arrivals served-arrivals.parquet --deadline-ms {DEADLINE_MS:g} "
            f"-o requests-{policy.partition('@')[0]}.parquet --faults '{seconds / 2:g}s:kill 1 for {seconds}s'",
        )
    ours, (fault,) = figures["slackfit"], figures["slackfit"]["faults"]
    return Found(
        says=f"with one of {REPLICAS} workers killed halfway SlackFit answers {percent(ours['deadline_meet_rate'], 2)} "
        f"of {ours['requests']:,} requests in time ({percent(fault['attainment_worst'] or 0.0, 2)} in the worst second "
        f"after it), the most accurate subnet alone "
        f"{percent(figures['the most accurate subnet']['deadline_meet_rate'], 2)}",
        agrees=ours["deadline_meet_rate"] >= HELD,
        columns=("served by", "requests", "in time", "P99", "before the death", "after it", "worst second after it"),
        rows=[
            (
                name,
                f"{document['requests']:,}",
                percent(document["deadline_meet_rate"], 2),
                "–" if document["p99_s"] is None else duration(document["p99_s"]),
                *(_share(document["faults"][0][f"attainment_{when}"]) for when in ("before", "after", "worst")),
            )
            for name, document in figures.items()
        ],
        data=f"the shipped supernet of digits on a real server of {REPLICAS} worker processes, {rate:.0f} requests/s "
        f"of CV² 2 for {seconds} s, deadline {DEADLINE_MS:g} ms; latencies from when a request was due",
    )


def _share(value: float | None) -> str:
    return "–" if value is None else percent(value, 2)
