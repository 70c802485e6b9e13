"""Random networks, tables and queries against the compiled kernels, each answer held to plain NumPy.

``python -m tests.hostile.kernel_fuzz SECONDS [TRIES [SEED [KIND...]]]`` prints what it tried as JSON, each minute on
standard error how far it is, and ends with 1 at the first difference. With ``NUMBA_BOUNDSCHECK=1`` in the environment
every index is checked, those of intrinsics too; and between the parts of the flat arrays lie guards, which no index
check could tell from the parts themselves: nothing may be read from them (a poisoned value shows in the answer) or
written to them, and weights and tables must stay as they are.

All numbers are small whole ones or eighths, so that sums are exact in whatever order they are added up.
"""

from __future__ import annotations

import itertools
import json
import sys
import time
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from scipy.sparse import csr_matrix

from slotool.elastic.slo_nn.activator import Activator, NodeLists, layer_input
from slotool.elastic.slo_nn.calibration import ThresholdCalibration
from slotool.elastic.slo_nn.confidence import ConfidenceTables
from slotool.elastic.slo_nn.kernels import compiled as compiling
from slotool.elastic.slo_nn.kernels import layout
from slotool.elastic.slo_nn.mlp import MLP, DenseLayer
from slotool.elastic.slo_nn.model import SloNN
from slotool.elastic.slo_nn.rankers.clusters import Clusters
from slotool.elastic.slo_nn.rankers.freehash import FreeHash
from slotool.elastic.slo_nn.rankers.mongoose import Mongoose
from slotool.elastic.slo_nn.rankers.ranker import RandomOrder, Ranker
from slotool.errors import InputError
from tests.elastic import numpy_slo_nn

QUERIES_PER_MODEL = 24
SECONDS_BETWEEN_REPORTS = 60.0
POISON = {"f": np.nan, "i": 1 << 40, "u": 0xFFFFFFFF, "b": 0x5A}
Rng = np.random.Generator


def whole(rng: Rng, low: int, high: int, *shape: int) -> np.ndarray:
    return rng.integers(low, high + 1, size=shape).astype(np.float32)


def random_network(rng: Rng) -> MLP:
    first = width = int(rng.integers(1, 70))
    layers: list[DenseLayer] = []
    for units in rng.integers(1, 41, size=int(rng.integers(1, 3))):
        layers.append(dense(rng, len(layers), width, int(units)))
        width = int(units)
    layers.append(dense(rng, len(layers), width, int(rng.integers(2, 90))))
    return MLP((first,), tuple(layers))


def dense(rng: Rng, at: int, inputs: int, units: int) -> DenseLayer:
    return DenseLayer(f"dense_{at}", whole(rng, -1, 2, units, inputs), whole(rng, -3, 3, units))


def random_ranker(rng: Rng, layer: DenseLayer) -> Ranker:
    tables, bits = int(rng.integers(1, 5)), int(rng.integers(1, 5))
    kind = rng.integers(4)
    # Eighths and a half of one: no sum of whole numbers, and hardly a mean of them, is ever equal to a threshold.
    thresholds = whole(rng, -40, 40, tables, bits) / 8 + np.float32(1 / 16)
    if kind == 0:
        nodes = np.stack([rng.permutation(max(layer.units, bits))[:bits] % layer.units for _ in range(tables)])
        return FreeHash(nodes, thresholds)
    if kind == 1:
        return Mongoose(rng.integers(-5, 6, size=(tables, bits, layer.inputs)).astype(np.int8), thresholds)
    if kind == 2:
        return RandomOrder()
    coarse, fine = rng.integers(1, 10, size=2)
    sizes = rng.integers(1, fine + 1, size=coarse).astype(np.uint16)

    def centroids(*shape: int) -> np.ndarray:
        return rng.integers(-127, 128, size=(*shape, layer.inputs)).astype(np.int8)

    return Clusters(
        centroids(coarse),
        rng.random(coarse, dtype=np.float32),
        centroids(coarse, fine),
        rng.random((coarse, fine), dtype=np.float32),
        sizes,
    )


