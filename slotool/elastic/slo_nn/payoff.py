"""Whether choosing nodes can pay for a network on this machine, found before tables are learnt on all the data."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.elastic.slo_nn.assessment import FixedList, Timed, points_timed, timed, torch_timed
from slotool.elastic.slo_nn.build import (
    MIN_TRAINING_EXAMPLES,
    MIN_VALIDATION_EXAMPLES,
    TABLE_BYTES_SHARE,
    TableSettings,
    TableSubject,
    build,
)
from slotool.elastic.slo_nn.model import SloNN
from slotool.timing.turns import Saving, Turns

if TYPE_CHECKING:
    from slotool.elastic.network import Network

# Timed per point.
QUERIES = 400
# Less of a query's time is not worth choosing nodes: of what all nodes take, and of what the whole network takes.
MIN_SHARE = 0.05
# A plan's build time is extrapolated from two builds: with TIMED_EXAMPLES training examples, and TIMED_PART of them.
TIMED_EXAMPLES, TIMED_PART = 4_096, 0.25


@dataclass(frozen=True)
class Payoff:
    """Latencies of one query by the kernels that will serve it, with tables of few examples.

    ``k``: shares of the nodes, ascending. ``turns``: the timed calls, of each ``k``, of all nodes without choosing, of
    the network in PyTorch, and of all nodes with int8 weights where these are a way. Accuracy is not asked here: it may
    need more nodes than pay.
    """

    k: tuple[float, ...]
    turns: Turns

    @classmethod
    def of(cls, model: SloNN, source: Network, x: Any) -> Payoff:
        """Time ``model``, whose tables may be of any quality, on the inputs ``x``; ``source``: its network."""
        turns = timed([*points_timed(model, x), torch_timed(source, x), *_int8_timed(model, x)], QUERIES)
        return cls(tuple(model.shares), turns)

    @property
    def latency_us(self) -> list[float]:
        """Median of each variant of ``turns``, µs."""
        medians: list[float] = (1e6 * self.turns.medians_s).tolist()
        return medians

    @property
    def full_us(self) -> float:
        return self.latency_us[len(self.k)]

    @property
    def savings(self) -> list[Saving]:
        """Savings over all nodes, by k."""
        return [self.turns.saving(len(self.k), at) for at in range(len(self.k))]

    @property
    def largest_paying_k(self) -> float | None:
        """The greatest share of nodes that is answered sooner than all nodes are; None where none is."""
        paying = [k for k, saving in zip(self.k, self.savings, strict=True) if saving.reaches(MIN_SHARE)]
        return max(paying, default=None)

    @property
    def decided(self) -> bool:
        """True if some k pays in every round of the measurement, or none in any."""
        return self.largest_paying_k is not None or all(s.reaches(MIN_SHARE) is False for s in self.savings)

    @property
    def verdict(self) -> str | None:
        """Why choosing nodes cannot pay, or why that is not decided, in one sentence with what else would; None where
        it may."""
        if self.largest_paying_k is not None:
            return None
        fewest = min(self.latency_us[: len(self.k)])
        measured = f"all nodes take {self.full_us:.2f} µs, the fewest ({self.k[0]:.4g}) {fewest:.2f} µs"
        best = max(self.savings, key=lambda saving: saving.most)
        doubt = "choosing nodes cannot pay" if self.decided else best.doubt
        return f"{doubt}: {measured}{self._otherwise}"

    @property
    def sentence(self) -> str:
        """The verdict; or up to which k choosing pays, and what else would."""
        if self.verdict is not None:
            return self.verdict
        gain = self.full_us / min(self.latency_us[: len(self.k)])
        return (
            f"choosing nodes pays up to k = {self.largest_paying_k:.4g}, at most {gain:.1f} × over all nodes "
            f"({self.full_us:.2f} µs), where so few nodes are accurate enough{self._otherwise}"
        )

    @property
    def document(self) -> dict[str, Any]:
        """Plain numbers and lists, µs."""
        chosen, (full_us, torch_us, *int8_us) = self.latency_us[: len(self.k)], self.latency_us[len(self.k) :]
        return {
            "k": self.k,
            "latency_us": chosen,
            "full_us": full_us,
            "torch_us": torch_us,
            "int8_us": int8_us[0] if int8_us else None,
            "largest_paying_k": self.largest_paying_k,
            "timing": self.turns.document,
        }

    @property
    def _otherwise(self) -> str:
        torch_us, *int8_us = self.latency_us[len(self.k) + 1 :]
        return "".join(f"; all nodes as int8 take {us:.2f} µs" for us in int8_us) + f"; PyTorch takes {torch_us:.2f} µs"


def _int8_timed(model: SloNN, x: Any) -> list[Timed]:
    """All nodes with int8 weights, where the output layer has an activator."""
    if len(model.mlp.layers) - 1 not in model.activators:
        return []
    listed = FixedList.of(model, np.arange(model.classes), int8=True)
    return [points_timed(listed.model, x)[listed.point]]


@dataclass(frozen=True)
class BuildPlan:
    """What a build would do, and its predicted time on this machine under its present load.

    ``layers``: number of nodes of each activated layer, by name. ``k``: the k grid. ``ranker``: its name.
    ``examples``: size of the training split. ``most_table_bytes``: upper limit of the tables' bytes. ``predicted_s``:
    build time in seconds.
    """

    layers: dict[str, int]
    k: tuple[float, ...]
    ranker: str
    examples: int
    most_table_bytes: int
    predicted_s: float


def plan(subject: TableSubject, ranker: str, settings: TableSettings) -> BuildPlan:
    """Plan ``build``. Two small builds are timed and extrapolated by a power law of the number of examples."""
    n = len(subject.data.train)
    most = min(n, TIMED_EXAMPLES) if n > 2 * TIMED_EXAMPLES else n // 2
    _time(subject, ranker, settings, int(TIMED_PART * most))  # loads and compiles what it needs
    part, whole = (_time(subject, ranker, settings, int(share * most)) for share in (TIMED_PART, 1.0))
    power = float(np.clip(np.log(whole / part) / np.log(1 / TIMED_PART), 0.5, 1.5))
    return BuildPlan(
        layers={subject.mlp.layers[at].name: subject.mlp.layers[at].units for at in subject.activated},
        k=subject.shares(settings),
        ranker=ranker,
        examples=n,
        most_table_bytes=int(TABLE_BYTES_SHARE * subject.mlp.nbytes),
        predicted_s=whole * float((n / most) ** power),
    )


def trial(subject: TableSubject, ranker: str, settings: TableSettings) -> SloNN:
    """A model whose tables are learnt on few examples: as fast as ``build`` makes it, and less accurate."""
    return build("trial", _part(subject, settings, TIMED_EXAMPLES), ranker, settings)


def _part(subject: TableSubject, settings: TableSettings, examples: int) -> TableSubject:
    examples = min(examples, len(subject.data.train))
    validation = len(subject.data.validation) * examples // len(subject.data.train)
    least = (max(MIN_TRAINING_EXAMPLES, examples), max(MIN_VALIDATION_EXAMPLES, validation))
    return subject.sampled(*least, settings.seed)


def _time(subject: TableSubject, ranker: str, settings: TableSettings, examples: int) -> float:
    part = _part(subject, settings, examples)
    started = time.perf_counter()
    build("timed", part, ranker, settings)
    return time.perf_counter() - started
