"""A user's torch network as one that slotool runs itself: an operator graph, and the weights of each operator.

``torch.export`` gives the calls, the capture says which operator each is, and this file finds the weights, and gives
what a graph keeps by name alone (attention, tokens, constants) an operator of ``layers``. Nothing of the user's code is
left in the result.

Self-attention is found by where each value goes, however it is written. Between the products of an attention layer
values are only moved: split, turned, viewed as heads. So the moves are carried out on the numbers of the values in
place of the values, which shows which row of the weights each query, key and value of each head is, and which
column of the last product takes each head's result.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, fx, nn

from slotool.elastic.supernets.layers import EFFECTS, build, own_layer
from slotool.errors import InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.capture.torch.calls import PRODUCTS, Calls, arguments_of
from slotool.graphs.capture.torch.nodes import plain_name
from slotool.graphs.operators import Operator, Shape, per_channel
from slotool.graphs.torch_module import ACTIVATIONS, GraphModule

# Default epsilon of normalisations in ``GraphModule``.
EPSILON = 1e-5
# Answers may differ by this share of the largest: sums are taken in another order.
TOLERANCE = 1e-3
SOFTMAX = ("Softmax", "torch.log_softmax", "torch._log_softmax")
# Equal of an unknown operator with one input, with attributes and weights; None: there is none.
Translated = tuple[str, dict[str, Any], dict[str, Tensor]] | None


@dataclass(frozen=True)
class ImportedNetwork:
    """A network by its ``graph``, whose operators are called after the user's layers.

    ``weights``: by operator and parameter; ``statistics``: (mean, variance) by batch normalisation; ``epsilon``: of
    normalisations where it is not ``EPSILON``; ``names``: of operators, by the capture's own. ``fresh``: the last
    layer, where the network answers with another number of classes and this layer therefore starts anew. ``ending``:
    softmax or log_softmax where the user's network ends in one, which is left out.
    """

    graph: OperatorGraph
    weights: Mapping[str, Mapping[str, Tensor]]
    statistics: Mapping[str, tuple[Tensor, Tensor]]
    epsilon: Mapping[str, float] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    fresh: str = ""
    ending: str = ""

    def ended(self, answers: Tensor) -> Tensor:
        """Return the logits as the user's network gives them."""
        if self.ending == "softmax":
            return answers.softmax(dim=-1)
        return answers.log_softmax(dim=-1) if self.ending else answers

    @property
    def taken(self) -> int:
        """Numbers that were taken over."""
        return sum(tensor.numel() for tensors in self.weights.values() for tensor in tensors.values())

    def module(self) -> GraphModule:
        """Return the network with its weights, in inference mode."""
        module = build(self.graph, self.epsilon)
        with torch.no_grad():
            for name, tensors in self.weights.items():
                layer = own_layer(module.of[name])
                for key, value in tensors.items():
                    target = getattr(layer, key)
                    target.copy_(value.reshape(target.shape))
            for name, (mean, variance) in self.statistics.items():
                norm: Any = own_layer(module.of[name])
                norm.running_mean.copy_(mean)
                norm.running_var.copy_(variance)
        return module.eval()


def import_torch(module: nn.Module, input_shape: Sequence[int], classes: int) -> ImportedNetwork:
    """Return the network of ``module``, for inputs float32 [batch, *input_shape] and so many classes.

    A softmax at its end is left out, for answers are logits. Raises ``InputError`` naming the layer that no supernet
    has, or that computes something else here than in the module.
    """
    return import_calls(Calls.of(module, input_shape), classes)


def import_calls(calls: Calls, classes: int | None = None) -> ImportedNetwork:
    """Import a captured module like ``import_torch``; ``classes`` None: as many as it has."""
    result = _Rewriting(calls).network(classes)
    if not result.fresh:
        _require_equal(result, calls)
    return result


