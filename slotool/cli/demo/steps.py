"""What the demo shows, in order: the commands that a user would type, and the figures picked from what they print."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Document = Mapping[str, Any]
Figures = Mapping[str, str]

DEADLINE_MS = 50
# The user's own design at the size that is predicted, and the image size.
WANTED, SHAPE = "own_networks:wanted", "3,96,96"
# Peak load by what one worker serves of the most accurate model, and what a client in Python sends on time.
PEAK_OF_A_WORKER, PEAK_PER_S = 1.1, 400.0
LOAD_S = 6
# With fewer no plan could show an attainment of 0.99, on however slow a machine.
MIN_ARRIVALS = 500


@dataclass(frozen=True)
class Sizes:
    """Amounts of training and measuring.

    ``calibration``: own networks that are measured. ``own_epochs``: passes over the three own models' training data, at
    most. ``examples``: test examples that the SLO-NN answers.
    """

    epochs: int = 3
    examples: int = 1000
    calibration: int = 10
    own_epochs: int = 4


@dataclass(frozen=True)
class Step:
    """One command: of slotool, or, where it begins with ``python``, of the user.

    ``URL`` among its arguments becomes the address of a server of ``served`` that runs while it does, and after the
    share ``worker_killed_at`` of the load one of its workers is killed. ``prepare`` writes into the run folder what a
    user would write by hand. ``figures`` picks from the step's JSON document, and the run folder, what the closing
    table shows. Commands before ``&``, none of them timed, run at the same time as the last one.
    """

    title: str
    command: str
    figures: Callable[[Document, Path], Figures] = lambda document, folder: {}
    prepare: Callable[[Path], None] = lambda folder: None
    served: str = ""
    worker_killed_at: float | None = None


def walkthrough(tate: str, sizes: Sizes, seed: int) -> Sequence[Step]:
    """The steps in order. ``tate``: where the shipped set of many labels lies."""
    return (
        Step("look at the machine", "doctor", _machine),
        *_many_labels(tate, sizes, seed),
        *_own_network(sizes, seed),
        *_own_models(sizes, seed),
        Step("draw the report", "report . -o report.html", lambda document, folder: _report(document)),
    )


def _many_labels(tate: str, sizes: Sizes, seed: int) -> Sequence[Step]:
    """An SLO-NN of 16,455 labels computes the few output nodes that an input needs."""
    return (
        Step(
            "train a network of 16,455 labels, and three models of your own",
            f"python own_networks.py --epochs {sizes.own_epochs} & "
            f"train xmc -o tate --data {tate} --epochs {sizes.epochs} --threads 1 --seed {seed}",
        ),
        Step(
            "learn which labels an input needs",
            # The ranker that --ranker auto chooses on this data.
            f"build-tables tate -o slo-nn --data {tate} --ranker clusters --seed {seed}",
            _chosen_nodes,
        ),
        Step(
            "answer its test examples by those",
            f"evaluate slo-nn -o slo-nn-outcomes.parquet --data {tate} --limit {sizes.examples}",
        ),
    )


def _own_network(sizes: Sizes, seed: int) -> Sequence[Step]:
    """A design of one's own: a few sizes are measured, another one is predicted, and then measured to compare."""
    measure = f"--threads 1 --seed {seed}"
    return (
        Step(
            "capture eleven networks of your own",
            f"capture --torch {WANTED} --input-shape {SHAPE} -o wanted.jsonl & "
            f"capture --torch=own_networks:net{{0..9}} --input-shape {SHAPE} -o own.jsonl",
        ),
        Step(
            f"measure {sizes.calibration} of them",
            f"calibrate own.jsonl {measure} --samples {sizes.calibration} --minutes 1 --out predictor --keep-anyway",
            _calibrated,
        ),
        Step("predict one never run", "predict predictor --graph wanted.jsonl", _predicted),
        Step("measure it, to compare", f"profile solo wanted.jsonl {measure} -o wanted.parquet", _measured),
    )


def _own_models(sizes: Sizes, seed: int) -> Sequence[Step]:
    """Three ONNX files: certified, planned, and served while the load doubles and a worker dies."""
    versions = " ".join(f"{name}={name}.onnx" for name in ("small", "medium", "large"))
    tables = "latency.parquet --outcomes outcomes.parquet"
    promise = f"--deadline-ms {DEADLINE_MS} --attainment 0.99 --min-accuracy 0.9"
    return (
        Step(
            "make them versions of one service",
            f"family {versions} --data held-out.npz -o family --outcomes outcomes.parquet --latency latency.parquet "
            "--batch-size 1,2,4,8 --repeats 1",
            _versions,
        ),
        Step(
            "certify routing rules",
            "gen-rules outcomes.parquet -o rules.json --tolerances 0:0.05:0.01 --tolerance-kind absolute "
            "--objective cost --confidence 0.95",
            _ruled,
        ),
        Step(
            "draw a load that doubles",
            f"generate arrivals --trace load.csv LOAD -o load.parquet --seed {seed}",
            prepare=_write_load,
        ),
        Step(
            f"plan workers for {DEADLINE_MS} ms",
            # One policy: each is compiled when it is first used.
            f"plan {tables} --arrivals load.parquet {promise} --policies slackfit --artifact family -o service.toml",
            _planned,
        ),
        Step(
            "serve it, and kill a worker",
            f"loadtest URL --data held-out.npz --arrivals load.parquet --deadline-ms {DEADLINE_MS} -o requests.parquet",
            _loaded,
            served="--config service.toml --engine local --replicas 2",
            worker_killed_at=0.75,
        ),
    )


