"""Graph network over typed operators that corrects each one's cost on a roofline."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Event
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor, nn

from slotool import devices, strict_json
from slotool.errors import InputError, RunError
from slotool.graphs import Operator, OperatorGraph
from slotool.graphs.encodings import MEASURES, OperatorArrays
from slotool.llvm import without_late_triton
from slotool.predictors.base import Document, Labels, Predictor, Progress, Tensors
from slotool.predictors.features.network_features import relative_prices
from slotool.predictors.features.packed_graphs import Packed, Picker, exchange, group

DENSE, RECURRENT = "Dense", ("LSTM", "GRU", "SimpleRNN")
# Time of a step of a recurrent layer in one kernel, as a share of a call: 1.1 µs for 16 units in torch on a two-core
# EPYC, where a small dense layer takes 5.
STEP_SHARE = 0.2
# Totals of the network, in addition to each operator's own measures.
CONTEXT = ("operators", "flops", "padded_flops", "weight_bytes", "moved_bytes", "largest_weight", "largest_output")
HIDDEN_UNITS = 64
ROUNDS = 2
MEMBERS = 2
LEARNING_RATE = 4e-3
WEIGHT_DECAY = 1e-2
MAX_BATCH = 128
STEPS_PER_EPOCH = 8
MAX_EPOCHS = 150
MAX_STEPS = 3600
PATIENCE_TO_STOP = 50
# A dozen dev labels tell little about one epoch: the error that stops training is averaged over about this many.
EPOCHS_SMOOTHED = 10
# An operator costs at most e^5 times its roofline, and at least e^-5 of it.
MAX_LOG_FACTOR = 5.0
# Share of training networks whose totals are hidden, as are those of networks beyond the training range.
BLIND_SHARE = 0.25
GRAPHS_AT_ONCE = 1000
# Gradients are summed over parts of a batch of about so many operators, which stay in a core's cache.
OPERATORS_AT_ONCE = 2000
# Arrays of ``GraphScaling``.
SCALING = ("mean", "deviation", "low", "high", "call_s", "prices")


def roofline_terms(measures: np.ndarray) -> np.ndarray:
    """Return a call, padded FLOPs, weight bytes and moved bytes, float64 [operators, 4]."""
    _, padded, weights, read, written = measures[:, :5].T
    return np.stack([np.ones(len(measures)), padded, weights, read + written], axis=1)


def fitted_prices(
    terms: np.ndarray, slots: np.ndarray, owners: np.ndarray, latency_s: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Fit seconds > 0 by least squares on relative errors: of a network [1], of terms by type [types + 1, terms].

    The last row holds for unknown types: prices that fit all types alike. Every type pays at least a thousandth of
    these, since a factor cannot correct a cost of zero.
    """
    types, width = int(slots.max()) + 1, terms.shape[1]
    by_type = np.zeros((len(latency_s), types, width))
    np.add.at(by_type, (owners, slots), terms)
    ones = np.ones((len(latency_s), 1))
    common = relative_prices(np.hstack([ones, by_type.sum(axis=1)]), latency_s, least=1e-3)
    by_type_s = relative_prices(np.hstack([ones, by_type.reshape(len(ones), -1)]), latency_s)
    prices = np.vstack([np.maximum(by_type_s[1:].reshape(types, width), 1e-3 * common[1:]), common[1:]])
    return np.maximum(by_type_s[:1], 1e-3 * common[:1]), prices


def costs_s(
    operators: OperatorArrays, terms: np.ndarray, slots: np.ndarray, types: Sequence[str], prices: np.ndarray
) -> np.ndarray:
    """Return float64 seconds [operators] of ``roofline_terms`` at the prices of their types.

    A recurrent layer of an unknown type pays the prices of dense layers, which multiply a vector by weights as well.
    """
    cost_s = np.sum(terms * prices[slots], axis=1)
    unknown = np.flatnonzero(slots == len(types)).tolist()
    if unknown and DENSE in types:
        dense = prices[list(types).index(DENSE)]
        for row in unknown:
            operator = operators.distinct[operators.rows[row]]
            if operator.op in RECURRENT:
                cost_s[row] = np.array([_calls(operator), *terms[row, 1:]]) @ dense
    return np.asarray(cost_s)


def _calls(operator: Operator) -> float:
    """Return the fixed cost of a recurrent layer as a number of calls."""
    if operator.calls > 1:
        return float(operator.calls)
    layers, directions = operator.attributes.get("layers", 1), 1 + operator.attributes.get("bidirectional", False)
    return float(1 + STEP_SHARE * layers * directions * operator.shape[-2])


