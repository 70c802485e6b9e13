"""Train one hidden ReLU layer between very many features and very many labels, in minutes on a few cores.

What makes it fast is that a batch touches few rows of either weight matrix: those of the features its examples have,
and those of a sample of the labels. Only these are gathered, differentiated and stepped.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from slotool.data.dataset import LabelSets, MultiLabelDataset, MultiLabelSplit
from slotool.elastic.network import Network
from slotool.elastic.slo_nn.activator import layer_input
from slotool.elastic.slo_nn.mlp import MLP
from slotool.errors import InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.torch_module import GraphModule

HIDDEN_UNITS = 128
BATCH_SIZE = 512
EPOCHS = 12
PEAK_LEARNING_RATE = 1e-2
WARM_UP_SHARE = 0.02
DROPOUT = 0.3
# Labels drawn per batch besides the batch's own; a set of few labels is trained on all of them.
NEGATIVES = 4_096
FEW_LABELS = 8_192
# Rows of features that are seen once or twice stay near where they begin: noise, if that is far from zero.
FEATURE_SCALE, LABEL_SCALE = 0.05, 0.01
FIRST_MOMENT, SECOND_MOMENT, EPSILON = 0.9, 0.999, 1e-8


def multilabel_mlp(data: MultiLabelDataset, hidden_units: int = HIDDEN_UNITS) -> OperatorGraph:
    """Return the features, one ``Dense`` layer with ReLU, one ``Dense`` of the labels."""
    builder = GraphBuilder("xmc")
    inputs = builder.add("InputLayer", shape=list(data.input_shape))
    hidden = builder.add("Dense", inputs, units=hidden_units, activation="relu")
    builder.add("Dense", hidden, units=data.classes)
    return builder.graph()


def steps(data: MultiLabelDataset, epochs: int) -> int:
    """Return the number of ``train_multilabel``'s calls of progress: one per batch."""
    return epochs * -(-len(data.train) // BATCH_SIZE)


def train_multilabel(
    name: str,
    data: MultiLabelDataset,
    *,
    hidden_units: int = HIDDEN_UNITS,
    epochs: int = EPOCHS,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> Network:
    """Train a network on the training split by softmax cross-entropy, an example's weight shared by its labels.

    With many labels the softmax is sampled, see ``SampledLabels``. The number of epochs is fixed, so that the version's
    ``scores`` (``validation_precision_at_1``, ``test_precision_at_5`` …) are held out. Same seed and threads, same
    weights on one machine. Raises ``InputError`` for fewer than one epoch or unit.
    """
    if epochs < 1 or hidden_units < 1:
        raise InputError(f"{epochs} epochs of {hidden_units} hidden units: at least 1 of either is needed")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        trainer = _Trainer(data, hidden_units, seed)
        trainer.fit(epochs, progress)
    module = trainer.module(multilabel_mlp(data, hidden_units))
    unscored = Network(name, module, sparse=data.sparse)
    scores = {
        f"{split}_precision_at_{k}": value
        for split in ("validation", "test")
        for k, value in score(unscored.mlp, getattr(data, split)).items()
    }
    return Network(name, module, scores, sparse=data.sparse)


class RowAdam:
    """A matrix trained by Adam, a batch's rows at a time: a row that a batch does not touch costs it nothing.

    The second moment is one number per row, the mean square of its gradient; an absent row's moments wait unchanged.
    ``rows`` is int64, each once, or None for all.
    """

    def __init__(self, weights: Tensor):
        self.weights = weights
        self._mean = torch.zeros_like(weights)
        self._square = torch.zeros(len(weights), 1)
        self._steps = 0

    def leaf(self, rows: Tensor | None = None) -> Tensor:
        """Return the rows as they are, to be differentiated by: float32 [rows, width]."""
        chosen = self.weights.detach() if rows is None else self.weights[rows]
        return chosen.requires_grad_()

    @torch.no_grad()
    def step(self, rows: Tensor | None, gradient: Tensor, learning_rate: float) -> None:
        self._steps += 1
        at = slice(None) if rows is None else rows
        mean = self._mean[at].lerp_(gradient, 1.0 - FIRST_MOMENT)
        square = self._square[at].lerp_(gradient.square().mean(dim=1, keepdim=True), 1.0 - SECOND_MOMENT)
        spread = (square / (1.0 - SECOND_MOMENT**self._steps)).sqrt_().add_(EPSILON)
        self.weights[at] -= mean / spread * (learning_rate / (1.0 - FIRST_MOMENT**self._steps))
        if rows is not None:
            self._mean[rows], self._square[rows] = mean, square


@dataclass(frozen=True)
class SampledLabels:
    """The labels that one batch's softmax runs over.

    ``rows``: int64 [c], or None for all. ``log_chance``: float32 [c], the logarithm of each one's chance to be among
    them, or None where that is certain. ``positions``: int64, where each label of each example stands in ``rows``.

    Candidates are all labels of the batch's examples and ``NEGATIVES`` drawn alike from all. Dividing each one's
    exponential by its chance makes the sampled partition function an unbiased estimate of the full one; an example's
    own labels are certain to be there, for it.
    """

    rows: Tensor | None
    log_chance: Tensor | None
    positions: Tensor

    @classmethod
    def draw(cls, labels: LabelSets, shares: np.ndarray, rng: np.random.Generator) -> SampledLabels:
        """Draw labels for a batch; ``shares``: float64 [classes], share of all examples that have a label."""
        classes = len(shares)
        if classes <= FEW_LABELS:
            return cls(None, None, torch.from_numpy(labels.indices.astype(np.int64)))
        rows = np.unique(np.concatenate([labels.indices, rng.integers(0, classes, NEGATIVES)]))
        absent = len(labels) * np.log1p(-np.minimum(shares[rows], 1 - 1e-9)) + NEGATIVES * math.log1p(-1 / classes)
        chance = torch.from_numpy(np.log(-np.expm1(absent)).astype(np.float32))
        return cls(torch.from_numpy(rows), chance, torch.from_numpy(np.searchsorted(rows, labels.indices)))


@torch.no_grad()
def label_gradients(
    hidden: Tensor, labels: Tensor, sets: LabelSets, candidates: SampledLabels
) -> tuple[float, Tensor, Tensor]:
    """Cross-entropy between each example's labels, equally likely, and the softmax of its scores; mean over examples.

    Returns it and its gradients by ``hidden`` (float32 [n, units]) and by the candidates' rows ``labels`` (float32
    [c, units + 1], the bias last). Written out, because automatic differentiation would copy the scores, by far the
    largest thing here, several times.
    """
    counts = torch.from_numpy(sets.counts)
    examples = torch.repeat_interleave(torch.arange(len(counts)), counts)
    at, shares = (examples, candidates.positions), (1.0 / counts)[examples]
    bias = labels[:, -1] if candidates.log_chance is None else labels[:, -1] - candidates.log_chance
    scores = torch.addmm(bias, hidden, labels[:, :-1].T)
    selected = scores[at]
    if candidates.log_chance is not None:
        selected += candidates.log_chance[candidates.positions]
        scores[at] = selected
    highest = scores.amax(dim=1, keepdim=True)
    total = scores.sub_(highest).exp_().sum(dim=1, keepdim=True)
    loss = float(((total.log() + highest).squeeze(1)[examples] - selected).mul_(shares).sum()) / len(counts)
    by_score = scores.div_(total)
    by_score[at] -= shares
    by_score /= len(counts)
    by_label = torch.cat([by_score.T @ hidden, by_score.sum(dim=0)[:, None]], dim=1)
    return loss, by_score @ labels[:, :-1], by_label


class _Trainer:
    """The weights while they are trained: a row per feature, and a row per label with its bias in the last column."""

    def __init__(self, data: MultiLabelDataset, hidden_units: int, seed: int):
        self.train, self.classes = data.train, data.classes
        self.rng = np.random.default_rng(seed)
        self.label_shares = np.bincount(data.train.y.indices, minlength=data.classes) / len(data.train)
        features = torch.randn(data.input_shape[0], hidden_units)
        labels = torch.randn(data.classes, hidden_units + 1) * LABEL_SCALE
        if isinstance(data.train.x, np.ndarray):
            features /= math.sqrt(len(features))
        else:
            present = np.bincount(data.train.x.indices, minlength=len(features)) > 0
            features *= FEATURE_SCALE * torch.from_numpy(present)[:, None]
        rarest = 0.5 / len(data.train)
        labels[:, -1] = torch.from_numpy(np.log(np.maximum(self.label_shares, rarest)))
        self.features, self.labels = RowAdam(features), RowAdam(labels)
        self.bias = RowAdam(torch.zeros(1, hidden_units))

    def fit(self, epochs: int, progress: Callable[[], None]) -> None:
        batches = -(-len(self.train) // BATCH_SIZE)
        total = epochs * batches
        for epoch in range(epochs):
            order = self.rng.permutation(len(self.train))
            for at, examples in enumerate(np.array_split(order, batches)):
                self.step(self.train.take(examples), _learning_rate(epoch * batches + at, total))
                progress()

    def step(self, batch: MultiLabelSplit, learning_rate: float) -> None:
        columns, product = _product(batch.x)
        candidates = SampledLabels.draw(batch.y, self.label_shares, self.rng)
        features, bias, labels = self.features.leaf(columns), self.bias.leaf(), self.labels.leaf(candidates.rows)
        hidden = functional.dropout(torch.relu(product(features) + bias), DROPOUT)
        _, by_hidden, by_label = label_gradients(hidden, labels, batch.y, candidates)
        by_feature, by_bias = torch.autograd.grad(hidden, (features, bias), by_hidden)
        self.features.step(columns, by_feature, learning_rate)
        self.bias.step(None, by_bias, learning_rate)
        self.labels.step(candidates.rows, by_label, learning_rate)

    def module(self, graph: OperatorGraph) -> GraphModule:
        """Return the trained network, its weights laid out as a ``Dense`` operator has them."""
        hidden, last = (f"layers.{operator.name}" for operator in graph.operators[1:])
        state = {
            f"{hidden}.weight": self.features.weights.T.contiguous(),
            f"{hidden}.bias": self.bias.weights[0],
            f"{last}.weight": self.labels.weights[:, :-1].contiguous(),
            f"{last}.bias": self.labels.weights[:, -1].contiguous(),
        }
        module = GraphModule(graph, device="meta")
        module.load_state_dict(state, strict=True, assign=True)
        return module.eval().requires_grad_(False)


def _product(x: Any) -> tuple[Tensor | None, Callable[[Tensor], Tensor]]:
    """Return the rows of W that x·W needs, int64 or None for all, and the product as a function of them."""
    if isinstance(x, np.ndarray):
        return None, partial(torch.matmul, torch.from_numpy(x))
    columns, at = np.unique(x.indices, return_inverse=True)
    begins, values = torch.from_numpy(x.indptr[:-1].astype(np.int64)), torch.from_numpy(x.data)
    entries = torch.from_numpy(at.astype(np.int64))
    product = partial(functional.embedding_bag, entries, offsets=begins, mode="sum", per_sample_weights=values)
    return torch.from_numpy(columns.astype(np.int64)), product


def _learning_rate(step: int, total: int) -> float:
    """Up to the peak in a short warm-up, then straight down to almost zero."""
    warm_up = max(1.0, WARM_UP_SHARE * total)
    return PEAK_LEARNING_RATE * min((step + 1) / warm_up, (total - step) / total)


CHUNK_EXAMPLES = 8_192
# Scores held at a time.
CHUNK_BYTES = 128 << 20


def top_labels(mlp: MLP, x: Any, k: int) -> np.ndarray:
    """Return the ``k`` labels that score highest, best first: int32 [n, k] from float32 [n, inputs], CSR or an array.

    Raises ``InputError`` when ``x`` has another width than the network, or ``k`` is not between 1 and its classes.
    """
    if x.shape[1] != mlp.layers[0].inputs:
        raise InputError(f"the network takes {mlp.layers[0].inputs} features, the examples have {x.shape[1]}")
    if not 1 <= k <= mlp.classes:
        raise InputError(f"the best {k} of {mlp.classes} labels cannot be given")
    answers = np.empty((x.shape[0], k), dtype=np.int32)
    rows = max(1, CHUNK_BYTES // (4 * mlp.classes))
    last = mlp.layers[-1]
    weights, bias = torch.from_numpy(last.weights), torch.from_numpy(last.bias)
    with torch.inference_mode():
        for start in range(0, len(answers), CHUNK_EXAMPLES):
            hidden = torch.from_numpy(layer_input(mlp, {}, x[start : start + CHUNK_EXAMPLES], 1.0, len(mlp.layers) - 1))
            for at, part in zip(range(start, len(answers), rows), hidden.split(rows), strict=False):
                scores = torch.addmm(bias, part, weights.T)
                answers[at : at + len(part)] = scores.topk(k, dim=1).indices.numpy()
    return answers


def precision_at(answers: np.ndarray, labels: LabelSets, ks: Sequence[int] = (1, 5)) -> dict[int, float]:
    """Return P@k by k: the mean share of an example's first k ``answers`` (int [n, ≥ k]) that are its labels."""
    right = labels.contain(answers)
    return {k: float(right[:, :k].mean()) for k in ks}


def score(mlp: MLP, split: MultiLabelSplit, ks: Sequence[int] = (1, 5)) -> dict[int, float]:
    """Return P@k of a network on a split, leaving out a ``k`` beyond the number of classes."""
    possible = [k for k in ks if k <= mlp.classes]
    return precision_at(top_labels(mlp, split.x, max(possible)), split.y, possible)
