"""The calls of an exported torch program as operators of every kind, the batch followed wherever it goes."""

from __future__ import annotations

import math
import operator
from collections.abc import Sequence
from typing import Any

import torch
from torch import fx, nn

from slotool.errors import GraphError
from slotool.graphs.capture.batch_axis import axis_of, share_of
from slotool.graphs.capture.drafts import FLOPS_TOLERANCE, Drafts
from slotool.graphs.capture.torch.aten_arithmetic import ACTIVATIONS, ARITHMETIC
from slotool.graphs.capture.torch.aten_layers import LAYERS, QUANTISED, steps_over_examples
from slotool.graphs.capture.torch.aten_moving import MOVING, by_type, order_of
from slotool.graphs.capture.torch.flops import (
    block_of,
    flops_of,
    fourier_flops,
    inner_calls,
    is_choice,
    is_uncosted,
    parts_of,
)
from slotool.graphs.capture.torch.nodes import (
    arguments_of,
    base_of,
    called,
    count_of,
    dtype_of,
    first_value,
    given_arguments,
    largest_shape,
    leaves,
    packed_weights,
    plain_name,
    position_of,
    shape_of,
    signature,
    values_of,
)
from slotool.graphs.capture.torch.values import Call, Emitter, Untranslatable, Value
from slotool.graphs.graph import FLOAT32
from slotool.graphs.operators import DTYPES, Shape
from slotool.graphs.operators.base import CAPTURED

CALLS = {**MOVING, **ARITHMETIC, **LAYERS}
# Calls that leave an image stored channels last as it is, unless they must copy.
MAY_COPY = ("contiguous", "clone", "reshape", "view", "flatten", "unflatten", "squeeze", "unsqueeze", "to", "_to_copy")
# Calls that accept images stored channels last.
LAST_CALLS = {
    *ACTIVATIONS,
    *("linear", "layer_norm", "add", "mul", "sub", "div", "mean", "amax", "cat", "softmax"),
    *("dropout", "detach", "alias"),
}
# Operators that are layers, of which one may stand for a call with ``layers_alone``.
LAYER_OPERATORS = {
    *("Dense", "Conv2D", "DepthwiseConv2D", "BatchNormalization", "LayerNormalization", "LayerScale", "Rescaling"),
    *("MaxPooling2D", "AveragePooling2D", "GlobalMaxPooling2D", "GlobalAveragePooling2D", "ZeroPadding2D"),
    *("Flatten", "Reshape", "Add", "Multiply", "Concatenate", "Softmax", "ReLU", "Activation"),
}


# Operators that calls are, by all that their translation depends on: networks repeat their layers, and candidates those
# of others. Inputs and outputs are places among the call's sources, the operators before, and an empty name.
MAX_KNOWN = 16_384
_KNOWN: dict[Any, tuple[list[tuple[str, list[int], Any, Shape]], list[int], bool]] = {}
INT8 = "int8"
TURNS = ("permute", "transpose", "movedim", "swapaxes", "moveaxis", "t")
# Calls that use a tensor's type and device, not its numbers.
FILLED = ("new_zeros", "new_ones", "new_full", "new_empty")


