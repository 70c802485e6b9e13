"""How well a predictor that learnt from random networks knows those that people run: timm, torchvision, transformers.

Networks are those of ``capture_zoo`` with 0.1 to 14 GFLOPs, random weights, batch 1. Each is captured, and then, in
another process of its own, built and timed, in ``--passes`` passes over all of them; its label is the median of their
medians. These processes keep memory that was freed, as the workers of ``profile`` and ``serve`` do: one that gives it
back after each call pays for every page of it again, 1.6 times the latency at worst. Then, of ``--predictor``: as it
is, with what its intervals cover, and after ten labels (chosen by the tool, and drawn at random), beside one factor,
three terms and a roofline fitted to the same ten, and the noise of the labels: within a process, and from one to the
next. The networks only score.

``--keep FILE`` gets a line per network and pass and, started again, leaves out those that are there; ``--limit``
stops after so many seconds, to go on another time. Packages that are not installed are left out.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import tempfile
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.calibrate_shipped import MODELS
from benchmarks.capture_zoo import PACKAGES, built, names_of
from slotool.graphs import OperatorGraph
from slotool.predictors.base import Examples, Predictor
from slotool.predictors.features.type_costs import OperatorRows
from slotool.predictors.labels import label_noise_s
from slotool.predictors.solo.three_term import ThreeTermPredictor
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.transfer.adapted import AdaptedPredictor, propose
from slotool.process import keep_freed_memory

FEW, DRAWS, PASSES = 10, 8, 2
FLOPS = (1e8, 1.4e10)
SECONDS, MIN_CALLS, MAX_CALLS = 0.7, 8, 40
TIMEOUT_S = 120
Row = dict[str, Any]


def captured(package: str, name: str) -> Row:
    """The graph of one network, nothing where it is too small or too large."""
    from slotool.graphs.capture import capture_torch

    network, shapes, dtype = built(package, name)
    graph = capture_torch(network.eval(), shapes, dtype)
    return {"graph": graph.document() if FLOPS[0] <= graph.flops <= FLOPS[1] else None}


def timed(package: str, name: str) -> Row:
    """Samples of one network."""
    import torch

    keep_freed_memory()
    network, shapes, dtype = built(package, name)
    network.eval()
    named = shapes if isinstance(shapes, dict) else {"": shapes}
    inputs = {
        key: torch.randint(0, 1000, (1, *shape)) if dtype == "int64" else torch.randn(1, *shape)
        for key, shape in named.items()
    }
    samples: list[float] = []
    with torch.inference_mode():
        began = time.perf_counter()
        while len(samples) < MIN_CALLS + 2 or (time.perf_counter() - began < SECONDS and len(samples) < MAX_CALLS):
            start = time.perf_counter()
            network(inputs[""]) if "" in inputs else network(**inputs)
            samples.append(time.perf_counter() - start)
    return {"samples_s": samples[2:]}


def apart(work: Callable[[str, str], Row], package: str, name: str) -> Row:
    """In a process of its own, a copy of this one, where the packages are imported already."""
    ours, theirs = multiprocessing.Pipe(duplex=False)
    process = multiprocessing.get_context("fork").Process(target=_answer, args=(work, package, name, theirs))
    process.start()
    theirs.close()
    try:
        return ours.recv() if ours.poll(TIMEOUT_S) else {"error": f"took longer than {TIMEOUT_S} s"}
    except EOFError:
        return {"error": "its process died"}
    finally:
        process.kill()
        process.join()


def _answer(work: Callable[[str, str], Row], package: str, name: str, pipe: Any) -> None:
    try:
        pipe.send(work(package, name))
    except Exception as error:
        pipe.send({"error": f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"})


def labels(keep: Path, threads: int, passes: int, limit_s: float) -> bool:
    """Capture and time what ``keep`` does not hold yet; whether all is there."""
    import torch

    torch.set_num_threads(threads)
    ends, rows = time.monotonic() + limit_s, lines(keep)
    there = {(row["package"], row["name"], row["round"]) for row in rows}
    usable = {(row["package"], row["name"]) for row in rows if row.get("graph")}
    names = [(package, name) for package in PACKAGES if find_spec(package) for name in names_of(package)]
    for number in range(passes + 1):
        for each in names:
            if (*each, number) in there or (number and each not in usable):
                continue
            if time.monotonic() > ends:
                return False
            row = apart(timed if number else captured, *each)
            if row.get("graph"):
                usable.add(each)
            with keep.open("a") as file:
                file.write(json.dumps({"package": each[0], "name": each[1], "round": number, **row}) + "\n")
    return True


def lines(path: Path) -> list[Row]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def labelled(rows: list[Row]) -> tuple[list[OperatorGraph], np.ndarray, float]:
    """Networks, the median of the medians of their passes in seconds [n], and the mean noise of a label as a share."""
    graphs, label_s, noise = [], [], []
    for row in rows:
        if not row.get("graph"):
            continue
        same = [own for own in rows if (own["package"], own["name"]) == (row["package"], row["name"])]
        samples = [np.array(own["samples_s"]) for own in same if "samples_s" in own]
        if samples:
            graphs.append(OperatorGraph.from_document({**row["graph"], "name": f"{row['package']} {row['name']}"}))
            label_s.append(float(np.median([np.median(own) for own in samples])))
            noise.append(float(np.mean([label_noise_s(own) for own in samples])) / label_s[-1])
    return graphs, np.array(label_s), float(np.mean(noise))


def between_passes(rows: list[Row]) -> float:
    """How far the medians of one network differ between its first two passes, as a share, once what all of them differ
    by is taken out: what another process alone changes, which the samples of one do not show. NaN of one pass."""
    medians: dict[tuple[str, str], dict[int, float]] = {}
    for row in rows:
        if "samples_s" in row:
            own = medians.setdefault((row["package"], row["name"]), {})
            own[row["round"]] = float(np.median(row["samples_s"]))
    ratios = np.array([own[2] / own[1] for own in medians.values() if {1, 2} <= own.keys()])
    return float(np.mean(np.abs(ratios / np.median(ratios) - 1))) if len(ratios) else float("nan")


def mape(predicted_s: np.ndarray, label_s: np.ndarray) -> float:
    return float(np.mean(np.abs(predicted_s / label_s - 1)))


def attends(graph: OperatorGraph) -> bool:
    kinds = [operator.op for operator in graph.operators]
    return "ScaledDotProductAttention" in kinds or kinds.count("Softmax") > 1


def ten_labels(
    base: Predictor[OperatorGraph], known: Examples[OperatorGraph], asked: Examples[OperatorGraph]
) -> dict[str, float]:
    """MAPE on the others of the adapted predictor, one factor, three terms, and a roofline times one factor."""
    adapted, terms = AdaptedPredictor(base), ThreeTermPredictor()
    adapted.fit(known)
    terms.fit(known)
    scale = float(np.median(known.latency_s / base.predict(known.items)))
    roofline = [np.array([OperatorRows.of([graph]).cost_s.sum() for graph in part.items]) for part in (known, asked)]
    factor = np.median(known.latency_s / roofline[0])
    figures = {"kept": adapted.predict(asked.items), "one_factor": scale * base.predict(asked.items)}
    figures |= {"three_term": terms.predict(asked.items), "roofline": factor * roofline[1]}
    return {name: mape(answer, asked.latency_s) for name, answer in figures.items()}


def score(rows: list[Row], trained: TrainedPredictor[OperatorGraph]) -> dict[str, Any]:
    graphs, label_s, noise = labelled(rows)
    predictions = trained.predict(graphs)
    attention = np.array([attends(graph) for graph in graphs])
    error = np.abs(predictions.latency_s / label_s - 1)
    given = np.isfinite(predictions.low_s)
    inside = (predictions.low_s <= label_s) & (label_s <= predictions.high_s)
    figures: dict[str, Any] = {
        "networks": len(graphs),
        "with_attention": int(attention.sum()),
        "label_noise": noise,
        "between_passes": between_passes(rows),
        "mape": float(error.mean()),
        "attention_mape": float(error[attention].mean()),
        "interval_given": int(given.sum()),
        "interval_coverage": float(inside[given].mean()),
        "interval_width": float(np.median((predictions.high_s / predictions.low_s)[given])),
    }
    print(", ".join(f"{key} {value:.3g}" for key, value in figures.items()), flush=True)
    everything = np.arange(len(graphs))
    draws = [np.array(propose(trained.predictor, graphs, FEW))]
    draws += [np.random.default_rng(seed).permutation(len(graphs))[:FEW] for seed in range(DRAWS)]
    results = []
    for drawn in draws:
        parts = [Examples([graphs[i] for i in own], label_s[own]) for own in (drawn, np.setdiff1d(everything, drawn))]
        results.append(ten_labels(trained.predictor, *parts))
    for what, own in (("chosen", results[:1]), ("drawn", results[1:])):
        mean = {name: float(np.mean([each[name] for each in own])) for name in own[0]}
        print(f"ten labels {what}: " + ", ".join(f"{name} {value:.1%}" for name, value in mean.items()), flush=True)
        figures[what] = mean
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.zoo_latency", description=__doc__)
    parser.add_argument("--keep", type=Path, help="default: a file in the folder for temporary files")
    parser.add_argument("--predictor", type=Path, default=MODELS / "predictor-architectures")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--passes", type=int, default=PASSES, help="0: capture only")
    parser.add_argument("--limit", type=float, default=np.inf, help="seconds of measuring, after which it stops")
    wanted, _ = parser.parse_known_args()
    if not any(find_spec(package) for package in PACKAGES):
        print(json.dumps({"skipped": "none of torchvision, timm and transformers is installed"}))
        return
    os.environ["OMP_NUM_THREADS"] = str(wanted.threads)
    if find_spec("torchvision_cpu_ops"):
        # Where torchvision is built for CUDA, its operators are declared before it is imported.
        __import__("torchvision_cpu_ops")
    keep = wanted.keep or Path(tempfile.gettempdir()) / "slotool-bench-zoo-latency.jsonl"
    if not labels(keep, wanted.threads, wanted.passes, wanted.limit):
        print(json.dumps({"unfinished": str(keep)}))
        return
    print(json.dumps({"benchmark": "zoo_latency", **score(lines(keep), TrainedPredictor.load(str(wanted.predictor)))}))


if __name__ == "__main__":
    main()
