"""Train a supernet: sandwich rule with in-place distillation (Yu et al. 2020)."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from slotool.atomic import whole_file
from slotool.data import Dataset
from slotool.data.dataset import Split
from slotool.elastic.supernets.layers import build
from slotool.elastic.supernets.plan import learning_plan
from slotool.elastic.supernets.space import Space, Subnet
from slotool.errors import InputError
from slotool.graphs.operators.windows import sides
from slotool.graphs.torch_module import GraphModule
from slotool.llvm import without_late_triton

WARM_UP = 0.2
# Numbers of float32 in a vector of AVX2.
VECTOR = 8
# Fewest epochs by default, on any data.
MIN_EPOCHS = 5


@dataclass(frozen=True)
class Training:
    """Options of a training.

    ``drawn``: random subnets a step besides the largest and the smallest; 0 and ``alone`` train the largest only, as
    any network. Raises ``InputError`` for numbers out of range.
    """

    epochs: int = 5
    drawn: int = 1
    alone: bool = False
    batch_size: int = 128
    learning_rate: float = 3e-3
    weight_decay: float = 1e-5
    seed: int = 0

    def __post_init__(self) -> None:
        if self.epochs < 1 or self.batch_size < 2 or self.drawn < 0 or not self.learning_rate > 0:
            raise InputError("epochs are at least 1, batches at least 2, learning rates above 0")


@without_late_triton()
def train(
    space: Space,
    data: Dataset,
    training: Training,
    *,
    start: GraphModule | None = None,
    checkpoint: Path | None = None,
    device: str = "cpu",
    progress: Callable[[], None] = lambda: None,
) -> GraphModule:
    """Return the network of ``space`` with shared weights learnt on the training split.

    ``start``: the same network with the weights to begin with; None: random ones.
    The number of epochs is fixed beforehand, so validation and test examples stay held out. ``checkpoint``: a folder
    that holds the state after each epoch; one that an interrupted run of the same training left is taken up again and
    ends with the very same weights. ``progress`` is called per epoch, those found finished too. Raises ``InputError``
    when the data have another shape or the checkpoint is of another training.
    """
    if data.input_shape != space.graph.input_shape or (data.classes,) != space.graph.output_shape:
        raise InputError(f"the network takes inputs {space.graph.input_shape}, {data.name} has {data.input_shape}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(training.seed)
        module = build(space.graph, space.epsilon)
        if start is not None:
            module.load_state_dict(start.state_dict())
        # The argument is documented, but not in torch's own stubs.
        module.to(device, memory_format=_memory_format(space))  # type: ignore[call-overload]
    named = dict(module.named_parameters())
    optimiser = torch.optim.Adam(named.values(), lr=training.learning_rate, weight_decay=training.weight_decay)
    stored = _Checkpoint(checkpoint, space, data, training, start) if checkpoint else None
    first = stored.restore(named, optimiser) if stored else 0
    for epoch in range(training.epochs):
        if epoch >= first:
            _epoch(space, module, optimiser, data.train, training, epoch, device)
            if stored:
                stored.write(epoch + 1, named, optimiser)
        progress()
    module.to("cpu", memory_format=torch.contiguous_format)  # type: ignore[call-overload]
    return module.eval()


def _memory_format(space: Space) -> torch.memory_format:
    """Return channels last, where slices of weights have few gaps and a step takes three quarters of the time.

    Not for 1×1 convolutions of a stride and fewer channels than a vector of AVX2 has: oneDNN writes beyond the gradient
    of their weights then, and the process aborts (torch 2.13 on an AMD EPYC).
    """
    narrow = any(
        operator.op == "Conv2D"
        and operator.input_shapes[0][0] < VECTOR
        and set(sides(operator.complete["kernel"], 2)) == {1} != set(sides(operator.complete["stride"], 2))
        for operator in space.narrowed(space.smallest).operators
    )
    return torch.contiguous_format if narrow else torch.channels_last


def _epoch(
    space: Space,
    module: GraphModule,
    optimiser: torch.optim.Optimizer,
    split: Split,
    training: Training,
    epoch: int,
    device: str,
) -> None:
    # Seeded by the epoch, so that a run taken up again draws what it would have drawn.
    rng = np.random.default_rng([training.seed, epoch])
    x, y = torch.from_numpy(split.x), torch.from_numpy(split.y)
    batches = _batches(rng.permutation(len(y)), training.batch_size)
    for i, batch in enumerate(batches):
        done = (epoch + i / len(batches)) / training.epochs
        for group in optimiser.param_groups:
            group["lr"] = training.learning_rate * _schedule(done)
        optimiser.zero_grad(set_to_none=True)
        subnets = [] if training.alone else [space.smallest, *(space.draw(rng) for _ in range(training.drawn))]
        _learn(space, module, x[batch].to(device), y[batch].to(device), subnets)
        optimiser.step()


def _learn(space: Space, module: GraphModule, x: Tensor, y: Tensor, subnets: Sequence[Subnet]) -> None:
    """Add gradients of the largest subnet from the labels, and of ``subnets`` from the largest's answers."""
    answers = learning_plan(space.narrowed(space.largest), module)(x)
    functional.cross_entropy(answers, y).backward()
    taught = answers.detach().softmax(dim=1)
    for subnet in subnets:
        functional.cross_entropy(learning_plan(space.narrowed(subnet), module)(x), taught).backward()