def _write_load(folder: Path) -> None:
    """Relative rates of the load: it doubles after half the time."""
    (folder / "load.csv").write_text("rate_per_s\n1\n1\n2\n2\n")


def load_options(folder: Path) -> str:
    """Return options of a load whose second half exceeds what one worker serves by the most accurate model alone.

    It lasts ``LOAD_S``, or as long as the arrivals take that a plan needs.
    """
    rate_per_s = _mean_rate_per_s(folder)
    return f"--rate {rate_per_s:g} --duration {max(LOAD_S, math.ceil(MIN_ARRIVALS / rate_per_s))}s"


def load_s(folder: Path) -> float:
    """Seconds of that load."""
    from slotool.workloads import ArrivalTable

    return float(ArrivalTable.load(folder / "load.parquet").times_s[-1])


def _mean_rate_per_s(folder: Path) -> float:
    from slotool.tables import LatencyTable

    statistics = LatencyTable.load(folder / "latency.parquet").where(status="ok", batch_size=1).statistics()
    slowest_s = float(statistics["median_s"].max())
    return round(min(PEAK_OF_A_WORKER / slowest_s, PEAK_PER_S) * 0.75, 1)


def _machine(document: Document, folder: Path) -> Figures:
    machine = document["machine"]
    return {"machine": f"{machine['cpu']}, {machine['cores_given']} cores"}


def _chosen_nodes(document: Document, folder: Path) -> Figures:
    """The point that keeps the loss promised by default, beside PyTorch and as many of the most popular labels."""
    from slotool.cli.output import duration

    points = {point["point"]: point for point in document["points"]}
    found = points[document["promise"]["point"]]
    every, torch_us = points["full"], document["torch_us"]
    return {
        "all labels, PyTorch": f"accuracy {every['accuracy']:.4f}, {duration(torch_us * 1e-6)}",
        f"{found['nodes']} labels chosen by the input": f"accuracy {found['accuracy']:.4f}, "
        f"{duration(found['latency_us'] * 1e-6)}, {torch_us / found['latency_us']:.0f} × sooner",
        f"the {found['nodes']} most popular labels": f"accuracy {found['static_accuracy']:.4f}",
    }


def _calibrated(document: Document, folder: Path) -> Figures:
    error = document["predictors"].get(document["chosen"], {}).get("held_out_mape")
    return {"each held out": f"{error:.1%} off on average"} if error is not None else {}


def _predicted(document: Document, folder: Path) -> Figures:
    from slotool.cli.output import duration

    found = document["predictions"][0]
    latency = duration(found["latency_s"])
    if found["low_s"] is None:
        return {"predicted": f"{latency} (no interval: {found['no_interval']})"}
    return {"predicted": f"{latency} (90 %: {duration(found['low_s'])} to {duration(found['high_s'])})"}


def _measured(document: Document, folder: Path) -> Figures:
    from slotool.cli.output import duration
    from slotool.tables import LatencyTable

    statistics = LatencyTable.load(folder / "wanted.parquet").where(status="ok").statistics()
    return {"measured": duration(float(statistics["median_s"].iloc[0]))}


def _versions(document: Document, folder: Path) -> Figures:
    from slotool.cli.output import duration

    return {
        point["version"]: f"accuracy {point['accuracy']:.4f}, {duration(point['median_latency_s'])}"
        for point in document["versions"]
    }


def _ruled(document: Document, folder: Path) -> Figures:
    """The strictest tier that saves something, and the widest."""
    tiers = sorted(document["rules"]["rules"], key=lambda rule: rule["tolerance"])
    most = document["rules"]["config"]["best_cost"]
    saving = [rule for rule in tiers if rule["certified"] and rule["cost"] < most]
    return {
        f"≤ {100 * rule['tolerance']:g} points more errors": f"{1 - rule['cost'] / most:.0%} cheaper"
        for rule in (saving[:1] + saving[-1:])
    }


def _planned(document: Document, folder: Path) -> Figures:
    return {"plan": document["explanation"].split(";")[0]}


def _loaded(document: Document, folder: Path) -> Figures:
    from slotool.cli.output import duration

    return {
        "p50, p99": f"{duration(document['p50_s'])}, {duration(document['p99_s'] or float('nan'))}",
        "met the deadline": f"{document['deadline_meet_rate']:.2%} of {document['requests']}",
        "answered correctly and in time": f"{document['effective_accuracy']:.4f}",
    }


def _report(document: Document) -> Figures:
    return {"plots": f"{len(document['plots'])}"}
