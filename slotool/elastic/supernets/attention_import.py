"""Self-attention in a user's torch network, however it is written: found by where each value goes.

Between the products of an attention layer values are only moved: split, turned, viewed as heads. So the moves are
carried out on the numbers of the values in place of the values, which shows which row of the weights each query, key
and value of each head is, and which column of the last product takes each head's result.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, fx

from slotool.graphs.capture.torch.calls import PRODUCTS, Calls, arguments_of, call_name

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
    """A self-attention layer between the operator ``source`` and its last product; weights as ``MultiHeadAttention``
    has them."""

    source: str
    heads: int
    size: int
    weight: Tensor
    bias: Tensor
    output: Tensor
    output_bias: Tensor | None


def attentions(calls: Calls) -> dict[str, Attention]:
    """By the operator of the last product. Raises ``InputError`` naming a layer of another kind of attention."""
    found = [node for node in calls.nodes.values() if call_name(node) == "scaled_dot_product_attention"]
    return dict(_attention(calls, node) for node in found)


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
    found = Attention(sources[0], heads, size, torch.cat(weights, dim=1), bias, turned, output_bias)
    return calls.source(last), found


def _origin(calls: Calls, value: fx.Node) -> tuple[fx.Node, Tensor]:
    """The product that ``value`` comes from, and of each of its values the number it has in the product's output."""
    path = []
    while call_name(value) not in PRODUCTS:
        data = [each for each in value.all_input_nodes if calls.is_data(each)]
        if call_name(value) not in MOVES or len(data) != 1:
            raise calls.refuse(value.name, f"{call_name(value)} stands between an attention and its weights")
        path.append(value)
        value = data[0]
    shape = tuple(value.meta["val"].shape)
    return value, _followed(calls, value, torch.arange(_size(shape)).view(shape), path[::-1])


def _destination(calls: Calls, node: fx.Node, heads: int, size: int) -> tuple[fx.Node, Tensor]:
    """The product that takes the heads' results, and for each of its columns head · size + position in the head."""
    shape = tuple(node.meta["val"].shape)
    path: list[fx.Node] = []
    last = node
    while True:
        users = [user for user in last.users if user.op == "call_function"]
        if len(users) != 1 or (call_name(users[0]) not in (*MOVES, *PRODUCTS)):
            raise calls.refuse(node.name, "what its heads give does not go to one product")
        last = users[0]
        if call_name(last) in PRODUCTS:
            break
        path.append(last)
    numbers = _followed(calls, node, torch.arange(_size(shape)).view(shape), path)
    heads_of = numbers // (size * shape[-2]) % heads if len(shape) == 4 else torch.zeros_like(numbers)
    columns = (heads_of * size + numbers % size).flatten(0, -2)
    if columns.shape[1] != heads * size or not bool((columns == columns[:1]).all()):
        raise calls.refuse(node.name, "what its heads give is mixed before the product")
    return last, columns[0]


def _followed(calls: Calls, start: fx.Node, numbers: Tensor, path: list[fx.Node]) -> Tensor:
    """``numbers`` in place of what ``start`` gives, moved along ``path``."""
    values = {start: numbers}
    for node in path:
        (before,) = (value for value in node.all_input_nodes if value in values)
        if call_name(node) in IDENTITIES:
            values[node] = values[before]
        elif call_name(node) in VIEWS:
            # What the numbers lie in has not the strides that the values have.
            values[node] = values[before].reshape(tuple(node.meta["val"].shape))
        else:
            values[node] = calls.moved(node, values)
    return values[path[-1]] if path else numbers


def _size(shape: tuple[int, ...]) -> int:
    return int(torch.Size(shape).numel())
