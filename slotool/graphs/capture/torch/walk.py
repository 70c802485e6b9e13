"""The calls of an exported torch program, one after the other, as layers of a graph."""

from __future__ import annotations

import operator
from dataclasses import replace
from typing import Any

from slotool.graphs.capture.batch_axis import Share, share_of
from slotool.graphs.capture.drafts import Drafts
from slotool.graphs.capture.torch.aten import ACTIVATIONS, LAST_CALLS, SAME, AtenCall, Layout, Translated, translate
from slotool.graphs.capture.torch.aten_moving import order_of
from slotool.graphs.capture.torch.flops import CallFlops, inner_calls, is_uncosted
from slotool.graphs.capture.torch.forms import Forms
from slotool.graphs.capture.torch.nodes import arguments_of, called, first_value, plain_name, shape_of
from slotool.graphs.graph import MATRIX_OPERATORS
from slotool.graphs.operators import Shape

TO_LAST, TO_FIRST = [0, 2, 3, 1], [0, 3, 1, 2]
TURNS = ("permute", "transpose", "movedim", "swapaxes", "moveaxis", "t")
# They take a tensor for its type and its device, not for its numbers.
FILLED = ("new_zeros", "new_ones", "new_full", "new_empty")


class Walk:
    """Goes through an exported graph node by node.

    ``names`` holds the layer of every value that depends on the network's input, ``constants`` the number of weights
    behind every value that does not. ``last`` are the values that are images with their channels last: the graph has
    them channels first, as every image, and what only turns them is no layer.
    """

    def __init__(self, drafts: Drafts, batch: int, forms: Forms, prefix: str):
        self._drafts, self._batch, self._forms, self._prefix = drafts, batch, forms, prefix
        self.names: dict[Any, str] = {}
        self.constants: dict[Any, int] = {}
        self._last: set[Any] = set()
        self._call_flops = CallFlops()
        # FLOPs of products of weights alone, which run once however many examples there are.
        self._fixed_flops: dict[Any, int] = {}

    def place(self, node: Any, source: str | None, last: bool = False) -> None:
        """An input of the program: ``source`` for data, None for a parameter, buffer or constant; ``last``: an image
        with its channels last."""
        if source is not None:
            self.names[node] = source
            self._last |= {node} if last else set()
        else:
            self.constants[node] = _count(node)

    def call(self, node: Any) -> None:
        """Append what a call is."""
        data = [value for value in node.all_input_nodes if value in self.names]
        weights = sum(self.constants.get(value, 0) for value in node.all_input_nodes)
        shape = shape_of(node)
        name = called(node)
        self._forms.uncosted |= {called(call) for call in (node, *inner_calls(node)) if is_uncosted(call)}
        share = None if shape is None else share_of(shape, self._batch)
        if not data or shape is None or (share is None and name in FILLED):
            # A constant made of constants, or an assertion, or a size: nothing that takes time or has an output.
            self.constants[node] = weights
            self._fixed_flops[node] = self._flops_of_constants(node, share)
            return
        if node.target is operator.getitem and node.args[1] == 0:
            self.names[node] = self.names[data[0]]
            return
        if name in TURNS and share is not None and self._only_turns(node, data[0]):
            return
        self._add(node, name, data, share, weights)

    def _add(self, node: Any, name: str, data: list[Any], share: Share | None, weights: int) -> None:
        label, inputs = self._prefix + node.name, [self.names[value] for value in data]
        translated, shape, layout = self._translated(node, name, data, share)
        if translated == SAME:
            self.names[node] = self._drafts.drop(label, inputs[0])
        elif translated is not None and translated[0] == "Activation":
            self.names[node] = self._drafts.add_activation(label, translated[1]["activation"], inputs, shape)
        else:
            op, attributes = translated or (name, None)
            flops = self._flops(node, share) if attributes is None or op in MATRIX_OPERATORS else None
            self._note_forms(node, name, is_product=bool(flops))
            self.names[node] = self._drafts.add(label, op, inputs, attributes, shape, weights, flops)
        if layout is Layout.CHANNELS_LAST and len(shape) == 3:
            self._last.add(node)

    def _translated(
        self, node: Any, name: str, data: list[Any], share: Share | None
    ) -> tuple[Translated, Shape, Layout]:
        """What a call is, what it leaves of one example, and how its axes lie."""
        whole = shape_of(node) or ()
        shares = [share_of(shape_of(value) or (), self._batch) for value in data]
        if share is None or None in shares:
            # Where the batch is lost, nothing can be said of one example, so it is kept by name.
            return None, (whole if share is None else share.shape), Layout.ELSEWHERE
        layout, shape = self._layout(name, data, [share, *(known for known in shares if known)]), share.shape
        if layout is Layout.CHANNELS_LAST and len(whole) == 4:
            shape = (shape[2], shape[0], shape[1])
        call = AtenCall(
            arguments_of(node), tuple(self._drafts.shape(self.names[value]) for value in data), shape, layout
        )
        translated = translate(name, call)
        if translated is None:
            return None, share.shape, Layout.ELSEWHERE
        return translated, shape, layout

    def _layout(self, name: str, data: list[Any], shares: list[Share]) -> Layout:
        """How the axes of a call's tensors lie, the batch left out."""
        is_image = [len(shape_of(value) or ()) == 4 for value in data]
        if all(share.leading for share in shares):
            wants_last = name == "layer_norm" or any(value in self._last for value in data)
            stays_last = name.removesuffix("_") in LAST_CALLS or name in ACTIVATIONS
            if wants_last and stays_last and all(is_image) and all(self._as_last(value) for value in data):
                return Layout.CHANNELS_LAST
            if not any(value in self._last for value in data):
                return Layout.CHANNELS_FIRST
        return Layout.ELSEWHERE

    def _as_last(self, value: Any) -> bool:
        """Whether it is an image with its channels last, or can be called one: of what slotool knows by name alone, or
        only reshapes, nothing else says which of its axes are the channels."""
        if value in self._last:
            return True
        name = self._drafts.source(self.names[value])
        draft = self._drafts.layers[name]
        if len(draft.shape) != 3 or (draft.attributes is not None and draft.op != "Reshape"):
            return False
        height, width, channels = draft.shape
        shape = (channels, height, width)
        attributes = None if draft.attributes is None else {"shape": shape}
        self._drafts.layers[name] = replace(draft, shape=shape, attributes=attributes)
        self._last.add(value)
        return True

    def _only_turns(self, node: Any, value: Any) -> bool:
        """Whether a call moves the batch, or an image's channels: a matter of layout, and no layer, but remembered."""
        before, after = shape_of(value) or (), shape_of(node) or ()
        order = axes_of_turn(node, len(before))
        old, new = share_of(before, self._batch), share_of(after, self._batch)
        if order is None or old is None or new is None:
            return False
        rest = [axis for axis in order if before[axis] % self._batch]
        moves_batch = rest == sorted(rest) and old.shape == new.shape and value not in self._last
        to_last = order == TO_LAST and value not in self._last and old.leading
        to_first = order == TO_FIRST and old.leading and (value in self._last or self._as_last(value))
        if moves_batch or to_last or to_first:
            self.names[node] = self.names[value]
            if to_last:
                self._last.add(node)
            return True
        return False

    def _note_forms(self, node: Any, name: str, *, is_product: bool) -> None:
        inner = inner_calls(node)
        for call in inner:
            self._forms.note(called(call), first_value(call), is_product=bool(self._call_flops.of(call)))
        self._forms.note(name, first_value(node), is_product=is_product and not inner)

    def _flops(self, node: Any, share: Share | None) -> int:
        """Of one example, with those of the weights that only this call needs."""
        flops = self._call_flops.of(node)
        self._forms.batch_lost |= bool(flops) and share is None
        fixed = sum(self._fixed_flops.pop(value, 0) for value in node.all_input_nodes)
        return round(flops / self._batch) + fixed

    def _flops_of_constants(self, node: Any, share: Share | None) -> int:
        flops = self._call_flops.of(node)
        fixed = sum(self._fixed_flops.pop(value, 0) for value in node.all_input_nodes)
        return fixed + (flops if share is None else round(flops / self._batch))


def axes_of_turn(node: Any, rank: int) -> list[int] | None:
    """Return which axis of its input each axis of a turned tensor is; None where that is unknown."""
    try:
        return order_of(plain_name(node), arguments_of(node), rank)
    except (KeyError, TypeError, IndexError, ValueError):
        return None


def _count(node: Any) -> int:
    """How many weights a constant is; counters, such as a batch normalisation's, are none."""
    value = node.meta.get("val")
    return value.numel() if hasattr(value, "numel") and value.is_floating_point() else 0
