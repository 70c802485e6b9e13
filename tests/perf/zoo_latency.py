"""How well a predictor that learnt from random networks knows those that people run: timm, torchvision, transformers.

Each network is built, captured and timed in a process of its own, random weights, batch 1; ``--keep FILE`` gets a line
per network and, started again, leaves out those that are there. Networks are those of ``capture_zoo`` with 0.1 to 14
GFLOPs. Then, of ``--predictor``: as it is, and after ten labels (chosen by the tool, and drawn at random), beside three
terms and a roofline fitted to the same ten, and the noise of the labels. The networks only score.

``--steady`` has the C library keep memory that was freed, as the workers of ``profile`` and ``serve`` do. Without it a
process of one network returns memory after each call and pays for every page of it again: 1.6 times the latency at
worst. Packages that are not installed are left out.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from concurrent.futures import ProcessPoolExecutor
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.predictors.base import Examples, Predictor
from slotool.predictors.contenders import fitted, hold_out
from slotool.predictors.domain import operator_cost_s
from slotool.predictors.noise import label_noise_s
from slotool.predictors.sampling import propose
from slotool.predictors.three_term import ThreeTermPredictor
from slotool.predictors.trained import TrainedPredictor
from slotool.process import keep_freed_memory
from tests.perf.calibrate_shipped import MODELS
from tests.perf.capture_zoo import PACKAGES, built, names_of

FEW, DRAWS = 10, 8
FLOPS = (1e8, 1.4e10)
SECONDS, MIN_CALLS, MAX_CALLS = 0.7, 8, 40


def timed(package: str, name: str, threads: int, steady: bool) -> dict[str, Any]:
    """Graph and samples of one network."""
    import torch

    from slotool.graphs.capture import capture_torch

    if steady:
        keep_freed_memory()
    network, shapes, dtype = built(package, name)
    network.eval()
    graph = capture_torch(network, shapes, dtype)
    if not FLOPS[0] <= graph.flops <= FLOPS[1]:
        return {"package": package, "name": name, "samples_s": []}
    named = shapes if isinstance(shapes, dict) else {"": shapes}
    inputs = {
        key: torch.randint(0, 1000, (1, *shape)) if dtype == "int64" else torch.randn(1, *shape)
        for key, shape in named.items()
    }
    torch.set_num_threads(threads)
    samples: list[float] = []
    with torch.inference_mode():
        began = time.perf_counter()
        while len(samples) < MIN_CALLS + 2 or (time.perf_counter() - began < SECONDS and len(samples) < MAX_CALLS):
            start = time.perf_counter()
            if isinstance(shapes, dict):
                network(**inputs)
            else:
                network(inputs[""])
            samples.append(time.perf_counter() - start)
    return {"package": package, "name": name, "samples_s": samples[2:], "graph": graph.document()}


def measure(keep: Path, threads: int, steady: bool, limit: int | None) -> None:
    there = {(row["package"], row["name"]) for row in lines(keep)}
    todo = [(package, name) for package in PACKAGES if find_spec(package) for name in names_of(package)]
    for package, name in [each for each in todo if each not in there][:limit]:
        with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process, keep.open("a") as file:
            try:
                row = process.submit(timed, package, name, threads, steady).result()
            except Exception as error:
                print(f"{package} {name}: {type(error).__name__} {str(error)[:80]}")
                continue
            file.write(json.dumps(row) + "\n")


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


def mape(predicted_s: np.ndarray, label_s: np.ndarray) -> float:
    return float(np.mean(np.abs(predicted_s / label_s - 1)))


def attends(graph: OperatorGraph) -> bool:
    kinds = [operator.op for operator in graph.operators]
    return "ScaledDotProductAttention" in kinds or kinds.count("Softmax") > 1


def ten_labels(base: Predictor[OperatorGraph], known: Examples[OperatorGraph], asked: Examples[OperatorGraph]) -> Any:
    """MAPE on the others of what is kept, of three terms, and of a roofline times one factor."""
    held_out = hold_out(base, known)
    kept = fitted(held_out.best(), base, known, held_out)
    terms = ThreeTermPredictor()
    terms.fit(known)
    roofline = [np.array([operator_cost_s(graph).sum() for graph in part.items]) for part in (known, asked)]
    factor = np.median(known.latency_s / roofline[0])
    answers = (kept.predict(asked.items), terms.predict(asked.items), factor * roofline[1])
    return [mape(each, asked.latency_s) for each in answers]


def score(rows: list[dict[str, Any]], trained: TrainedPredictor[OperatorGraph]) -> None:
    rows = [row for row in rows if row["samples_s"]]
    graphs = [OperatorGraph.from_document(row["graph"]) for row in rows]
    samples = [np.array(row["samples_s"]) for row in rows]
    label_s = np.array([np.median(each) for each in samples])
    noise = np.mean([label_noise_s(each) / s for each, s in zip(samples, label_s, strict=True)])
    predictions = trained.predict(graphs)
    attention = np.array([attends(graph) for graph in graphs])
    error = np.abs(predictions.latency_s / label_s - 1)
    given = np.isfinite(predictions.low_s)
    inside = (predictions.low_s <= label_s) & (label_s <= predictions.high_s)
    print(f"{len(graphs)} networks, {attention.sum()} with attention; noise of a label {noise:.1%}")
    print(
        f"as it is: MAPE {error.mean():.1%}, with attention {error[attention].mean():.1%}; 90 % interval covers",
        end=" ",
    )
    print(f"{inside[given].mean():.0%} of the {given.sum()} that have one")
    everything = np.arange(len(graphs))
    draws = [np.array(propose(trained.predictor, graphs, FEW))]
    draws += [np.random.default_rng(seed).permutation(len(graphs))[:FEW] for seed in range(DRAWS)]
    found = []
    for drawn in draws:
        parts = [Examples([graphs[i] for i in own], label_s[own]) for own in (drawn, np.setdiff1d(everything, drawn))]
        found.append(ten_labels(trained.predictor, *parts))
    print("ten labels: MAPE kept, three-term, roofline; kept ÷ three-term")
    for what, own in (("chosen", np.array(found[:1])), (f"mean of {DRAWS} draws", np.array(found[1:]))):
        kept, terms, roofline = own.mean(axis=0)
        print(f"   {what}: {kept:.1%}, {terms:.1%}, {roofline:.1%}; {kept / terms:.2f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keep", type=Path, required=True)
    parser.add_argument("--predictor", type=Path, default=MODELS / "predictor-architectures")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--steady", action="store_true")
    parser.add_argument("--limit", type=int, help="measure so many more at most")
    wanted = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(wanted.threads)
    measure(wanted.keep, wanted.threads, wanted.steady, wanted.limit)
    score(lines(wanted.keep), TrainedPredictor.load(str(wanted.predictor)))


if __name__ == "__main__":
    main()
