"""An SLO-NN on tate-16k (16,455 labels) beside torch in full on the same device, and FAISS-GPU where it is installed.

Every way takes sparse rows of the host and gives labels to the host. Ways alternate in a random order; all samples
count.
"""

from __future__ import annotations

import gzip
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import slotool
from benchmarks.gpu_pieces.piece import Figures, Left, Piece
from benchmarks.gpu_pieces.slo_nn_baselines import Answer, faiss_answers, torch_answers
from benchmarks.gpu_pieces.solo import DATASETS, SEED
from slotool.artifacts import open_artifact
from slotool.data import load_multilabel
from slotool.elastic.activators.build import flat, right
from slotool.elastic.activators.on_device import DeviceSloNN
from slotool.elastic.activators.slo_nn import SloNN
from slotool.elastic.family import Family
from slotool.process import collector_off

RANKER = "clusters"
BATCH_SIZES = (1, 256)
WARM_UP_CALLS = 5
TORCH, SLO_NN = "torch, all labels", "SLO-NN, fixed k"


@dataclass(frozen=True)
class Way:
    """``answer``: int [n] labels of the batch of that number."""

    name: str
    answer: Answer


def run(piece: Piece) -> None:
    piece.step("data", lambda: data(piece))
    piece.step("network", lambda: network(piece))
    piece.step("tables", lambda: tables(piece))
    for size in BATCH_SIZES:
        piece.step(f"batch {size}", lambda size=size: timed(piece, size))


def data(piece: Piece) -> Figures:
    """The data set, cut down in a rehearsal."""
    sizes, folder = piece.sizes, piece.folder / "tate-16k"
    folder.mkdir(exist_ok=True)
    for name in ("train.txt.gz", "test.txt.gz"):
        whole = (DATASETS / "tate-16k" / name).read_bytes()
        cut = sizes.xmc_examples and sizes.xmc_labels
        (folder / name).write_bytes(fewer(whole, sizes.xmc_examples, sizes.xmc_labels) if cut else whole)
    found = load_multilabel(str(folder))
    return {"labels": found.classes, "examples": {part: len(getattr(found, part)) for part in ("train", "test")}}


def fewer(whole: bytes, examples: int, labels: int) -> bytes:
    """The first ``examples`` that keep one of the first ``labels`` labels, of a file in the text format."""
    head, *lines = gzip.decompress(whole).decode().splitlines()
    kept = []
    for line in lines:
        own, _, features = line.partition(" ")
        few = [label for label in own.split(",") if label.isdecimal() and int(label) < labels]
        if few and len(kept) < examples:
            kept.append(f"{','.join(few)} {features}")
    return gzip.compress("\n".join([f"{len(kept)} {head.split()[1]} {labels}", *kept, ""]).encode())


def network(piece: Piece) -> Figures:
    """One hidden layer of 128, trained on the CPU."""
    trained = slotool.train_xmc(
        str(piece.folder / "tate-16k"), piece.folder / "network", epochs=piece.sizes.xmc_epochs, seed=SEED, force=True,
        progress=None,
    )  # fmt: skip
    return {"scores": dict(trained.version.scores), "parameters": trained.version.graph.weights}


def tables(piece: Piece) -> Figures:
    """Learnt on the CPU."""
    piece.figures_of(piece.name, "network")
    slotool.build_tables(
        piece.folder / "network", piece.folder / "slo-nn", data=str(piece.folder / "tate-16k"), ranker=RANKER,
        weight_dtype="float32", seed=SEED, force=True, progress=None,
    )  # fmt: skip
    model = SloNN.load(open_artifact(piece.folder / "slo-nn"))
    return {"k": list(model.shares), "fixed": model.fixed_for(piece.sizes.allowed_loss).key}


def timed(piece: Piece, size: int) -> Figures:
    """Every way's labels and its time per call."""
    piece.figures_of(piece.name, "tables")
    model = SloNN.load(open_artifact(piece.folder / "slo-nn"))
    source = Family.load(open_artifact(piece.folder / "network")).versions[0]
    test = load_multilabel(str(piece.folder / "tate-16k")).test
    queries = flat(test.x)[: piece.sizes.queries]
    order = np.random.default_rng(SEED).permutation(queries.shape[0])
    size = min(size, len(order))
    rows = [order[at : at + size] for at in range(0, len(order) - size + 1, size)]
    batches = [queries[own] for own in rows]
    ways = slo_nn_ways(model, piece.device, batches, piece.sizes.allowed_loss)
    ways += [Way(name, answer) for name, answer in torch_answers(source.mlp, piece.device, batches)]
    left_out = {}
    try:
        ways += [Way(name, answer) for name, answer in faiss_answers(source.mlp, piece.device, batches)]
    except Left as reason:
        left_out["FAISS"] = str(reason)
    taken_s, answers = in_turns(ways, len(batches), piece.sizes.turns)
    truth = test.y.take(np.concatenate(rows))
    correct = {name: right(found[:, None], truth)[:, 0] for name, found in answers.items()}
    full = correct[TORCH].astype(float)
    found = [
        {
            "way": way.name,
            "lost": float((full - correct[way.name]).mean()),
            "standard_error": float((full - correct[way.name]).std() / np.sqrt(len(full))),
            **{f"{name}_s": float(value) for name, value in statistics(taken_s[way.name]).items()},
            "times_torch": float(np.median(taken_s[TORCH]) / np.median(taken_s[way.name])),
        }
        for way in ways
    ]
    return {"batch_size": size, "calls": len(batches) * piece.sizes.turns, "rows": found, "left_out": left_out}


def slo_nn_ways(model: SloNN, device: str, batches: Sequence[Any], allowed_loss: float) -> list[Way]:
    """k fixed, k per input, and all labels; ``DeviceSloNN`` is what ``model.on(device)`` gives for a GPU."""
    there = DeviceSloNN(model, device)
    fixed, target = model.fixed_for(allowed_loss), model.target(allowed_loss)
    ways = [Way(SLO_NN, lambda i: there.top(batches[i], 1, point=fixed)[0][:, 0])]
    if model.measure != "none":
        ways.append(Way("SLO-NN, k per input", lambda i: there.top(batches[i], 1, accuracy=target)[0][:, 0]))
    return [*ways, Way("SLO-NN, all labels", lambda i: there.top(batches[i], 1)[0][:, 0])]


def in_turns(ways: Sequence[Way], count: int, turns: int) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Seconds of every call, and the labels of the first turn; in each turn every way answers all batches, the ways in
    another order."""
    rng = np.random.default_rng(SEED)
    taken: dict[str, list[float]] = {way.name: [] for way in ways}
    answers: dict[str, np.ndarray] = {}
    with collector_off():
        for _ in range(turns):
            for which in rng.permutation(len(ways)):
                way, own = ways[which], []
                for at in range(min(WARM_UP_CALLS, count)):
                    way.answer(at)
                for at in range(count):
                    began = time.perf_counter()
                    own.append(way.answer(at))
                    taken[way.name].append(time.perf_counter() - began)
                answers.setdefault(way.name, np.concatenate(own))
    return {name: np.array(each) for name, each in taken.items()}, answers


def statistics(taken_s: np.ndarray) -> dict[str, float]:
    return {"median": np.median(taken_s), "mean": taken_s.mean(), "p99": np.quantile(taken_s, 0.99)}