class _Rewriting:
    """Goes through the captured graph and writes down each operator as one of ours, with its weights."""

    def __init__(self, calls: Calls):
        self._calls, self._attentions = calls, attentions(calls)
        self._operators = {operator.name: operator for operator in calls.graph.operators}
        self._builder = GraphBuilder("torch")
        self._names: dict[str, str] = {}
        self._weights: dict[str, dict[str, Tensor]] = {}
        self._statistics: dict[str, tuple[Tensor, Tensor]] = {}
        self._epsilon: dict[str, float] = {}

    def network(self, classes: int | None) -> ImportedNetwork:
        last = self._calls.graph.operators[-1].name
        ending = ""
        while self._operators[last].op in SOFTMAX:
            ending = ending or ("softmax" if self._operators[last].op == "Softmax" else "log_softmax")
            (last,) = self._inputs(last)
        if self._operators[last].attributes.get("activation") == "softmax":
            ending = ending or "softmax"
        needed = self._needed(last)
        fresh = ""
        for operator in self._calls.graph.operators:
            if operator.name not in needed:
                continue
            if operator.name == last and classes is not None and operator.shape != (classes,):
                fresh = self._resize(operator, classes)
            else:
                self._add(operator, is_last=operator.name == last)
        result = (self._weights, self._statistics, self._epsilon, self._names)
        return ImportedNetwork(self._builder.graph(), *result, fresh, ending)

    def _needed(self, last: str) -> set[str]:
        needed, stack = {last}, [last]
        while stack:
            fresh = set(self._inputs(stack.pop())) - needed
            needed |= fresh
            stack += fresh
        return needed

    def _inputs(self, name: str) -> tuple[str, ...]:
        """Return an operator's inputs after merging of the operators before it."""
        if name in self._attentions:
            return (self._attentions[name].source,)
        operator = self._operators[name]
        return self._operators[operator.inputs[0]].inputs if self._is_tokens(operator) else operator.inputs

    def _is_tokens(self, operator: Operator) -> bool:
        """True if it turns a flattened image (channels, positions) into (positions, channels)."""
        before = self._operators[operator.inputs[0]] if len(operator.inputs) == 1 else None
        if operator.op not in ("torch.transpose", "torch.permute") or before is None or before.op != "Reshape":
            return False
        image = self._operators[before.inputs[0]].shape
        return (
            len(image) == 3
            and before.shape == (image[0], math.prod(image[1:]))
            and (operator.shape == before.shape[::-1])
        )

    def _add(self, operator: Operator, *, is_last: bool) -> None:
        name = operator.name
        if name in self._attentions:
            self._add_attention(operator, self._attentions[name])
        elif self._is_tokens(operator):
            self._append(operator, "Tokens", {}, {})
        elif operator.known and operator.op != "Rescaling":
            self._add_known(operator, is_last)
        else:
            translated = self._translated(operator)
            if translated is None:
                raise self._calls.refuse(name, f"no operator of a graph computes {operator.op.removeprefix('torch.')}")
            self._append(operator, *translated)

    def _append(
        self, operator: Operator, op: str, attributes: Mapping[str, Any], weights: Mapping[str, Tensor | None]
    ) -> str:
        inputs = tuple(self._names[name] for name in self._inputs(operator.name))
        stated = EFFECTS[op](attributes, [self._builder.shape(name) for name in inputs]) if op in EFFECTS else None
        name = self._builder.append(self._unique(operator.name), op, inputs, attributes, stated)
        self._names[operator.name] = name
        present = {key: value for key, value in weights.items() if value is not None}
        if present:
            self._weights[name] = present
        return name

    def _unique(self, name: str) -> str:
        label = self._calls.label(name) if name in self._calls.nodes else name
        return f"{label}.{name}" if label in self._names.values() else label

    def _add_known(self, operator: Operator, is_last: bool) -> None:
        op, attributes = operator.op, dict(operator.attributes)
        if is_last and attributes.get("activation") == "softmax":
            del attributes["activation"]
        if op == "Reshape" and operator.shape == (*self._shape(operator), 1, 1):
            op, attributes = "AsImage", {}
        weights = self._weights_of(operator)
        statistics = weights.pop("mean", None), weights.pop("variance", None)
        name = self._append(operator, op, attributes, weights)
        if statistics[0] is not None and statistics[1] is not None:
            self._statistics[name] = (statistics[0], statistics[1])
        if op in ("BatchNormalization", "LayerNormalization"):
            epsilon = float(self._calls.arguments(operator.name)["eps"])
            if epsilon != EPSILON:
                self._epsilon[name] = epsilon

    def _shape(self, operator: Operator) -> Shape:
        return self._operators[self._inputs(operator.name)[0]].shape

    def _weights_of(self, operator: Operator) -> dict[str, Tensor | None]:
        calls, name = self._calls, operator.name
        if operator.op == "Dense" or (operator.op == "Conv2D" and calls.is_product(name)):
            weight, bias = calls.product(name)
            return {"weight": weight, "bias": bias}
        if operator.op in ("Conv2D", "DepthwiseConv2D", "LayerNormalization"):
            return {key: calls.value(name, key) for key in ("weight", "bias")}
        if operator.op == "BatchNormalization":
            keys = {"weight": "weight", "bias": "bias", "mean": "running_mean", "variance": "running_var"}
            return {key: calls.value(name, argument) for key, argument in keys.items()}
        if operator.op == "LayerScale":
            return {"weight": calls.constant(name)}
        return {}

    def _translated(self, operator: Operator) -> Translated:
        """Return an operator that a graph keeps by name alone, or without its constants."""
        call, constant = self._calls.name(operator.name), self._calls.constant(operator.name)
        before, shape = self._shape(operator), operator.shape
        if call in ("add", "sub", "mul", "div", "rsub") and len(self._inputs(operator.name)) == 1:
            return self._arithmetic(operator, call, constant, before)
        if call == "cat" and len(before) == 2 and constant is not None and shape[1:] == before[1:]:
            tokens = constant[0]
            first = self._calls.data_position(operator.name) == 1
            return ("PrependTokens", {"tokens": len(tokens)}, {"weight": tokens}) if first else None
        arguments = self._calls.arguments(operator.name)
        if call == "select" and len(before) == 2 and arguments["dim"] == 1 and shape == before[1:]:
            return "TakeToken", {"index": int(arguments["index"]) % before[0]}, {}
        if call == "mean" and len(before) == 2 and shape == before[1:]:
            return "GlobalAveragePooling1D", {}, {}
        return None

    def _arithmetic(self, operator: Operator, call: str, constant: Tensor | None, before: Shape) -> Translated:
        """Return a number, or a constant for each channel or position."""
        arguments = self._calls.arguments(operator.name)
        if operator.shape != before or arguments.get("alpha", 1) != 1 or arguments.get("rounding_mode") is not None:
            return None
        number = arguments.get("other") if constant is None else constant.item() if constant.numel() == 1 else None
        swapped = self._calls.data_position(operator.name) == 1
        if isinstance(number, int | float):
            factor, offset = _affine(call, float(number), swapped)
            return None if factor is None else ("Scale", {"factor": factor, "offset": offset}, {})
        if constant is None or (swapped and call in ("sub", "div", "rsub")) or call == "rsub":
            return None
        if call in ("mul", "div"):
            factors = constant if call == "mul" else 1 / constant
            return _per_channel("LayerScale", factors, before)
        shift = constant if call == "add" else -constant
        if len(before) == 2:
            return "PositionEmbedding", {}, {"weight": shift.reshape(-1, *shift.shape[-2:])[0].expand(before).clone()}
        return _per_channel("ChannelShift", shift, before)

    def _add_attention(self, operator: Operator, result: Attention) -> None:
        before = self._operators[result.source].shape
        if operator.shape != before or operator.attributes.get("activation"):
            raise self._calls.refuse(operator.name, f"attention that makes {operator.shape} of {before}")
        weights: dict[str, Tensor | None] = {
            "weight": result.weight,
            "bias": result.bias,
            "output": result.output,
            "output_bias": result.output_bias,
        }
        attributes = {"heads": result.heads, "size": result.size}
        self._append(operator, "MultiHeadAttention", attributes, weights)

    def _resize(self, operator: Operator, classes: int) -> str:
        """Return the last layer with another number of classes, and without its weights."""
        if operator.op != "Dense" or len(operator.shape) != 1:
            raise self._calls.refuse(
                operator.name,
                f"it gives outputs {operator.shape} where the data have {classes} classes; only a dense last layer can "
                "start anew with another number",
            )
        bias = {} if operator.attributes.get("bias", True) else {"bias": False}
        return self._append(operator, "Dense", {"units": classes, **bias}, {})