def random_lists(rng: Rng, ranker: Ranker, units: int) -> NodeLists:
    packed, rows = np.min_scalar_type(units - 1), int(rng.integers(1, 12))
    length = int(rng.integers(1, units + 1))
    lists = np.stack([rng.permutation(units)[:length] for _ in range(rows)]).astype(packed)
    slots = rng.integers(rows, size=(ranker.tables, ranker.buckets)).astype(np.uint16)
    return NodeLists(slots, lists, rng.permutation(units).astype(packed))


def random_model(rng: Rng, sparse: bool = False) -> SloNN:
    mlp = random_network(rng)
    count = int(rng.integers(1, len(mlp.layers) + 1))
    activators = {}
    for at in sorted(rng.permutation(len(mlp.layers))[:count].tolist()):
        ranker = random_ranker(rng, mlp.layers[at])
        activators[at] = Activator(ranker, random_lists(rng, ranker, mlp.layers[at].units))
    shares = np.unique(rng.integers(1, 65, size=rng.integers(1, 5)) / 64).tolist()
    rows = activators[min(activators)].lists.rows
    confidence = ConfidenceTables(whole(rng, -64, 0, rows, len(shares)) / 64)
    levels = np.unique(rng.integers(-64, 1, size=3) / 64)
    thresholds = np.concatenate([[-np.inf], levels, [np.inf]])
    accuracy = np.sort(rng.random(len(thresholds)))
    calibration = ThresholdCalibration(thresholds, accuracy, np.append(np.sort(rng.random(len(shares))), accuracy[-1]))
    last_activated = len(mlp.layers) - 1 in activators
    int8 = bool(rng.random() < 0.4) and last_activated
    return SloNN("fuzz", mlp, shares, activators, confidence, calibration, {}, int8=int8, sparse=sparse)


def random_inputs(rng: Rng, model: SloNN, n: int, sparse: bool) -> Any:
    width = model.mlp.layers[0].inputs
    x = whole(rng, 0, 8, n, width)
    if rng.random() < 0.3:
        x = whole(rng, -8, 8, n, width)
    x *= rng.random((n, width)) < rng.choice([0.0, 0.1, 0.6, 1.0])
    if not sparse:
        return x
    found = csr_matrix(x)
    # In any order, as rows of a CSR matrix may be.
    for row in range(n):
        order = slice(found.indptr[row], found.indptr[row + 1])
        mixed = rng.permutation(order.stop - order.start)
        found.indices[order], found.data[order] = found.indices[order][mixed], found.data[order][mixed]
    found.has_sorted_indices = False
    return found


@dataclass
class Guards:
    """What of the flat arrays must not change, and what it held."""

    tapes: list[tuple[np.ndarray, np.ndarray, np.ndarray]]

    def changed(self) -> bool:
        return any(
            not np.array_equal(tape[kept].view(np.uint8), held.view(np.uint8)) for tape, kept, held in self.tapes
        )


class GuardedTape(compiling._Tape):
    """Parts lie a cache line apart at least, and what is no part is poisoned."""

    made: ClassVar[list[tuple[np.ndarray, np.ndarray, np.ndarray]]] = []

    def __init__(self, dtype: Any):
        super().__init__(dtype)
        self._used: list[tuple[int, int]] = []

    def reserve(self, size: int) -> None:
        self._used.append((self._length, size))
        super().reserve(size)
        super().reserve(1)

    def joined(self) -> np.ndarray:
        parts = list(self.pieces)
        tape = super().joined()
        guard = np.ones(len(tape), dtype=bool)
        for start, size in self._used:
            guard[start : start + size] = False
        kind = "b" if self.dtype == np.int8 else self.dtype.kind
        tape[guard] = POISON[kind]
        # Rooms to work in begin as zeros. Stamps, the last of the bytes, are cleared to the end of all.
        for start, array in parts:
            if array.any():
                guard[start : start + array.size] = True
        if self.dtype == np.int8:
            guard[self._used[-1][0] :] = False
        if self.dtype == np.int64:
            guard[: layout.HEADER_SIZE] = False
        self.made.append((tape, guard, tape[guard]))
        return tape


class Difference(AssertionError):
    pass


