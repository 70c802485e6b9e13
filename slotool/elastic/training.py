"""Train classifiers given as operator graphs: the paper-shaped MLP and a family of growing cost."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from slotool.data import Dataset
from slotool.data.dataset import Split
from slotool.data.stored import StoredExamples
from slotool.elastic.family import Family
from slotool.elastic.network import Network
from slotool.errors import InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.torch_module import GraphModule
from slotool.llvm import without_late_triton
from slotool.process import using_torch_threads
from slotool.progress import Reporter

BATCH_SIZE = 64
# Slices of a split in its files that are in memory at a time, each of ``stored.BATCH_BYTES``.
POOL = 8
PEAK_LEARNING_RATE = 3e-3
# Small sets need many passes, large ones few: about this many images are seen, in no fewer passes than the least.
IMAGES_TO_SEE = 60_000
MIN_EPOCHS = 8
# A training step of fewer FLOPs is computed by one thread: by two it takes 0.7 to 1 of its time on two idle cores, and
# many times that where others use the cores too, as each thread then waits for one that does not run.
SMALL_STEP_FLOPS = 100e6
# A step computes the gradients of weights and of inputs too.
_STEP_PASSES = 3
# As many floats may be classes, in any number of rows; of more there must be so many rows each.
MAX_FLOATS, ROWS_PER_CLASS = 20, 3
FLOAT = re.compile(r"-?\d+(\.\d+(e[+-]?\d+)?|e[+-]?\d+)")
# The paper's Fashion-MNIST network after neuron pruning (slo-aware-neural-networks, Table 1).
PRUNED_HIDDEN_UNITS = (112, 112)


def mlp(data: Dataset, hidden_units: Sequence[int] = PRUNED_HIDDEN_UNITS) -> OperatorGraph:
    """Flatten, then ``Dense`` layers with ReLU, then one ``Dense`` of the classes."""
    builder = GraphBuilder("mlp")
    last = builder.add("Flatten", builder.add("InputLayer", shape=list(data.input_shape)))
    for units in hidden_units:
        last = builder.add("Dense", last, units=units, activation="relu")
    builder.add("Dense", last, units=data.classes)
    return builder.graph()


def small_cnn(data: Dataset, filters: Sequence[int] = (16, 32), hidden_units: Sequence[int] = (128,)) -> OperatorGraph:
    """Return 3×3 convolutions of these ``filters``, each with ReLU and 2×2 max-pooling, then dense layers with ReLU.

    Raises ``InputError`` for more convolutions than images of this size can be halved.
    """
    builder = GraphBuilder("cnn")
    last = builder.add("InputLayer", shape=list(data.image_shape))
    if min(data.image_shape[1:]) < 2 ** len(filters):
        raise InputError(f"{data.name}: inputs {data.input_shape} cannot be halved {len(filters)} times")
    for count in filters:
        last = builder.add("Conv2D", last, filters=count, kernel=3, padding="same", activation="relu")
        last = builder.add("MaxPooling2D", last, kernel=2)
    last = builder.add("Flatten", last)
    for units in hidden_units:
        last = builder.add("Dense", last, units=units, activation="relu")
    builder.add("Dense", last, units=data.classes)
    return builder.graph()


def family_graphs(data: Dataset) -> dict[str, OperatorGraph]:
    """Return three versions of rising cost: a narrow MLP, the 112-112 MLP, a small CNN."""
    return {"small": mlp(data, (8,)), "medium": mlp(data), "large": small_cnn(data)}


def default_epochs(data: Dataset, least: int = MIN_EPOCHS) -> int:
    """Return the passes over the training split that see about ``IMAGES_TO_SEE`` images, at least ``least``."""
    return max(least, round(IMAGES_TO_SEE / len(data.train)))


def trainable(data: Dataset) -> Dataset:
    """Return ``data``. Raises ``InputError`` if labels are measured numbers rather than classes: hardly any recurs."""
    examples, numbers = sum(map(len, data.splits.values())), sum(bool(FLOAT.fullmatch(name)) for name in data.labels)
    if numbers > MAX_FLOATS and examples < ROWS_PER_CLASS * numbers:
        raise InputError(
            f"{data.name}: label {data.label!r} has {numbers:,} different numbers in {examples:,} rows, and networks "
            "are trained on classes; cut it into a few classes, or predict numbers with a model of your own: "
            "slotool family --task regression"
        )
    return data


def threads_worth(graph: OperatorGraph, threads: int) -> int:
    """Return the number of threads that a training step of ``graph`` is worth: all, or 1 for small networks."""
    return threads if _STEP_PASSES * BATCH_SIZE * graph.flops >= SMALL_STEP_FLOPS else 1


def train_version(
    name: str,
    graph: OperatorGraph,
    data: Dataset,
    *,
    epochs: int | None = None,
    seed: int = 0,
    progress: Callable[[], None] = lambda: None,
) -> Network:
    """Train ``graph`` on the training split with Adam on a one-cycle schedule; ``progress`` is called per epoch.

    The number of epochs is fixed beforehand, so neither validation nor test examples influence the weights and both
    accuracies in the returned version's ``scores`` are held out. Same seed, same weights on the same machine.
    """
    epochs = epochs or default_epochs(data)
    if epochs < 1:
        raise InputError(f"{epochs} epochs: at least 1 is needed")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        module = GraphModule(graph)
        _fit(module, data.train, epochs, seed, progress)
    module.eval().requires_grad_(False)
    scores = {f"{split}_accuracy": accuracy(module, getattr(data, split)) for split in ("validation", "test")}
    return Network(name, module, scores)


def accuracy(module: Callable[[Tensor], Tensor], split: Split) -> float:
    """Return the share of examples whose best class is the labelled one; ``module``: logits of a batch."""
    with torch.inference_mode():
        batches = (torch.from_numpy(split.x[start : start + 1024]) for start in range(0, len(split), 1024))
        answers = torch.cat([module(batch).argmax(dim=1) for batch in batches]).numpy()
    return float(np.mean(answers == split.y))


def shuffled_batches(split: Split, generator: torch.Generator) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all examples once, ``BATCH_SIZE`` at a time, in random order.

    Of a split that stays in its files ``POOL`` slices of it, drawn at random, are in memory at a time, and the order is
    random among their examples.
    """
    y = torch.from_numpy(split.y)
    if not isinstance(split.x, StoredExamples):
        x = torch.from_numpy(split.x)
        for batch in torch.randperm(len(y), generator=generator).split(BATCH_SIZE):
            yield x[batch], y[batch]
        return
    slices = list(split.x.batches())
    for drawn in torch.randperm(len(slices), generator=generator).split(POOL):
        rows = np.sort(np.concatenate([np.arange(len(y))[slices[at]] for at in drawn.tolist()]))
        x, order = torch.from_numpy(split.x[rows]), torch.randperm(len(rows), generator=generator)
        for batch in order.split(BATCH_SIZE):
            yield x[batch], y[rows[batch.numpy()]]