def type_slots(operators: OperatorArrays, types: Sequence[str]) -> np.ndarray:
    """Return the number of each operator's type among ``types``, or one past them, int64 [operators]."""
    slot = {op: i for i, op in enumerate(types)}
    names, kinds = operators.types
    return np.asarray(np.array([slot.get(op, len(types)) for op in names], dtype=np.int64)[kinds])


class GraphNetworkPredictor(Predictor[OperatorGraph]):
    """Latency = a constant + Σ over operators of a roofline cost × a factor from a graph network.

    The roofline prices calls, padded FLOPs, weight bytes and moved bytes per operator type (non-negative least squares
    on relative errors). The factor depends on the operator's type and sizes, on its neighbours over ``ROUNDS`` of
    messages along edges in both directions, and on the network's totals, which tell what fits a cache. A sum extends to
    networks deeper than those in training: totals beyond the training range are hidden, as for a share of the training
    networks, and sizes of operators are clipped to it. An operator of an unknown type pays prices that fit all types
    alike, with factor 1, a recurrent layer those of dense layers.

    ``members`` networks of different seeds are trained on |log(predicted ÷ label)|, each up to its lowest dev error
    (smoothed over epochs), and averaged in log. Training runs on ``device``, prediction on the CPU. Raises
    ``InputError`` for options below 1 or an unusable device, ``RunError`` when training diverged.
    """

    name = "graph"

    def __init__(self, members: int = MEMBERS, epochs: int = MAX_EPOCHS, *, device: str = devices.CPU):
        if min(members, epochs) < 1:
            raise InputError("the graph network needs at least 1 member and 1 epoch")
        self.members, self.epochs, self._device = members, epochs, devices.required(device)

    @property
    def fit_steps(self) -> int:
        return self.members

    def fit(self, train: Labels, dev: Labels, *, seed: int = 0, progress: Progress | None = None) -> None:
        train.require("training")
        dev.require("dev")
        self._scaling = GraphScaling.fit(*train)
        fitting, choosing = (
            (
                self._scaling.pack(OperatorArrays.of(part.items), merge=True),
                torch.from_numpy(np.log(part.latency_s)).float(),
            )
            for part in (train, dev)
        )
        self._networks = [_new_network(self._scaling, seed + member) for member in range(self.members)]
        # As many trainings at once as torch has threads, each with one, which changes no result.
        at_once, stopped = torch.get_num_threads(), Event()
        with one_thread(), ThreadPoolExecutor(at_once, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            try:
                trainings = [
                    pool.submit(_train, network, fitting, choosing, seed + member, self.epochs, stopped, self._device)
                    for member, network in enumerate(self._networks)
                ]
                for member, training in enumerate(trainings):
                    error = training.result()
                    if progress:
                        progress(f"graph: network {member + 1} of {self.members}, dev error {error:.1%}")
            finally:
                stopped.set()

    def predict(self, graphs: Sequence[OperatorGraph]) -> np.ndarray:
        if not graphs:
            return np.empty(0)
        logs, operators = [], OperatorArrays.of(graphs)
        with one_thread(), torch.inference_mode():
            for at in range(0, len(graphs), GRAPHS_AT_ONCE):
                packed = self._scaling.pack(operators.part(at, min(at + GRAPHS_AT_ONCE, len(graphs))))
                logs.append(torch.stack([network(packed) for network in self._networks]).double().mean(dim=0))
        predicted_s: np.ndarray = np.exp(torch.cat(logs).numpy())
        return predicted_s

    def operator_seconds(self, item: OperatorGraph) -> np.ndarray:
        """Return the latency in proportion to each operator's share, the mean over members."""
        with one_thread(), torch.inference_mode():
            packed = self._scaling.pack(OperatorArrays.of([item]))
            parts = [network.seconds(packed) for network in self._networks]
            shares = torch.stack([cost_s / (constant_s + cost_s.sum()) for constant_s, cost_s in parts]).double()
        return np.asarray(shares.mean(dim=0).numpy() * self.predict([item])[0])

    def surrogate(self) -> Predictor[OperatorGraph]:
        """Return the additive predictor: seconds instead of minutes, 1.0 to 1.6 times the error on held-out kinds."""
        from slotool.predictors.solo.additive import AdditivePredictor

        return AdditivePredictor()

    def state(self) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        tensors = {f"scaling.{name}": getattr(self._scaling, name) for name in SCALING}
        for i, network in enumerate(self._networks):
            tensors |= {f"networks.{i}.{name}": value.numpy() for name, value in network.state_dict().items()}
        document = {"types": list(self._scaling.types), "measures": list(MEASURES), "context": list(CONTEXT)}
        return tensors, {**document, "members": self.members, "epochs": self.epochs}

    @classmethod
    def from_state(cls, tensors: Tensors, document: Document) -> Self:
        if document["measures"] != list(MEASURES) or document["context"] != list(CONTEXT):
            raise InputError("the graph predictor was trained with other measures than this slotool has")
        restored = cls(int(document["members"]), int(document["epochs"]))
        types = tuple(strict_json.convert(document["types"], list[str]))
        restored._scaling = GraphScaling(types, *(tensors[f"scaling.{name}"] for name in SCALING))
        restored._networks = []
        for i in range(restored.members):
            prefix = f"networks.{i}."
            network = GraphNetwork(restored._scaling.width)
            weights = {
                name.removeprefix(prefix): torch.tensor(v) for name, v in tensors.items() if name.startswith(prefix)
            }
            try:
                network.load_state_dict(weights)
            except RuntimeError:
                raise InputError("the graph predictor's weights are those of another version of slotool") from None
            restored._networks.append(network)
        return restored


@dataclass(frozen=True)
class GraphScaling:
    """Scaling of graphs from the training set: types, ranges of the logarithms, prices of the roofline."""

    types: tuple[str, ...]
    mean: np.ndarray
    deviation: np.ndarray
    low: np.ndarray
    high: np.ndarray
    call_s: np.ndarray
    prices: np.ndarray

    @property
    def width(self) -> int:
        return len(self.types) + 1 + len(self.mean) + 1

    @classmethod
    def fit(cls, graphs: Sequence[OperatorGraph], latency_s: np.ndarray) -> Self:
        operators = OperatorArrays.of(graphs)
        numbers = np.log1p(_with_context(operators))
        deviation = numbers.std(axis=0)
        types = tuple(sorted({operator.op for operator in operators.distinct}))
        terms = roofline_terms(operators.measures)
        constant_s, prices = fitted_prices(terms, type_slots(operators, types), operators.owners, latency_s)
        return cls(
            types=types,
            mean=numbers.mean(axis=0),
            deviation=np.where(deviation > 1e-6, deviation, 1.0),
            low=numbers.min(axis=0),
            high=numbers.max(axis=0),
            call_s=constant_s,
            prices=prices,
        )

    def pack(self, arrays: OperatorArrays, *, merge: bool = False) -> Packed:
        """Pack graphs; ``merge``: compute operators once that the network cannot tell apart, as in repeated blocks.

        Sums are then added up in another order.
        """
        numbers = np.log1p(_with_context(arrays))
        beyond = (numbers < self.low - 1e-6) | (numbers > self.high + 1e-6)
        blind = beyond[:, -len(CONTEXT) :].any(axis=1)
        numbers = (np.clip(numbers, self.low, self.high) - self.mean) / self.deviation
        slots, owners, edges = type_slots(arrays, self.types), arrays.owners, arrays.edges
        cost = costs_s(arrays, roofline_terms(arrays.measures), slots, self.types, self.prices)
        first = classes = np.arange(len(slots))
        if merge:
            first, classes = group(np.column_stack([owners, slots, numbers]), *edges, ROUNDS)
            cost = np.bincount(classes, cost)
        one_hot, ends = np.eye(len(self.types) + 1)[slots[first]], np.zeros((len(first), 1))
        operators = torch.from_numpy(np.hstack([one_hot, numbers[first], ends]).astype(np.float32))
        neighbours, starts = exchange(*edges, first, classes)
        return Packed(
            operators=_without_context(operators, torch.from_numpy(blind[first])),
            known=torch.from_numpy((slots[first] < len(self.types)).astype(np.float32)),
            cost=torch.from_numpy(cost.astype(np.float32)),
            graph=torch.from_numpy(owners[first]),
            constant_s=torch.full((len(arrays.sizes),), float(self.call_s[0])),
            neighbours=neighbours,
            starts=starts,
        )


class GraphNetwork(nn.Module):
    """Network from packed graphs, with ``width`` numbers for an operator, to log(seconds) [g]."""

    def __init__(self, width: int):
        super().__init__()
        self.input_proj = nn.Linear(width, HIDDEN_UNITS)
        self.rounds = nn.ModuleList(nn.Linear(3 * HIDDEN_UNITS, HIDDEN_UNITS) for _ in range(ROUNDS))
        self.hidden = nn.Linear(HIDDEN_UNITS, HIDDEN_UNITS)
        self.readout = nn.Linear(HIDDEN_UNITS, 1)
        self.constant = nn.Parameter(torch.zeros(()))

    def forward(self, graphs: Packed) -> Tensor:
        constant_s, cost_s = self.seconds(graphs)
        return torch.log(constant_s.index_add(0, graphs.graph, cost_s))

    def seconds(self, graphs: Packed) -> tuple[Tensor, Tensor]:
        """Return the fixed seconds of each graph [g], and the seconds of each operator [n]."""
        state = nn.functional.silu(self.input_proj(graphs.operators))
        for combine in self.rounds:
            state = state + nn.functional.silu(combine(graphs.neighbourhoods(state)))
        factor = self.readout(nn.functional.silu(self.hidden(state))).squeeze(1)
        cost_s = graphs.cost * torch.exp(graphs.known * MAX_LOG_FACTOR * torch.tanh(factor / MAX_LOG_FACTOR))
        constant_s = graphs.constant_s * torch.exp(self.constant)
        return constant_s, cost_s


def _with_context(operators: OperatorArrays) -> np.ndarray:
    """Return ``MEASURES`` of each operator and ``CONTEXT`` of its graph, float64 [operators, both]."""
    sizes, measures = operators.sizes, operators.measures
    starts = np.cumsum(sizes) - sizes
    _, _, weights, read, written = measures[:, :5].T
    totals = np.add.reduceat(np.column_stack([measures[:, :3], read + written]), starts)
    largest = np.maximum.reduceat(np.column_stack([weights, written]), starts)
    context = np.column_stack([sizes, totals, largest])
    return np.hstack([measures, np.repeat(context, sizes, axis=0)])


def _without_context(operators: Tensor, blind: Tensor) -> Tensor:
    """Return ``Packed.operators`` with totals of the ``blind`` ones, bool [n], hidden and the last column set to 1."""
    context = operators[:, -len(CONTEXT) - 1 : -1] * ~blind[:, None]
    is_blind = torch.maximum(operators[:, -1:], blind[:, None].to(operators.dtype))
    return torch.cat([operators[:, : -len(CONTEXT) - 1], context, is_blind], dim=1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Limit torch to one thread: sums stay in one order, and small matrices gain little from more."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _new_network(scaling: GraphScaling, seed: int) -> GraphNetwork:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = GraphNetwork(scaling.width)
    # Before training the network is the roofline.
    nn.init.zeros_(network.readout.weight)
    nn.init.zeros_(network.readout.bias)
    with torch.no_grad():
        # No training operator is of an unknown type, so these weights would stay random.
        network.input_proj.weight[:, len(scaling.types)] = 0
    return network


@without_late_triton()
def _train(
    network: GraphNetwork,
    train: tuple[Packed, Tensor],
    dev: tuple[Packed, Tensor],
    seed: int,
    epochs: int,
    stopped: Event,
    on: str,
) -> float:
    """Train up to the lowest mean |log(predicted ÷ label)| on the dev set; return that error.

    The network ends on the CPU. Once ``stopped`` is set, training ends with the next epoch.
    """
    device = devices.torch_device(on)
    (packed, labels), (dev_packed, dev_labels) = ((graphs.to(device), y.to(device)) for graphs, y in (train, dev))
    network.to(device)
    pick = Picker(packed)
    batch = min(MAX_BATCH, max(1, len(labels) // STEPS_PER_EPOCH))
    at_once = max(1, OPERATORS_AT_ONCE * len(labels) // len(packed.graph))
    steps = -(-len(labels) // batch)
    epochs = max(1, min(epochs, MAX_STEPS // steps))
    optimiser = torch.optim.AdamW(network.parameters(), LEARNING_RATE, weight_decay=WEIGHT_DECAY, fused=True)
    slower = torch.optim.lr_scheduler.OneCycleLR(optimiser, LEARNING_RATE, total_steps=epochs * steps, pct_start=0.1)
    shuffle = torch.Generator().manual_seed(seed)
    smoothed, best, best_at, best_state = math.nan, math.inf, 0, network.state_dict()
    for epoch in range(epochs):
        for rows in torch.randperm(len(labels), generator=shuffle).to(device).split(batch):
            optimiser.zero_grad(set_to_none=True)
            blind = torch.rand(len(rows), generator=shuffle).to(device) < BLIND_SHARE
            for few, left_out in zip(rows.split(at_once), blind.split(at_once), strict=True):
                part = pick(few)
                part = replace(part, operators=_without_context(part.operators, left_out[part.graph]))
                ((network(part) - labels[few]).abs().sum() / len(rows)).backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimiser.step()
            slower.step()
        with torch.inference_mode():
            error = float((network(dev_packed) - dev_labels).abs().mean())
        smoothed = smoothed + (error - smoothed) / EPOCHS_SMOOTHED if epoch else error
        if smoothed < best:
            best, best_at = smoothed, epoch
            best_state = {name: value.clone() for name, value in network.state_dict().items()}
        elif epoch - best_at >= PATIENCE_TO_STOP:
            break
        if stopped.is_set():
            break
    if not math.isfinite(best):
        raise RunError("the graph network learnt nothing: its training diverged")
    network.load_state_dict(best_state)
    network.cpu()
    return best