class Forms:
    """Collects what a module computes in: of its matrix products where it has any, else of its weights."""

    def __init__(self, module: nn.Module):
        floating = [tensor for tensor in [*module.parameters(), *module.buffers()] if tensor.is_floating_point()]
        self._weights = {_name(tensor.dtype) for tensor in floating}
        self._products: set[str] = set()
        # True after a product whose output has no equal share of the batch per example.
        self.batch_lost = False
        # Calls whose cost follows neither from the bytes they move nor from FLOPs that torch counts.
        self.uncosted: set[str] = set()
        # Number of weights that a further operator reads.
        self.shared_weights = 0
        # FLOPs of one example as torch's counter has those of each call.
        self.counted_flops = 0.0
        self._quantised = any(".quantized" in type(part).__module__ for part in module.modules())

    def note(self, name: str, value: Any, *, is_product: bool) -> None:
        """Record a call with first output ``value``; ``is_product``: it has FLOPs that torch counts."""
        if name.startswith(("quantize_", "dequantize", "_int_mm", "_weight_int")) or "int8" in name:
            self._quantised = True
        dtype = getattr(value, "dtype", None)
        if is_product and dtype is not None:
            self._products.add(_name(dtype))

    @property
    def element_type(self) -> str:
        types = {INT8} if self._quantised else self._products or self._weights
        return "+".join(sorted(types)) or FLOAT32


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class NetworkWalk:
    """Goes through an exported graph call by call.

    ``names`` holds the operator of every value that depends on the network's input, ``constants`` the number of weights
    behind every value that does not. Images that have their channels last in the program are remembered: the graph has
    them channels first, as every image, and what only turns them is no operator.

    What is a layer becomes one. Everything else is translated by tables of calls, checked against torch on shape and
    FLOPs; a call that is composed of others is taken apart; what is left is kept by name. With ``layers_alone`` each
    call that is no layer is kept by name, one operator a call.
    """

    def __init__(self, drafts: Drafts, batch: int, forms: Forms, prefix: str, *, layers_alone: bool = False):
        self._drafts, self._batch, self._forms, self._prefix = drafts, batch, forms, prefix
        self._layers_alone = layers_alone
        self.names: dict[Any, str] = {}
        self.constants: dict[Any, int] = {}
        self._last: set[Any] = set()
        # FLOPs of products of weights alone, which run once however many examples there are.
        self._fixed_flops: dict[Any, int] = {}
        # Names of all outputs, for calls with several.
        self._parts: dict[Any, list[str]] = {}
        self._stand_ins: dict[Any, str] = {}
        # Parameters behind values that depend on no input, their sizes, and the parts that operators have claimed.
        self._behind: dict[Any, frozenset[Any]] = {}
        self._sizes: dict[Any, int] = {}
        self._claimed: dict[Any, int] = {}
        self._stood_in: set[Any] = set()
        # Parameters that branches take, of which one branch alone is walked.
        self._of_choices: set[Any] = set()
        # True if the calls are parts of another call.
        self._within = False

    def place(self, node: Any, source: str | None, last: bool = False) -> None:
        """Add an input of the program: ``source`` for data, None for a parameter, buffer or constant.

        ``last``: an image stored channels last.
        """
        if source is not None:
            self.names[node] = source
            self._last |= {node} if last else set()
        else:
            self.constants[node] = count_of(node)

    def place_parameter(self, node: fx.Node, key: Any) -> None:
        """Add a parameter of the program; tied ones have equal keys."""
        self.place(node, None)
        self._behind[node], self._sizes[key] = frozenset({key}), self.constants[node]

    def call(self, node: fx.Node) -> None:
        """Append what a call is."""
        block = block_of(node)
        if block is not None:
            if is_choice(node):
                operands = (each for each in block[1] if isinstance(each, fx.Node))
                self._of_choices |= frozenset().union(*(self._behind.get(each, ()) for each in operands))
            self._inline(node, *block)
            return
        if node in self.constants or node.meta.get("val") is None:
            # Computed before, or an assertion.
            return
        data = [value for value in node.all_input_nodes if value in self.names or value in self._parts]
        if node.target is operator.getitem and data:
            self._take(node, data[0])
            return
        shape, name = shape_of(node), plain_name(node)
        if is_uncosted(node) and not self._within:
            self._forms.uncosted.add(name)
        share = None if shape is None else share_of(shape, self._batch)
        if not data or shape is None or name in FILLED or name.endswith("_like") or name in ("empty", "arange"):
            self.constants[node] = sum(self.constants.get(value, 0) for value in node.all_input_nodes)
            self._behind[node] = frozenset().union(*(self._behind.get(v, ()) for v in node.all_input_nodes))
            self._fixed_flops[node] = self._counted(node, 1 if share is None else self._batch)
            self._fixed_flops[node] += self._take_fixed(node)
            return
        self._counted(node, self._batch)
        if (
            name in TURNS
            and share is not None
            and (self._turns_channels(node, data[0]) or (self._layers_alone and self._moves_batch(node, data[0])))
        ):
            return
        self._stood_in.clear()
        if (name in MAY_COPY and self._keeps_last(node, data)) or self._as_operators(node, name, data):
            self._claim(node)
        elif self._layers_alone or not self._taken_apart(node):
            self._keep_by_name(node, name, data)
            self._stood_in.clear()
            self._claim(node)
        if name != str(getattr(node.target, "__name__", "")).partition(".")[0] and node in self.names:
            self._written(node)

    def result(self, node: fx.Node) -> tuple[str, bool]:
        """Return the operator behind an output, and whether it is an image with its channels last in the program."""
        if node in self.names:
            return self.names[node], node in self._last
        try:
            return self._name_of(self._value(node, node.meta["val"])), False
        except Untranslatable as error:
            raise GraphError(f"an output of {self._prefix.rstrip('.')} is none of one example's: {error}") from error

    def keep_idle_weights(self) -> None:
        """After the last call: append the weights that only branches which were not walked have."""
        weights = sum(self._sizes[key] - self._claimed.get(key, 0) for key in self._of_choices)
        if weights:
            self._drafts.idle_weights(weights, self._prefix)

    def _written(self, node: fx.Node) -> None:
        """Redirect later readers of a call in place to it: those of its first input, and of that one's base."""
        place, base = node.args[0], base_of(node.args[0])
        self.names[place] = self.names[node]
        share = share_of(shape_of(base) or (), self._batch)
        if base is place or share is None:
            return
        whole = self._name_of(self._value(base, base.meta["val"]))
        self._last.discard(base)
        self.names[base] = self._drafts.add(
            f"{self._prefix}{node.name}_written", "Scatter", [whole, self.names[node]], {"in_place": True},
            self._drafts.shape(whole),
        )  # fmt: skip

    def _claim(self, node: fx.Node) -> None:
        """Note that an operator has the weights of its constants, and which of them another had before."""
        for value in node.all_input_nodes:
            if value not in self._stood_in and value not in self.names:
                self._forms.shared_weights += self._claimed_size(value)

    def _claimed_size(self, value: Any) -> int:
        """Claim a constant's weights and return the number that operators had claimed before.

        A constant may be a part of one parameter, as attention's matrices of ``in_proj_weight``.
        """
        behind, shared = self._behind.get(value, frozenset()), 0
        for key in behind:
            size, before = self._sizes[key], self._claimed.get(key, 0)
            size_here = min(math.prod(shape_of(value) or (size,)), size) if len(behind) == 1 else size
            self._claimed[key] = min(before + size_here, size)
            shared += before + size_here - self._claimed[key]
        return shared

    # Images with their channels last.

    def _keeps_last(self, node: fx.Node, data: list[Any]) -> bool:
        """True if a call leaves an image with its channels last as it is."""
        if len(data) != 1 or data[0] not in self._last or shape_of(node) != shape_of(data[0]):
            return False
        if dtype_of(node) != dtype_of(data[0]):
            return False
        self.names[node] = self.names[data[0]]
        self._last.add(node)
        return True

    def _turns_channels(self, node: fx.Node, value: Any) -> bool:
        """True if a call turns an image's channels last, or first again: no operator, but remembered."""
        order = axes_of_turn(node, len(shape_of(value) or ()))
        if value not in self.names or axis_of(shape_of(value) or (), self._batch) != (0, 1):
            return False
        to_last = order == [0, 2, 3, 1] and value not in self._last
        if not to_last and not (order == [0, 3, 1, 2] and value in self._last):
            return False
        self.names[node] = self.names[value]
        if to_last:
            self._last.add(node)
        return True

    def _moves_batch(self, node: fx.Node, value: Any) -> bool:
        """Redirect a call that moves the batch alone to its input, and return True if it is one."""
        before, after = shape_of(value) or (), shape_of(node) or ()
        order = axes_of_turn(node, len(before))
        old, new = share_of(before, self._batch), share_of(after, self._batch)
        if order is None or old is None or new is None or value in self._last or value not in self.names:
            return False
        rest = [axis for axis in order if before[axis] % self._batch]
        if rest != sorted(rest) or old != new:
            return False
        self.names[node] = self.names[value]
        return True

    # Everything else.

    def _as_operators(self, node: fx.Node, name: str, data: list[Any]) -> bool:
        """Append the operators of a call that tables know, and return True if they do."""
        if name not in CALLS and f"torch.{name}" not in CAPTURED:
            return False
        last = name in LAST_CALLS and all(value in self._last for value in data)
        return (last and self._translated(node, name, turned=True)) or self._translated(node, name, turned=False)

    def _translated(self, node: fx.Node, name: str, *, turned: bool) -> bool:
        """Translate as ``_as_operators``; ``turned`` views images stored channels last as channels first."""
        emit, sources = Emitter(self._drafts, self._prefix + node.name), self._sources(node)
        key: Any = None
        if all(value.meta.get("val") is not None for value in node.all_input_nodes):
            kinds = [(value in self._last, bool(self._fixed_flops.get(value))) for value in node.all_input_nodes]
            shapes = [self._drafts.shape(source) if source else None for source in sources]
            values = [node.all_input_nodes.index(value) for value in leaves(fx.Node, (node.args, node.kwargs))]
            arguments = signature(node.args), signature(node.kwargs), signature(node.meta["val"]), tuple(values)
            form = tuple(map(sources.index, sources)), tuple(kinds), tuple(shapes), bool(self._stood_in)
            key = (node.target, self._batch, turned, self._layers_alone, arguments, form)
        if key is not None and key in _KNOWN:
            steps, places, product = _KNOWN[key]
            for op, inputs, attributes, shape in steps:
                names = [*sources, *emit.added]
                emit.added.append(self._drafts.add(emit.label, op, [names[at] for at in inputs], attributes, shape))
            outputs: Sequence[str] = [[*sources, *emit.added, ""][at] for at in places]
        else:
            layers, stood_in = len(self._drafts.layers), len(self._stood_in)
            outputs, product = self._translation(node, name, emit, turned=turned), bool(emit.product_flops)
            alone = len(self._drafts.layers) == layers + len(emit.added) and len(self._stood_in) == stood_in
            names = [*sources, *emit.added, ""]
            added = [self._drafts.layers[each] for each in emit.added]
            if key is not None and alone and {*outputs}.union(*(draft.inputs for draft in added)) <= {*names}:
                if len(_KNOWN) >= MAX_KNOWN:
                    _KNOWN.clear()
                steps = [
                    (draft.op, [*map(names.index, draft.inputs)], draft.attributes, draft.shape) for draft in added
                ]
                _KNOWN[key] = steps, [*map(names.index, outputs)], product
        if not outputs:
            return False
        self._note_forms(node, name, is_product=product)
        self.names[node] = outputs[0]
        if isinstance(node.meta.get("val"), tuple | list):
            self._parts[node] = list(outputs)
        if turned and self._value(node, values_of(node)[0], turned=True).turned:
            self._last.add(node)
        return True

    def _sources(self, node: fx.Node) -> list[str]:
        """Return the operator behind each input of a call, empty for those that depend on no input of the program."""
        names = (self.names.get(value) for value in node.all_input_nodes)
        return ["" if name is None else self._drafts.source(name) for name in names]

    def _translation(self, node: fx.Node, name: str, emit: Emitter, *, turned: bool) -> Sequence[str]:
        """Append the operators of a call and return its outputs; nothing where no operators are the call."""
        try:
            outs = tuple(self._value(node, val, turned=turned) for val in values_of(node))
            # Tensors are ``Value``s.
            arguments = {key: self._argument(value, turned) for key, value in given_arguments(node).items()}
            translate = by_type if f"torch.{name}" in CAPTURED else CALLS[name]
            outputs = translate(Call(name, arguments, outs, emit, self._name_of, turned, not self._layers_alone))
            right = len(outputs) >= len(outs) and all(
                not part or self._drafts.shape(part) == out.shape for part, out in zip(outputs, outs, strict=False)
            )
        except (Untranslatable, GraphError, KeyError, TypeError, ValueError, IndexError, AttributeError):
            right = False
        if right and self._flops_agree(node, emit) and (not self._layers_alone or self._is_layer(emit)):
            return outputs
        emit.undo()
        return ()

    def _is_layer(self, emit: Emitter) -> bool:
        """True if what was appended is at most one operator, a layer, beside which no constant stands."""
        operators = [self._drafts.layers[name].op for name in emit.added]
        return len(operators) <= 1 and LAYER_OPERATORS.issuperset(operators) and not self._stood_in

    def _flops_agree(self, node: fx.Node, emit: Emitter) -> bool:
        counted = flops_of(node) / self._batch
        if not emit.product_flops and not counted:
            return True
        if plain_name(node) in _UNCOUNTED:
            return True
        return abs(emit.product_flops - counted) <= FLOPS_TOLERANCE * max(counted, emit.product_flops)

    def _take(self, node: fx.Node, source: Any) -> None:
        parts, position = self._parts.get(source), position_of(node)
        if parts is not None and position < len(parts) and parts[position]:
            self.names[node] = parts[position]
        elif (part := self._part_of_unknown(node, source)) is not None:
            self.names[node] = part
        else:
            self._keep_by_name(node, "getitem", [source])

    def _part_of_unknown(self, node: fx.Node, source: Any) -> str | None:
        """Append an output of a call kept by name as a view of its largest; None if the batch is lost.

        The call is one unknown operator for any number of outputs.
        """
        whole, share = self.names.get(source), share_of(shape_of(node) or (), self._batch)
        if whole is None or (share is None and position_of(node)):
            return None
        if share is None or share == self._drafts.shape(whole):
            return whole
        emit = Emitter(self._drafts, f"{self._prefix}{node.name}")
        try:
            part = emit.add("Slice", emit.add("Flatten", whole), axis=0, size=math.prod(share))
            return emit.add("Reshape", part, shape=share)
        except GraphError:
            emit.undo()
            return None

    def _name_of(self, value: Value, shape: Shape | None = None) -> str:
        """Return the operator behind a value: of a constant one that stands for it, in a shape without the batch."""
        if value.is_data:
            name = self.names[value.node]
            if value.turned or value.node not in self._last:
                return name
            if (value.node, "first") not in self._stand_ins:
                shape = self._drafts.shape(name)
                self._stand_ins[value.node, "first"] = self._drafts.add(
                    f"{self._prefix}{value.node.name}_turned", "Transpose", [name], {"axes": (1, 2, 0)},
                    (*shape[1:], shape[0]),
                )  # fmt: skip
            return self._stand_ins[value.node, "first"]
        shape = shape or value.shape or (1,)
        self._stood_in.add(value.node)
        if (value.node, shape) not in self._stand_ins:
            behind = self._behind.get(value.node, frozenset())
            weights = sum(self._sizes[key] - self._claimed.get(key, 0) for key in behind)
            self._claimed |= {key: self._sizes[key] for key in behind}
            flops = self._fixed_flops.pop(value.node, 0)
            attributes = {"shape": shape, "weights": weights, "flops": flops, "dtype": value.dtype}
            self._stand_ins[value.node, shape] = self._drafts.add(
                f"{self._prefix}{value.node.name}", "Constant", [], attributes, shape, weights
            )
        return self._stand_ins[value.node, shape]

    def _argument(self, value: Any, turned: bool) -> Any:
        if isinstance(value, fx.Node):
            inner = value.meta.get("val", packed_weights(value))
            return self._value(value, inner, turned=turned) if isinstance(inner, torch.Tensor) else inner
        if isinstance(value, list | tuple):
            return [self._argument(each, turned) for each in value]
        return value

    def _value(self, node: fx.Node, tensor: Any, *, turned: bool = False) -> Value:
        dtype = str(tensor.dtype).removeprefix("torch.")
        if dtype not in DTYPES:
            raise Untranslatable(f"values of {dtype}")
        is_plain, whole = tensor.layout is torch.strided, tuple(map(int, tensor.shape))
        is_turned = turned and len(whole) == 4 and node not in self.constants
        if is_turned:
            whole = (whole[0], whole[3], whole[1], whole[2])
        return Value(
            node, whole, self._batch, node in self.names,
            tuple(map(int, tensor.stride())) if is_plain else (), dtype, bool(self._fixed_flops.get(node)), is_turned,
        )  # fmt: skip

    def _keep_by_name(self, node: fx.Node, name: str, data: Sequence[Any]) -> None:
        """Append an unknown operator with its shape, weights and FLOPs."""
        shape = largest_shape(node)
        share = share_of(shape, self._batch)
        weights = sum(self.constants.get(value, 0) for value in node.all_input_nodes)
        flops = 0 if name == "getitem" else self._flops(node, share)
        self._note_forms(node, name, is_product=bool(flops))
        self._forms.batch_lost |= steps_over_examples(name, node, self._batch)
        flops = flops or round(fourier_flops(node) / self._batch)
        sources = [self.names[value] for value in data if value in self.names]
        left = shape if share is None else share
        self.names[node] = self._drafts.add(self._prefix + node.name, name, sources, None, left, weights, flops)

    def _note_forms(self, node: Any, name: str, *, is_product: bool) -> None:
        inner = inner_calls(node)
        for call in inner:
            self._forms.note(called(call), first_value(call), is_product=bool(flops_of(call)))
        self._forms.note(name, first_value(node), is_product=is_product and not inner)

    def _flops(self, node: Any, share: Shape | None) -> int:
        """Return FLOPs for one example, with those of weights that only this call needs."""
        flops = flops_of(node)
        self._forms.batch_lost |= bool(flops) and share is None
        return round(flops / self._batch) + self._take_fixed(node)

    def _take_fixed(self, node: Any) -> int:
        return sum(self._fixed_flops.pop(value, 0) for value in node.all_input_nodes)

    def _counted(self, node: Any, examples: int) -> int:
        """Return FLOPs of a call by the example, which torch's count of the whole includes."""
        flops = flops_of(node) / examples
        self._forms.counted_flops += 0 if self._within else flops
        return round(flops)

    # Calls that are made of calls.

    def _inline(self, node: fx.Node, graph: fx.Graph, inputs: Sequence[Any]) -> None:
        attributes = iter(inputs)
        for each in graph.nodes:
            if each.op == "placeholder":
                self._alias(each, next(attributes))
            elif each.op == "get_attr":
                self.constants[each] = 0
            elif each.op == "call_function":
                self.call(each)
        (results,) = next(each for each in reversed(graph.nodes) if each.op == "output").args
        single = not isinstance(results, list | tuple)
        ends = [results] if single else list(results)
        self._alias(node, ends[0] if ends else None)
        if not single:
            self._parts[node] = [self.names.get(each, "") for each in ends]
            self._constant_parts(node, ends)

    def _constant_parts(self, node: fx.Node, ends: Sequence[Any]) -> None:
        """Mark outputs of a block that depend on no input as constants."""
        for user in node.users:
            if user.target is operator.getitem and ends[position_of(user)] not in self.names:
                self.constants[user] = self.constants.get(ends[position_of(user)], 0)
                self._behind[user] = self._behind.get(ends[position_of(user)], frozenset())

    def _alias(self, node: fx.Node, source: Any) -> None:
        if source in self.names:
            self.names[node] = self.names[source]
            if source in self._last:
                self._last.add(node)
        else:
            self.constants[node] = self.constants.get(source, 0) if isinstance(source, fx.Node) else 0
            self._behind[node] = self._behind.get(source, frozenset())
            if source in self._fixed_flops:
                self._fixed_flops[node] = self._fixed_flops.pop(source)

    def _taken_apart(self, node: fx.Node) -> bool:
        """Walk what a call is made of, where torch runs it as others."""
        parts = parts_of(node)
        if parts is None:
            return False
        outer, self._within = self._within, True
        self._inline(node, *parts)
        self._within = outer
        return True


def axes_of_turn(node: Any, rank: int) -> list[int] | None:
    """Return which axis of its input each axis of a turned tensor is; None where that is unknown."""
    try:
        return order_of(plain_name(node), arguments_of(node), rank)
    except (KeyError, TypeError, IndexError, ValueError):
        return None


# Products that torch counts only when it runs them by their parts, or not at all.
_UNCOUNTED = ("lstm", "gru", "rnn_tanh", "rnn_relu", *QUANTISED)