def steps_of(split: Split) -> int:
    """Return an upper bound on the batches of ``shuffled_batches``."""
    pools = -(-sum(1 for _ in split.x.batches()) // POOL) if isinstance(split.x, StoredExamples) else 1
    return -(-len(split) // BATCH_SIZE) + pools - 1


@without_late_triton()
def _fit(module: GraphModule, split: Split, epochs: int, seed: int, progress: Callable[[], None]) -> None:
    steps = steps_of(split)
    optimiser = torch.optim.Adam(module.parameters(), weight_decay=1e-5)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, PEAK_LEARNING_RATE, total_steps=epochs * steps)
    shuffle = torch.Generator().manual_seed(seed)
    module.train()
    for _ in range(epochs):
        for x, y in shuffled_batches(split, shuffle):
            optimiser.zero_grad(set_to_none=True)
            functional.cross_entropy(module(x), y).backward()
            optimiser.step()
            schedule.step()
        progress()


def train_versions(
    name: str,
    graphs: Mapping[str, OperatorGraph],
    data: Dataset,
    *,
    epochs: int,
    seed: int,
    threads: int | None,
    cores: int,
    reporter: Reporter,
) -> Family:
    """Train a version for each graph, and return them as a family.

    Args:
        name: Name of the family.
        graphs: Networks by the names of their versions.
        data: Data set.
        epochs: Passes over the training split.
        seed: Same seed, same result.
        threads: Compute threads; None: as many of ``cores`` as the size of a network is worth.
        cores: Usable cores.
        reporter: Reporter of the progress.
    """
    versions = []
    with reporter.progress(f"training on {data.name}", total=epochs * len(graphs)) as steps:
        for version, graph in graphs.items():
            steps.say(f"training {version} on {data.name}")
            with using_torch_threads(threads or threads_worth(graph, cores)):
                versions.append(train_version(version, graph, data, epochs=epochs, seed=seed, progress=steps.advance))
    return Family.of(name, versions)


def most_frequent_share(data: Dataset) -> float:
    """Return the share of the most frequent class among the validation examples."""
    answers = np.unique(data.validation.y, return_counts=True)[1]
    return float(answers.max() / answers.sum())
