"""One call of one of ``keras.ops``, with shapes and axes as Keras has them, without the batch: channels last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from slotool.graphs.capture.drafts import OUTPUT, Step
from slotool.graphs.operators import Shape


@dataclass(frozen=True)
class Call:
    """One call of an operation: ``inputs``, shapes of the arrays that it takes, of which some are ``fixed``, the same
    for every example; its ``outputs``; ``operation`` with its settings, and all ``arguments`` in their order."""

    operation: Any
    inputs: tuple[Shape, ...]
    fixed: tuple[bool, ...]
    outputs: tuple[Shape, ...]
    arguments: tuple[Any, ...]

    @property
    def shape(self) -> Shape:
        return self.outputs[0]

    def axis(self, axis: int, rank: int | None = None) -> int | None:
        """An axis that Keras counts with the batch; None for that of the batch."""
        rank = len(self.inputs[0]) if rank is None else rank
        at = axis % (rank + 1) - 1
        return None if at < 0 else at

    def axes(self, given: Any = None) -> tuple[int, ...] | None:
        """Those ``given``, by default of the operation's ``axis``, one or several; None where the batch is one."""
        axis = self.operation.axis if given is None else given
        found = [self.axis(each) for each in ((axis,) if isinstance(axis, int) else axis or (0,))]
        return None if None in found else tuple(each for each in found if each is not None)


def is_operation(operation: Any) -> bool:
    """Whether it is one of ``keras.ops``, not a layer."""
    return type(operation).__module__.startswith(("keras.src.ops.", "keras.src.activations."))


def one(op: str, **attributes: Any) -> Step:
    """A call that is one operator of its first input."""
    return (OUTPUT, op, attributes, (0,))