def require(fine: Any, what: str) -> None:
    if not fine:
        raise Difference(what)


def ask(rng: Rng, model: SloNN, sparse: bool) -> int:
    """One query or batch in a random way, held to NumPy; returns how many queries."""
    n = int(rng.choice([1, 1, 2, 5, 20]))
    x = random_inputs(rng, model, n, sparse)
    shaped = x if sparse else x.reshape(n, *model.input_shape)
    p = int(rng.integers(1, model.classes + 1)) if rng.random() < 0.8 else model.classes
    target = rng.random() < 0.3
    point = None if target else model.points[rng.integers(len(model.points))]
    accuracy = float(model._promised[rng.integers(len(model._promised))]) if target else None
    if rng.random() < 0.3 and point is not None:
        close(
            model.forward(shaped, point), numpy_slo_nn.forward(model, shaped, point), "logits", rounding(model, shaped)
        )
        return n
    labels, scores = answers(rng, model, x, shaped, p, point, accuracy)
    own_labels, own_scores = numpy_slo_nn.top(model, shaped, p + 1, point=point, accuracy=accuracy)
    # Of equal scores either label may come first.
    apart = -np.diff(np.where(np.isfinite(own_scores), own_scores, -1e9), axis=1) > 1e-2
    own_labels, own_scores = own_labels[:, :p], own_scores[:, :p]
    if model.int8:
        # Of labels that are alike in int8 others may be kept, and what is kept is scored from float32.
        slack, known = rounding(model, shaped) + 1e-3, np.isfinite(own_scores)
        require((np.abs(scores[known] - own_scores[known]) <= slack).all(), "scores in int8")
        return n
    close(scores, own_scores, "scores")
    clear = apart & np.column_stack([np.ones(n, dtype=bool), apart[:, :-1]])
    require((labels[clear] == own_labels[clear]).all(), "labels")
    require(((labels == -1) == (own_labels == -1)).all(), "how many labels there are")
    return n


def answers(
    rng: Rng, model: SloNN, x: Any, shaped: Any, p: int, point: Any, accuracy: float | None
) -> tuple[np.ndarray, np.ndarray]:
    if rng.random() < 0.3:
        return model.top(shaped, p, point=point, accuracy=accuracy)
    session = model.compiled_session(p, point=point, accuracy=accuracy)
    if rng.random() < 0.3:
        return session.many(x)
    rows = [tuple(part.copy() for part in session.row(x, row)) for row in range(x.shape[0])]
    return np.stack([row[0] for row in rows]), np.stack([row[1] for row in rows])


def rounding(model: SloNN, x: Any) -> float:
    """Return how far logits of int8 may differ: a share of the terms that they add up, which may cancel."""
    if not model.int8:
        return 0.0
    last = model.mlp.layers[-1]
    hidden = layer_input(model.mlp, model.activators, model.flat(x), 1.0, len(model.mlp.layers) - 1)
    return 0.03 * float((abs(hidden) @ np.abs(last.weights).T).max())


def close(found: np.ndarray, wanted: np.ndarray, what: str, slack: float = 0.0) -> None:
    if not np.allclose(found, wanted, rtol=1e-4, atol=1e-3 + slack):
        raise Difference(f"{what}: {found.ravel()[:20]} where NumPy has {wanted.ravel()[:20]}")