def _batches(order: np.ndarray, size: int) -> list[np.ndarray]:
    """Return the batches of ``size``; the last may be smaller, but never of one example, which has no variance."""
    batches = np.split(order, range(size, len(order), size))
    return batches[:-1] if len(batches) > 1 and len(batches[-1]) < 2 else batches


def _schedule(done: float) -> float:
    """Return the share of the highest learning rate: up in a line, down as a cosine."""
    if done < WARM_UP:
        return 0.05 + 0.95 * done / WARM_UP
    return 0.5 * (1 + math.cos(math.pi * (done - WARM_UP) / (1 - WARM_UP)))


def _digest(module: GraphModule) -> str:
    """Return a digest of all weights."""
    digest = hashlib.sha256()
    for parameter in module.parameters():
        digest.update(parameter.detach().numpy().tobytes())
    return digest.hexdigest()


class _Checkpoint:
    """Weights and the optimiser's moments after an epoch, in one file that is replaced at once."""

    def __init__(self, folder: Path, space: Space, data: Dataset, training: Training, start: GraphModule | None):
        self._file = folder / "state.safetensors"
        identity = {
            "graph": space.graph.id,
            "dimensions": space.document()["dimensions"],
            "data": data.name,
            **asdict(training),
        }
        if start is not None:
            identity["start"] = _digest(start)
        self._identity = json.dumps(identity, sort_keys=True)

    def write(self, epoch: int, named: dict[str, torch.nn.Parameter], optimiser: torch.optim.Optimizer) -> None:
        from safetensors.torch import save

        tensors = {f"weight/{name}": p.detach().cpu().contiguous() for name, p in named.items()}
        for name, p in named.items():
            for moment, value in optimiser.state[p].items():
                tensors[f"{moment}/{name}"] = value.cpu().contiguous()
        with whole_file(self._file) as partial:
            partial.write_bytes(save(tensors, metadata={"epoch": str(epoch), "training": self._identity}))

    def restore(self, named: dict[str, torch.nn.Parameter], optimiser: torch.optim.Optimizer) -> int:
        """Return the number of finished epochs. Raises ``InputError`` for a damaged file or another training."""
        if not self._file.exists():
            return 0
        from safetensors import SafetensorError, safe_open

        moments: dict[str, dict[str, Any]] = {name: {} for name in named}
        try:
            with safe_open(self._file, framework="pt") as file:
                identity = file.metadata() or {}
                if identity.get("training") != self._identity:
                    raise InputError(
                        f"{self._file.parent}: the checkpoint is of another training run; remove it or choose another"
                    )
                for key in file.keys():  # noqa: SIM118
                    kind, _, name = key.partition("/")
                    if kind == "weight":
                        named[name].data.copy_(file.get_tensor(key))
                    else:
                        moments[name][kind] = file.get_tensor(key)
        except (SafetensorError, KeyError) as error:
            raise InputError(f"{self._file}: this checkpoint cannot be resumed ({error}); remove it") from error
        for name, parameter in named.items():
            if moments[name]:
                on = {k: v if k == "step" else v.to(parameter.device) for k, v in moments[name].items()}
                optimiser.state[parameter] = on
        return int(identity["epoch"])
