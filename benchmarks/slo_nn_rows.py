"""Rows of the ``slo_nn`` benchmark: each a call per query; timed in turns of random order, as drift hits all alike.

Every statistic is of all samples, and baselines and ours are compared by the same one.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from slotool.elastic.slo_nn.kernels import single
from slotool.process import collector_off

# In every round each row answers a block of so many queries, after a few that are not timed: they bring its weights
# back into caches that the row before has filled with its own. Rounds × block: 675 samples and more, enough for p99.
ROUNDS, TIMED, TIMED_DENSE, WARM_UP = 15, 200, 45, 4
# Calls after a walk over so many bytes, which leaves nothing of the row's in any cache.
COLD_CALLS, COLD_BYTES = 40, 96 << 20
# So many answers of a slow exact row are compared with the full network's.
CHECKED_DENSE = 300


@dataclass
class Row:
    """``call``: what is timed; ``queries``: its arguments; ``correct``: bool [n], of the first test examples."""

    what: str
    call: Callable[..., Any]
    queries: Sequence[tuple[Any, ...]]
    correct: np.ndarray
    read_bytes: float
    nodes: float
    dense: bool


class Bench:
    """Rows of one set, with the labels each answers on the test split and the bytes it reads."""

    def __init__(self, source: Any, data: Any):
        from slotool.elastic.multilabel_training import top_labels
        from slotool.elastic.slo_nn.build import flat, right
        from slotool.elastic.slo_nn.kernels.compiled import Compiled
        from slotool.elastic.slo_nn.mlp import MLP

        self.source, self.data, self.mlp = source, data, source.mlp
        self.x, self.y, self.right = flat(data.test.x), data.test.y, right
        self.sparse = not isinstance(self.x, np.ndarray)
        first = self.mlp.layers[0]
        self.queries: list[tuple[np.ndarray, ...]] = [(row,) for row in self.x] if not self.sparse else _pairs(self.x)
        self._before = Compiled(MLP(self.mlp.input_shape, self.mlp.layers[:-1], partial=True), {}, ())
        self._no_rows = np.empty((0, 0), dtype=np.float32)
        self._no_csr = single.batch(np.empty((1, 1), dtype=np.float32))[1:]
        self._hidden = np.empty((1, self.mlp.layers[-1].inputs), dtype=np.float32)
        self.full = self._truth(top_labels(self.mlp, self.x, 1)[:, 0])
        active = self.x.nnz / len(self.queries) if self.sparse else first.inputs
        self.first_bytes = active * 4 * first.units
        self.later_bytes = sum(layer.weights.nbytes for layer in self.mlp.layers[1:])
        self.rows: list[Row] = []
        self._held: list[Any] = []

    def hidden(self, *query: np.ndarray) -> np.ndarray:
        """What the output layer receives, by our compiled call: float32 [its inputs], overwritten by the next."""
        if self.sparse:
            # As ``single.batch`` of one row, which would take longer than the call.
            indices, values = query
            ends = np.array([0, len(indices)])
            single.logits(self._no_rows, ends, indices, values, self._hidden, 0, *self._before.state)
        else:
            single.logits(query[0][None], *self._no_csr, self._hidden, 0, *self._before.state)
        return np.maximum(self._hidden[0], 0, out=self._hidden[0])

    def add_session(self, what: str, model: Any, session: Any, dense: bool = False) -> None:
        """``dense``: it computes all nodes, and is timed less often."""
        call = session.sparse if self.sparse else session.dense
        shares = np.array([*model.shares, 1.0])
        taken = []
        for query in self.queries[:TIMED]:
            call(*query)
            taken.append(shares[model.points.index(session.taken)])
        share = float(np.mean(taken))
        nodes = share * sum(model.mlp.layers[at].units for at in model.activators)
        part = (0.25 if model.int8 and share < 1 else 1.0) * share
        read = part * self.later_bytes if self.sparse else share * (self.later_bytes + self.first_bytes)
        self.add(what, lambda *query: int(call(*query)[0]), read, dense=dense, nodes=nodes, call=call)

    def add_plain(self, what: str) -> None:
        """The network in one compiled call with no activator laid out: what k = 100 % is held against."""
        from slotool.elastic.slo_nn.kernels.compiled import Compiled

        compiled = Compiled(self.mlp, {}, ())
        labels, scores = np.empty(1, np.int32), np.empty(1, np.float32)
        handle = compiled.handle(labels, scores, 0)
        # Held: the handle knows no more than addresses.
        self._held.append((compiled, labels, scores))
        kernel: Callable[..., int] = single.top_sparse if self.sparse else single.top_dense

        def answer(*query: np.ndarray) -> int:
            kernel(*query, handle, 0.0)
            return int(labels[0])

        self.add(what, answer, self.exact_bytes, dense=True, call=lambda *query: kernel(*query, handle, 0.0))

    @property
    def exact_bytes(self) -> float:
        """What an answer from all nodes reads, besides the columns of sparse inputs."""
        return self.later_bytes + (0.0 if self.sparse else self.first_bytes)

    def add(
        self,
        what: str,
        answer: Callable[..., int],
        read_bytes: float = 0.0,
        *,
        dense: bool = False,
        exact: bool = True,
        nodes: float | None = None,
        call: Callable[..., Any] | None = None,
        queries: Sequence[tuple[Any, ...]] | None = None,
    ) -> None:
        """``dense``: slow, so timed less often, and checked less often when it is ``exact`` too.

        ``call``: what is timed if not ``answer``, with ``queries`` if not the test split's.
        """
        few = CHECKED_DENSE if dense and exact and self.sparse else len(self.queries)
        correct = self._truth(np.array([answer(*query) for query in self.queries[:few]]))
        width = nodes or sum(layer.units for layer in (self.mlp.layers[-1:] if self.sparse else self.mlp.layers[:-1]))
        self.rows.append(Row(what, call or answer, queries or self.queries, correct, read_bytes, float(width), dense))

    def report(self) -> list[dict[str, Any]]:
        """Time all rows, print them, and return them."""
        taken_us, cold_us = _in_turns(self.rows), _cold(self.rows)
        rows = []
        for row, taken, cold in zip(self.rows, taken_us, cold_us, strict=True):
            lost = self.full[: len(row.correct)].astype(float) - row.correct
            read = row.read_bytes + (self.first_bytes if self.sparse else 0.0)
            median = float(np.median(taken))
            rows.append(
                {
                    "what": row.what,
                    "lost": float(lost.mean()),
                    "standard_error": float(lost.std() / np.sqrt(len(lost))),
                    "examples": len(lost),
                    "nodes": row.nodes,
                    "median_us": median,
                    "mean_us": float(np.mean(taken)),
                    "p99_us": float(np.quantile(taken, 0.99)),
                    "samples": len(taken),
                    "cold_us": float(np.median(cold)),
                    "over_bound": median / (read / _bandwidth(read) * 1e6) if row.read_bytes else None,
                }
            )
        print_rows(rows)
        return rows

    def _truth(self, labels: np.ndarray) -> np.ndarray:
        known = self.y[: len(labels)] if isinstance(self.y, np.ndarray) else self.y.take(np.arange(len(labels)))
        return self.right(labels[:, None], known)[:, 0]


def _pairs(x: Any) -> list[tuple[np.ndarray, ...]]:
    return [(x.indices[a:b], x.data[a:b]) for a, b in zip(x.indptr[:-1], x.indptr[1:], strict=True)]


def print_rows(rows: list[dict[str, Any]]) -> None:
    """Prints what ``Bench.report`` found."""
    baselines = {"torch": "PyTorch", "dense": "our fused dense", "ORT int8": "ONNX Runtime int8"}
    heads = ("lost", "± SE", "nodes", "median", "mean", "p99", "cold", "÷ bound", *(f"× {head}" for head in baselines))
    print("µs, all samples; × and cold: medians" + " " * 9 + " ".join(f"{head:>9}" for head in heads))
    for row in rows:
        for what in ("median_us", "mean_us", "p99_us"):
            row[f"speedup_by_{what.removesuffix('_us')}"] = {
                head: next((other[what] / row[what] for other in rows if other["what"].startswith(start)), None)
                for head, start in baselines.items()
            }
        bound = f"{row['over_bound']:.1f}" if row["over_bound"] else ""
        times = " ".join(f"{row[what]:9.2f}" for what in ("median_us", "mean_us", "p99_us", "cold_us"))
        print(
            f"{row['what']:44}{100 * row['lost']:9.2f} {100 * row['standard_error']:9.2f} {row['nodes']:9.0f} "
            f"{times} {bound:>9} "
            + " ".join(f"{ratio:9.2f}" if ratio else " " * 9 for ratio in row["speedup_by_median"].values())
        )


def _in_turns(rows: Sequence[Row]) -> list[np.ndarray]:
    """µs of every timed call, per row; rows take turns, in another order each round, in blocks of queries."""
    taken: list[list[float]] = [[] for _ in rows]
    rng = np.random.default_rng(0)
    with collector_off():
        for turn in range(ROUNDS):
            for which in rng.permutation(len(rows)):
                row, times = rows[which], taken[which]
                block = TIMED_DENSE if row.dense else TIMED
                start = turn * block
                for at in range(start - WARM_UP, start + block):
                    query = row.queries[at % len(row.queries)]
                    started = time.perf_counter()
                    row.call(*query)
                    took = time.perf_counter() - started
                    if at >= start:
                        times.append(took * 1e6)
    return [np.array(times) for times in taken]


def _cold(rows: Sequence[Row]) -> list[np.ndarray]:
    """µs of calls before each of which everything else was read."""
    taken, other, rng = np.empty((len(rows), COLD_CALLS)), np.ones(COLD_BYTES // 8), np.random.default_rng(1)
    with collector_off():
        for at in range(COLD_CALLS):
            for which in rng.permutation(len(rows)):
                row = rows[which]
                query = row.queries[at % len(row.queries)]
                other.sum()
                started = time.perf_counter()
                row.call(*query)
                taken[which, at] = (time.perf_counter() - started) * 1e6
    return list(taken)


def caches() -> str:
    """Sizes of the first core's caches, as Linux tells them."""
    rows = []
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        if kind != "Instruction":
            rows.append(f"L{level} {size}")
    return ", ".join(rows) or "caches unknown"


_MEASURED: dict[int, float] = {}


def _bandwidth(size: float) -> float:
    """Bytes a second when so many are read one after the other, in this process now."""
    floats = 1 << max(12, int(np.log2(max(size, 1) / 4)))
    if floats not in _MEASURED:
        data, best = np.ones(floats, dtype=np.float32), float("inf")
        for _ in range(20):
            started = time.perf_counter()
            data.dot(data)
            best = min(best, time.perf_counter() - started)
        # A dot product of a vector with itself reads it once.
        _MEASURED[floats] = data.nbytes / best
    return _MEASURED[floats]