def _affine(call: str, number: float, swapped: bool) -> tuple[float | None, float]:
    """Factor and offset of what a call does with its data and a number."""
    if swapped and call == "div":
        return None, 0.0
    if call == "rsub" or (swapped and call == "sub"):
        return -1.0, number
    return {"add": (1.0, number), "sub": (1.0, -number), "mul": (number, 0.0), "div": (1 / number, 0.0)}[call]


def _per_channel(op: str, constant: Tensor, before: Shape) -> Translated:
    """Return ``op`` with one number for each channel, if ``constant`` has no more than that."""
    expected = per_channel(before)
    shape = tuple(constant.shape)
    while len(shape) > len(expected) and shape[0] == 1:
        shape = shape[1:]
    shape = (1,) * (len(expected) - len(shape)) + shape
    if len(shape) != len(expected) or any(size not in (1, most) for size, most in zip(shape, expected, strict=True)):
        return None
    return op, {}, {"weight": constant.reshape(shape).expand(expected).clone()}


def _require_equal(network: ImportedNetwork, calls: Calls) -> None:
    """Raise ``InputError``, naming the first layer that differs, unless both answer random inputs alike."""
    module = network.module()
    x = torch.rand((calls.batch, *calls.graph.input_shape), generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        answers = network.ended(module(x))
        if _apart(answers, calls.run(x)) <= TOLERANCE:
            return
        where = _first_difference(network, module, calls, x)
    raise InputError(
        f"layer {where!r} gives other values as an operator of a graph than in the network: it has a setting that no "
        "operator graph has"
    )


def _first_difference(network: ImportedNetwork, module: GraphModule, calls: Calls, x: Tensor) -> str:
    """Return the layer whose output is the first to differ; the last where none does alone."""
    values = {network.graph.operators[0].name: x}
    renamed = {new: old for old, new in network.names.items()}
    for operator in network.graph.operators[1:]:
        activation = ACTIVATIONS[operator.attributes.get("activation")]
        value = module.of[operator.name](*(values[name] for name in operator.inputs))
        values[operator.name] = value if activation is None else activation(value)
    ends = {name: calls.activation_of(renamed[name]) for name in values if name in renamed}
    expected = calls.values(x, set(ends.values()))
    for name, end in ends.items():
        theirs = expected.get(end)
        if theirs is not None and theirs.shape == values[name].shape and _apart(values[name], theirs) > TOLERANCE:
            return calls.label(end)
    return network.graph.operators[-1].name


def _apart(first: Tensor, second: Tensor) -> float:
    """Return the largest difference as a share of the largest value."""
    if first.shape != second.shape:
        return math.inf
    return float((first - second).abs().max() / second.abs().max().clamp(min=1e-6))


IDENTITIES = ("contiguous", "clone", "detach", "alias", "to", "_to_copy", "dropout")
VIEWS = ("view", "reshape", "_unsafe_view", "flatten", "unflatten", "squeeze", "unsqueeze")
MOVES = (
    *VIEWS,
    "expand",
    *("permute", "transpose", "t", "movedim", "swapaxes", "unbind", "getitem", "select", "slice"),
    *("split", "split_with_sizes", "chunk", *IDENTITIES),
)


@dataclass(frozen=True)
class Attention:
    """Self-attention layer between the operator ``source`` and its last product; weights as ``MultiHeadAttention``."""

    source: str
    heads: int
    size: int
    weight: Tensor
    bias: Tensor
    output: Tensor
    output_bias: Tensor | None


def attentions(calls: Calls) -> dict[str, Attention]:
    """Return attention layers by the operator of the last product. Raises ``InputError`` for another kind."""
    result = [node for node in calls.nodes.values() if plain_name(node) == "scaled_dot_product_attention"]
    return dict(_attention(calls, node) for node in result)


def _attention(calls: Calls, node: fx.Node) -> tuple[str, Attention]:
    arguments = arguments_of(node, {})
    if arguments["attn_mask"] is not None or arguments["is_causal"]:
        raise calls.refuse(node.name, "its attention is masked, and attention of supernets sees every position")
    places, weights, biases, sources = [], [], [], []
    for argument in ("query", "key", "value"):
        product, numbers = _origin(calls, arguments[argument])
        weight, bias = calls.product_of(product)
        if numbers.ndim == 3:
            numbers = numbers[:, None]
        rows, place = numbers % len(weight), numbers // len(weight)
        one = rows[:1, :, :1]
        if not (bool((rows == one).all()) and bool((place == place[:, :1, :, :1]).all())):
            raise calls.refuse(node.name, "its heads mix positions")
        heads, size = one.shape[1], one.shape[3]
        weights.append(weight[one.flatten()].view(heads, size, -1))
        biases.append(torch.zeros(heads, size) if bias is None else bias[one.flatten()].view(heads, size))
        places.append(place[:, 0, :, 0])
        sources.append(calls.source(next(value for value in product.all_input_nodes if calls.is_data(value))))
    if len(set(sources)) > 1 or any(not torch.equal(place, places[0]) for place in places):
        raise calls.refuse(node.name, "its queries, keys and values come from different layers")
    if len({weight.shape for weight in weights}) > 1:
        raise calls.refuse(node.name, "its keys and values are of different sizes")
    if arguments.get("scale") is not None:
        factor = float(arguments["scale"]) * size**0.5
        weights[0], biases[0] = weights[0] * factor, biases[0] * factor
    last, columns = _destination(calls, node, heads, size)
    output, output_bias = calls.product_of(last)
    turned = torch.empty_like(output)
    turned[:, columns] = output
    bias = torch.cat(biases, dim=1)
    result = Attention(sources[0], heads, size, torch.cat(weights, dim=1), bias, turned, output_bias)
    return calls.source(last), result


def _origin(calls: Calls, value: fx.Node) -> tuple[fx.Node, Tensor]:
    """Return the product that ``value`` comes from, and each value's number in the product's output."""
    path = []
    while plain_name(value) not in PRODUCTS:
        data = [each for each in value.all_input_nodes if calls.is_data(each)]
        if plain_name(value) not in MOVES or len(data) != 1:
            raise calls.refuse(value.name, f"{plain_name(value)} stands between an attention and its weights")
        path.append(value)
        value = data[0]
    shape = tuple(value.meta["val"].shape)
    return value, _followed(calls, value, torch.arange(math.prod(shape)).view(shape), path[::-1])


def _destination(calls: Calls, node: fx.Node, heads: int, size: int) -> tuple[fx.Node, Tensor]:
    """Return the product that takes the heads' results, and for each of its columns head · size + position."""
    shape = tuple(node.meta["val"].shape)
    path: list[fx.Node] = []
    last = node
    while True:
        users = [user for user in last.users if user.op == "call_function"]
        if len(users) != 1 or (plain_name(users[0]) not in (*MOVES, *PRODUCTS)):
            raise calls.refuse(node.name, "what its heads give does not go to one product")
        last = users[0]
        if plain_name(last) in PRODUCTS:
            break
        path.append(last)
    numbers = _followed(calls, node, torch.arange(math.prod(shape)).view(shape), path)
    heads_of = numbers // (size * shape[-2]) % heads if len(shape) == 4 else torch.zeros_like(numbers)
    columns = (heads_of * size + numbers % size).flatten(0, -2)
    if columns.shape[1] != heads * size or not bool((columns == columns[:1]).all()):
        raise calls.refuse(node.name, "what its heads give is mixed before the product")
    return last, columns[0]


def _followed(calls: Calls, start: fx.Node, numbers: Tensor, path: list[fx.Node]) -> Tensor:
    """Return ``numbers`` in place of what ``start`` gives, moved along ``path``."""
    values = {start: numbers}
    for node in path:
        (before,) = (value for value in node.all_input_nodes if value in values)
        if plain_name(node) in IDENTITIES:
            values[node] = values[before]
        elif plain_name(node) in VIEWS:
            # The tensor of numbers lacks the strides of the values.
            values[node] = values[before].reshape(tuple(node.meta["val"].shape))
        else:
            values[node] = calls.moved(node, values)
    return values[path[-1]] if path else numbers
