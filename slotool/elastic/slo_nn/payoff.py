"""Test that choosing nodes can pay for a network on this machine, before tables are learnt on all the data."""

from __future__ import annotations

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
# Training examples that the tables of a trial are learnt from.
TRIAL_EXAMPLES = 4_096


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
        return (1e6 * self.turns.medians_s).tolist()

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
        """Reason why choosing nodes cannot pay, or is undecided, with alternatives, in one sentence; None if it may."""
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
    """Return all nodes with int8 weights, where the output layer has an activator."""
    if len(model.mlp.layers) - 1 not in model.activators:
        return []
    listed = FixedList.of(model, np.arange(model.classes), int8=True)
    return [points_timed(listed.model, x)[listed.point]]


@dataclass(frozen=True)
class BuildPlan:
    """Work of a build.

    ``layers``: number of nodes of each activated layer, by name. ``k``: the k grid. ``ranker``: its name.
    ``examples``: size of the training split. ``most_table_bytes``: upper limit of the tables' bytes.
    """

    layers: dict[str, int]
    k: tuple[float, ...]
    ranker: str
    examples: int
    most_table_bytes: int


def plan(subject: TableSubject, ranker: str, settings: TableSettings) -> BuildPlan:
    """Return the plan of a ``build``."""
    return BuildPlan(
        layers={subject.mlp.layers[at].name: subject.mlp.layers[at].units for at in subject.activated},
        k=subject.shares(settings),
        ranker=ranker,
        examples=len(subject.data.train),
        most_table_bytes=int(TABLE_BYTES_SHARE * subject.mlp.nbytes),
    )


def trial(subject: TableSubject, ranker: str, settings: TableSettings) -> SloNN:
    """Return a model whose tables are learnt on few examples: as fast as ``build`` makes it, and less accurate."""
    examples = min(TRIAL_EXAMPLES, len(subject.data.train))
    validation = len(subject.data.validation) * examples // len(subject.data.train)
    least = (max(MIN_TRAINING_EXAMPLES, examples), max(MIN_VALIDATION_EXAMPLES, validation))
    return build("trial", subject.sampled(*least, settings.seed), ranker, settings)
