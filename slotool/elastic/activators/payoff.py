"""Whether choosing nodes can pay for a network on this machine, found before tables are learnt on all the data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from slotool.elastic.activators.alternatives import FixedList
from slotool.elastic.activators.assessment import latencies_us, torch_us
from slotool.elastic.activators.slo_nn import SloNN

if TYPE_CHECKING:
    from slotool.elastic.family import Version

# Timed per point.
QUERIES = 400
# A gain that a measurement of so many calls tells from none.
MIN_GAIN = 1.05


@dataclass(frozen=True)
class Payoff:
    """Median latencies of one query in µs, by the kernels that will serve it, with tables of few examples.

    ``k``: shares of the nodes, ascending, and ``latency_us`` at each; ``full_us``: all nodes, without choosing;
    ``torch_us``: the network in PyTorch; ``int8_us``: all nodes with int8 weights, None where there are none for it.
    Accuracy is not asked here: it may need more nodes than pay.
    """

    k: tuple[float, ...]
    latency_us: tuple[float, ...]
    full_us: float
    torch_us: float
    int8_us: float | None

    @classmethod
    def of(cls, model: SloNN, source: Version, x: Any) -> Payoff:
        """Time ``model``, whose tables may be of any quality, on the inputs ``x``; ``source``: its network."""
        *chosen, full = latencies_us(model, x, QUERIES)
        return cls(tuple(model.shares), tuple(chosen), full, torch_us(source, x), _int8_us(model, x))

    @property
    def gain(self) -> float:
        """All nodes' latency over the least one of any k."""
        return self.full_us / min(self.latency_us)

    @property
    def largest_paying_k(self) -> float | None:
        """The greatest share of nodes that is answered sooner than all nodes are; None where none is."""
        paying = [k for k, us in zip(self.k, self.latency_us, strict=True) if self.full_us >= MIN_GAIN * us]
        return max(paying, default=None)

    @property
    def verdict(self) -> str | None:
        """Why choosing nodes cannot pay, in one sentence with what else would; None where it may."""
        if self.largest_paying_k is not None:
            return None
        return (
            f"choosing nodes cannot pay: all nodes take {self.full_us:.2f} µs, the fewest "
            f"({self.k[0]:.4g}) {min(self.latency_us):.2f} µs{self._otherwise()}"
        )

    @property
    def sentence(self) -> str:
        """The verdict; or up to which k choosing pays, and what else would."""
        if self.verdict is not None:
            return self.verdict
        return (
            f"choosing nodes pays up to k = {self.largest_paying_k:.4g}, at most {self.gain:.1f} × over all nodes "
            f"({self.full_us:.2f} µs), where so few nodes are accurate enough{self._otherwise()}"
        )

    def _otherwise(self) -> str:
        int8 = "" if self.int8_us is None else f"; all nodes as int8 take {self.int8_us:.2f} µs"
        return f"{int8}; PyTorch takes {self.torch_us:.2f} µs"


def _int8_us(model: SloNN, x: Any) -> float | None:
    """Of all nodes with int8 weights: those of a large output layer, else of all layers, which are to be dense and to
    get inputs that are not negative."""
    if len(model.mlp.layers) - 1 in model.activators:
        listed = FixedList.of(model, np.arange(model.classes), int8=True)
        return latencies_us(listed.model, x, QUERIES)[listed.point]
    if not model.mlp.dense or (not model.sparse and x.min() < 0):
        return None
    return latencies_us(model.at_int8(), x, QUERIES)[-1]