def misuse(rng: Rng, model: SloNN, sparse: bool) -> int:
    """Queries of another form must be refused, and leave everything as it was."""
    session, width = (
        model.compiled_session(1, point=model.points[rng.integers(len(model.points))]),
        model.mlp.layers[0].inputs,
    )
    length = int(rng.integers(0, 3 * width))
    wrong = whole(rng, 0, 4, length + (length == width))
    some = rng.integers(-3, 2 * width, size=rng.integers(1, 2 * width + 2)).astype(np.int32)
    fits = len(some) <= width and some.min() >= 0 and some.max() < width
    calls = [
        (session.dense, (wrong,)),
        (session.dense, (np.full(width, rng.choice([np.nan, np.inf, -np.inf]), dtype=np.float32),)),
        (session.dense, (np.zeros(width, dtype=rng.choice(["f8", "f2", "i4", ">f4", "c8"])),)),
        # One value has no gaps.
        (session.dense, (np.zeros((max(width, 2), 2), dtype=np.float32)[:, 0],)),
        (session.dense, (np.zeros((1, width), dtype=np.float32),)),
        (session.sparse, (some, whole(rng, 0, 4, len(some) + int(rng.choice([-1, 1, 7]))))),
        (session.sparse, (some.astype(np.int64), whole(rng, 0, 4, len(some)))),
    ]
    if not fits:
        calls.append((session.sparse, (some, whole(rng, 0, 4, len(some)))))
    call, arguments = calls[rng.integers(len(calls))]
    try:
        call(*arguments)
    except InputError:
        return 1
    raise Difference(f"{call.__name__} took {arguments}")


def fuzz_model(seed: list[int], kind: str, queries: int = QUERIES_PER_MODEL) -> int:
    """A model of this seed and kind, and so many queries or batches: how many queries. Raises ``Difference``."""
    compiling._Tape, plain = GuardedTape, compiling._Tape
    rng, sparse, done = np.random.default_rng(seed), kind == "sparse", 0
    GuardedTape.made.clear()
    try:
        model = random_model(rng, sparse)
        for query in range(queries):
            way = misuse if rng.random() < 0.2 else ask
            try:
                done += way(rng, model, sparse)
                require(not Guards(GuardedTape.made).changed(), "weights, tables or guards were written to")
            except Exception as error:
                raise Difference(f"{kind}, seed {seed}, query {query}: {error!r}") from error
    finally:
        compiling._Tape = plain
    return done


def fuzz(seconds: float, tries: int = sys.maxsize, seed: int = 0, kinds: tuple[str, ...] = ()) -> dict[str, int]:
    """For so long, or so many tries, whichever is less: how many queries there were of each kind.

    Raises ``Difference``.
    """
    done = dict.fromkeys(kinds or ("dense", "sparse"), 0)
    # One is enough for networks so small, and on shared cores several only wait for each other.
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    compile_for(list(done))
    started, at = time.monotonic(), 0
    until, told = started + seconds, started
    while at < len(done) or (time.monotonic() < until and sum(done.values()) < tries):
        kind = list(done)[at % len(done)]
        done[kind] += fuzz_model([seed, at, 0], kind)
        at += 1
        if time.monotonic() - told >= SECONDS_BETWEEN_REPORTS:
            told = time.monotonic()
            print(f"{told - started:.0f} s: {sum(done.values())} tries of {at} networks", file=sys.stderr, flush=True)
    torch.set_num_threads(threads)
    return done


def compile_for(kinds: list[str]) -> None:
    """All forms that queries of these kinds take: a minute or more, which is none of anybody's budget."""
    for kind in kinds:
        sparse, rng = kind == "sparse", np.random.default_rng(0)
        model = random_model(rng, sparse)
        x = random_inputs(rng, model, 20, sparse)
        shaped = x if sparse else x.reshape(20, *model.input_shape)
        for point, n in itertools.product((model.points[0], model.full), (1, 20)):
            model.forward(shaped[:n], point)
            model.top(shaped[:n], point=point)
            model.compiled_session(point=point).row(x, 0)
        model.compiled_session().sparse(np.zeros(1, dtype=np.int32), np.ones(1, dtype=np.float32))
        if not sparse:
            model.confidences(shaped[:1])


if __name__ == "__main__":
    import numba

    limits = [float(argument) for argument in sys.argv[1:3]] + [float("inf")]
    started = time.monotonic()
    seed, kinds = (int(sys.argv[3]) if len(sys.argv) > 3 else 0), tuple(sys.argv[4:])
    found = fuzz(limits[0], limits[1] if len(sys.argv) > 2 else sys.maxsize, seed, kinds)
    took = time.monotonic() - started
    checked = bool(numba.config.BOUNDSCHECK)  # type: ignore[attr-defined]  # Numba sets its options by name
    print(json.dumps({"boundscheck": checked, "seconds": round(took, 1), "tries": found}))
