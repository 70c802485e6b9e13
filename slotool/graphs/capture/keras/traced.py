"""Keras layers and operations that no symbol of Keras follows, recorded by torch as Keras' backend."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from slotool.errors import GraphError
from slotool.graphs.capture.batch_axis import batch_size
from slotool.graphs.capture.drafts import Drafts
from slotool.graphs.libraries import keras, nn, torch
from slotool.graphs.operators import Shape
from slotool.llvm import without_late_triton
from slotool.printable import reason

if TYPE_CHECKING:
    from torch import Tensor

    from slotool.graphs.capture.torch.program import Recording


@dataclass(frozen=True)
class Part:
    """Code to record: ``call`` on tensors of ``types`` and ``shapes`` without the batch; Keras ``weights``."""

    call: Callable[..., Any]
    shapes: Sequence[Shape]
    types: Sequence[str]
    weights: Sequence[Any]


@dataclass
class Notes:
    """Notes on traced parts: see ``OperatorGraph``."""

    uncosted: set[str] = field(default_factory=set)
    examples_interact: bool = False


def is_exportable() -> bool:
    """True if torch is Keras' backend, so that what a layer computes can be recorded."""
    return bool(keras.backend.backend() == "torch")


def part_of(node: Any) -> Part | None:
    """Return a call of a layer or an operation; None where it cannot be recorded."""
    operation, arguments = node.operation, node.arguments
    tensors = list({id(each): each for each in node.input_tensors}.values())

    def call(*values: Any) -> Any:
        args, kwargs = arguments.fill_in({id(each): value for each, value in zip(tensors, values, strict=True)})
        if getattr(operation, "_call_has_training_arg", False):
            kwargs = {**kwargs, "training": False}
        return operation(*args, **kwargs)

    flat = keras.tree.flatten((arguments.args, arguments.kwargs))
    weights = [*getattr(operation, "variables", ()), *(each for each in flat if hasattr(each, "trainable"))]
    return _part(call, tensors, weights)


def whole_of(functional: Any) -> Part | None:
    """Return a functional model; None where it cannot be recorded."""

    def call(*values: Any) -> Any:
        return functional(keras.tree.pack_sequence_as(functional._inputs_struct, list(values)), training=False)

    return _part(call, functional.inputs, functional.variables)


def _part(call: Callable[..., Any], tensors: Sequence[Any], weights: Sequence[Any]) -> Part | None:
    """None where torch is not Keras' backend, and where the inputs have no batch as their first axis, or free axes."""
    leads = {each.shape[0] for each in tensors if each.shape}
    closed = all(each.shape and None not in each.shape[1:] for each in tensors)
    if not is_exportable() or len(leads) != 1 or not closed:
        return None
    return Part(call, [tuple(each.shape[1:]) for each in tensors], [str(each.dtype) for each in tensors], weights)


def add_traced(
    drafts: Drafts, part: Part, sources: Sequence[str], images: Collection[str], label: str, notes: Notes
) -> list[tuple[str, bool]]:
    """Append the operations of a part; return each output's name, and True for an image stored channels last.

    ``images`` are ``sources`` with channels first in the drafts and last in Keras. Raises ``GraphError`` if it cannot
    be traced.
    """
    from slotool.graphs.capture.torch.network import Forms
    from slotool.graphs.capture.torch.program import walked

    try:
        recording = _recorded(part)
        forms = Forms(nn.Module())
        walk = walked(drafts, recording, sources, forms, f"{label}." if label else "", images)
        results = [walk.result(node) for node in recording.outputs]
    except Exception as error:
        # Keras, torch and a user's own code raise what they like.
        raise GraphError(f"{label or 'the model'} cannot be traced ({reason(error)})") from error
    notes.uncosted |= forms.uncosted
    notes.examples_interact |= forms.batch_lost
    return results


@without_late_triton()
def _recorded(part: Part) -> Recording:
    from slotool.graphs.capture.torch.capture import quiet
    from slotool.graphs.capture.torch.program import lazy_zeros, recorded

    batch = batch_size([*part.shapes, *(tuple(each.shape) for each in part.weights)])
    with quiet():
        examples = [
            lazy_zeros((batch, *shape), getattr(torch, kind))
            for shape, kind in zip(part.shapes, part.types, strict=True)
        ]
        return recorded(_module_of(part), examples)


def _module_of(part: Part) -> nn.Module:
    """Return the part as a module, which has the weights and hands them to the Keras variables."""

    class Called(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weights = nn.ParameterList([each.value for each in part.weights])

        def forward(self, *values: Tensor) -> tuple[Tensor, ...]:
            with keras.StatelessScope(state_mapping=list(zip(part.weights, self.weights, strict=True))):
                results = keras.tree.flatten(part.call(*values))
                return tuple(each for each in results if each is not None)

    return Called().eval()


def taken_since(drafts: Drafts, before: int) -> int:
    """Return the weights of the operators after the first ``before``."""
    return sum(draft.weights or 0 for draft in list(drafts.layers.values())[before:])
