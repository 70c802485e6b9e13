"""Dimensions in which a network can be made smaller (superserve, §3: depth, expand ratio, width), and its subnets.

``wrap`` finds them in a network written without any: its residual blocks and the channels that may be fewer.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from itertools import pairwise, product
from typing import Any

import numpy as np

from slotool import strict_json
from slotool.elastic.supernets.layers import EFFECTS
from slotool.errors import InputError
from slotool.graphs import GraphBuilder, OperatorGraph
from slotool.graphs.operators import Operator, channel_axis
from slotool.tables import FULL, OperatingPoint

# Subnet: a value per dimension of the space, in its order.
Subnet = tuple[float, ...]
LANES = 8


@dataclass(frozen=True)
class LayerSelect:
    """A residual block that can be left out: its input ``entry`` then stands for its output ``exit``."""

    entry: str
    exit: str
    operators: tuple[str, ...]


@dataclass(frozen=True)
class Dimension:
    """Dimension of a subnet's choice, ascending in ``choices``; the last is the whole network.

    ``name``: ``depth`` (blocks kept), ``expand``, ``heads`` or ``width`` (shares of channels, units or heads).
    ``operators``: the layers whose own size it sets (WeightSlice); ``blocks``: those that depth can leave out, of which
    the value keeps the first; ``always`` of a stage's blocks are no choice.
    """

    name: str
    choices: tuple[int | float, ...]
    operators: tuple[str, ...] = ()
    blocks: tuple[LayerSelect, ...] = ()
    always: int = 0

    def left_out(self, value: float) -> tuple[LayerSelect, ...]:
        return self.blocks[int(value) - self.always :]


@dataclass(frozen=True)
class Space:
    """Whole network ``graph`` and its dimensions; subnets are tuples of one value per dimension.

    ``epsilon``: of normalisations other than torch's default. Raises ``InputError`` if there is nothing to choose.
    """

    graph: OperatorGraph
    dimensions: tuple[Dimension, ...]
    epsilon: Mapping[str, float] = field(default_factory=dict)
    _narrowed: dict[Subnet, OperatorGraph] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        if not self.dimensions:
            raise InputError("this network has nothing to vary: no residual block and no layer that could be narrower")

    @property
    def size(self) -> int:
        """Number of subnets."""
        return math.prod(len(dimension.choices) for dimension in self.dimensions)

    @property
    def largest(self) -> Subnet:
        return tuple(dimension.choices[-1] for dimension in self.dimensions)

    @property
    def smallest(self) -> Subnet:
        return tuple(dimension.choices[0] for dimension in self.dimensions)

    def draw(self, rng: np.random.Generator) -> Subnet:
        """Return a random subnet; every choice of a dimension is as likely."""
        return tuple(dimension.choices[rng.integers(len(dimension.choices))] for dimension in self.dimensions)

    def all(self) -> Iterator[Subnet]:
        """Yield every subnet; look at ``size`` first."""
        return product(*(dimension.choices for dimension in self.dimensions))

    def require(self, subnet: Sequence[float]) -> Subnet:
        """Return ``subnet`` in this space's form. Raises ``InputError`` naming the dimension that is out of range."""
        if len(subnet) != len(self.dimensions):
            raise InputError(f"a subnet of this network has {len(self.dimensions)} values, not {len(subnet)}")
        for dimension, value in zip(self.dimensions, subnet, strict=True):
            if value not in dimension.choices:
                choices = ", ".join(f"{choice:g}" for choice in dimension.choices)
                raise InputError(f"{dimension.name} cannot be {value:g}; it is one of {choices}")
        return tuple(subnet)

    def point(self, subnet: Subnet) -> OperatingPoint:
        """Return the operating point of a subnet: the values of its stages by dimension; ``full`` for the largest."""
        if subnet == self.largest:
            return FULL
        values: dict[str, list[float]] = {}
        for dimension, value in zip(self.dimensions, subnet, strict=True):
            values.setdefault(dimension.name, []).append(value)
        return OperatingPoint.of({name: _setting(each) for name, each in values.items()})

    def subnet(self, point: OperatingPoint) -> Subnet:
        """Return the subnet of a point. Raises ``InputError`` for a point outside the space."""
        if point == FULL:
            return self.largest
        values: dict[str, list[float]] = {}
        try:
            for name, setting in point.settings:
                values[name] = [float(part) for part in str(setting).split("-")]
            subnet = tuple(values[dimension.name].pop(0) for dimension in self.dimensions)
            if any(values.values()):
                raise ValueError
        except (KeyError, IndexError, ValueError):
            example = self.point(self.smallest)
            raise InputError(f"{point} is no subnet of this network; a subnet is written as {example}") from None
        return self.require(subnet)

    def narrowed(self, subnet: Subnet) -> OperatorGraph:
        """Return the subnet as an operator graph of its own. Raises ``InputError`` for one outside the space."""
        subnet = self.require(subnet)
        if subnet not in self._narrowed:
            if len(self._narrowed) >= MAX_GRAPHS:
                self._narrowed.clear()
            self._narrowed[subnet] = self._narrow(subnet)
        return self._narrowed[subnet]

    def flops(self, subnet: Subnet) -> int:
        """Return the floating-point operations for one example."""
        return self.narrowed(subnet).flops

    def _narrow(self, subnet: Subnet) -> OperatorGraph:
        sizes = self._sizes(subnet)
        instead: dict[str, str] = {}
        skipped: set[str] = set()
        for dimension, value in zip(self.dimensions, subnet, strict=True):
            for block in dimension.left_out(value):
                instead[block.exit] = block.entry
                skipped.update(block.operators)
        builder = GraphBuilder(self.graph.kind)
        for operator in self.graph.operators:
            if operator.name in skipped:
                continue
            inputs = tuple(_resolve(name, instead) for name in operator.inputs)
            attributes = {**operator.attributes, **sizes.get(operator.name, {})}
            shapes = [builder.shape(name) for name in inputs]
            stated = None if operator.known else EFFECTS[operator.op](attributes, shapes)
            builder.append(operator.name, operator.op, inputs, attributes, stated)
        return builder.graph()

    def _sizes(self, subnet: Subnet) -> dict[str, dict[str, int]]:
        """Per layer that a dimension sizes: the attribute that is changed, and what it becomes."""
        operators = self._operators
        return {
            name: {
                SIZE_OF[operators[name].op]: share_of(operators[name].attributes[SIZE_OF[operators[name].op]], value)
            }
            for dimension, value in zip(self.dimensions, subnet, strict=True)
            for name in dimension.operators
            if value != dimension.choices[-1]
        }

    @cached_property
    def _operators(self) -> dict[str, Any]:
        return {operator.name: operator for operator in self.graph.operators}

    def document(self) -> dict[str, Any]:
        """Return JSON form."""
        return {
            "graph": self.graph.document(),
            "dimensions": [asdict(dimension) for dimension in self.dimensions],
            **({"epsilon": dict(self.epsilon)} if self.epsilon else {}),
        }

    @classmethod
    def from_document(cls, document: Mapping[str, Any]) -> Space:
        """Read the JSON form back. Raises ``KeyError`` or ``TypeError`` for anything else."""
        # Supernets written before this name call them dials.
        stored = document["dimensions"] if "dimensions" in document else document["dials"]
        dimensions = strict_json.convert(stored, tuple[Dimension, ...])
        graph = OperatorGraph.from_document(document["graph"])
        epsilon = strict_json.convert(document.get("epsilon", {}), dict[str, float])
        _require_consistent(graph, dimensions)
        _require_normalisations(graph, epsilon)
        return cls(graph, dimensions, epsilon)


def _require_consistent(graph: OperatorGraph, dimensions: Sequence[Dimension]) -> None:
    """Raise ``InputError`` unless choices and blocks are of this network, each block after its entry."""
    at = {operator.name: i for i, operator in enumerate(graph.operators)}
    for dimension in dimensions:
        most = dimension.always + len(dimension.blocks) if dimension.name == "depth" else 1
        choices = dimension.choices
        ascending = all(a < b for a, b in pairwise(choices))
        if not choices or not ascending or not dimension.always <= choices[0] <= choices[-1] <= most:
            raise InputError(f"the choices of {dimension.name[:40]!r} are not ascending, or beyond what there is")
        sized = [graph.operators[at[name]] for name in dimension.operators if name in at]
        if len(sized) < len(dimension.operators) or any(SIZE_OF.get(o.op) not in o.attributes for o in sized):
            raise InputError(f"{dimension.name[:40]!r} is no dimension of this network")
        for block in dimension.blocks:
            if not {block.entry, block.exit, *block.operators} <= at.keys() or at[block.entry] >= at[block.exit]:
                raise InputError(f"a block of {dimension.name!r} is no part of this network")


def _require_normalisations(graph: OperatorGraph, epsilon: Mapping[str, float]) -> None:
    """Raise ``InputError`` unless each is a small number of a normalisation of this network."""
    names = {operator.name for operator in graph.operators if operator.op in NORMALISATIONS}
    for name, value in epsilon.items():
        if name not in names or not 0 <= value <= 1:
            raise InputError(f"epsilon of {name[:40]!r} is {value:g}; expected 0 to 1, of a normalisation")


NORMALISATIONS = ("BatchNormalization", "LayerNormalization")
# Narrowed graphs kept at a time: they are made again in a millisecond.
MAX_GRAPHS = 1_024
SIZE_OF = {"Conv2D": "filters", "Dense": "units", "MultiHeadAttention": "heads"}


def share_of(whole: int, share: float) -> int:
    """Return a share of ``whole``, at least one, and a multiple of ``LANES`` if the whole is one of several."""
    step = LANES if whole % LANES == 0 and whole >= 4 * LANES else 1
    return min(whole, max(step, round(share * whole / step) * step))


def _resolve(name: str, instead: Mapping[str, str]) -> str:
    while name in instead:
        name = instead[name]
    return name


def _setting(values: Sequence[float]) -> float | str:
    return values[0] if len(values) == 1 else "-".join(f"{value:g}" for value in values)


# Operators whose output has the channels of their input, one for one.
CHANNELWISE = {
    "BatchNormalization", "LayerNormalization", "LayerScale", "Normalization", "Rescaling", "ReLU", "Activation",
    "MaxPooling2D", "AveragePooling2D", "GlobalAveragePooling2D", "GlobalMaxPooling2D", "ZeroPadding2D", "Cropping2D",
    "DepthwiseConv2D", "Flatten", "Tokens", "PositionEmbedding", "GlobalAveragePooling1D", "Add", "Multiply",
    "Scale", "ChannelShift", "PrependTokens", "TakeToken", "AsImage",
}  # fmt: skip


def wrap(
    graph: OperatorGraph,
    *,
    drop: int = 2,
    expand: Sequence[float] = (0.25, 0.5, 1.0),
    heads: Sequence[float] = (0.25, 0.5, 1.0),
    width: Sequence[float] = (1.0,),
    epsilon: Mapping[str, float] | None = None,
) -> Space:
    """Return the space of a network's subnets.

    A stage is a run of residual blocks one after another that ends where the shape changes. ``drop``: so many of its
    last blocks may be left out (one always stays). ``expand``: shares of the channels or units inside the blocks of a
    stage; ``heads``: shares of its attention heads; ``width``: shares of the channels between blocks, chosen once for
    the whole network. ``epsilon``: as ``Space.epsilon``. Layers whose size cannot change alone (before a concatenation,
    grouped ones, the answer) keep it.
    Raises ``InputError`` for shares that are not ascending up to 1, or a network with nothing to choose.
    """
    for name, shares in (("expand", expand), ("heads", heads), ("width", width)):
        if list(shares) != sorted(set(shares)) or not shares or shares[-1] != 1 or shares[0] <= 0:
            raise InputError(f"{name}: shares ascend from above 0 to 1, not {', '.join(f'{s:g}' for s in shares)}")
    if drop < 0:
        raise InputError(f"{drop} blocks cannot be left out")
    groups, stages = _Groups(graph), _stages(graph)
    dimensions: list[Dimension] = []
    inside_any: set[int] = set()
    for stage in stages:
        free = tuple(block.select for block in stage if block.skippable)[-drop:] if drop else ()
        remaining = len(stage) - len(free) or 1
        free = free[len(free) - (len(stage) - remaining) :]
        if free:
            dimensions.append(Dimension("depth", tuple(range(remaining, len(stage) + 1)), (), free, remaining))
        inside = groups.inside(stage)
        inside_any |= inside
        dimensions += _sized("expand", expand, groups.layers(inside))
        dimensions += _sized(
            "heads", heads, [n for block in stage for n in block.select.operators if groups.is_attention(n)]
        )
    dimensions += _sized("width", width, groups.layers(groups.free - inside_any))
    return Space(graph, tuple(dimensions), dict(epsilon or {}))


def _sized(name: str, shares: Sequence[float], operators: Sequence[str]) -> list[Dimension]:
    return [Dimension(name, tuple(shares), tuple(operators))] if operators and len(shares) > 1 else []


@dataclass(frozen=True)
class _Block:
    select: LayerSelect
    skippable: bool


class _Groups:
    """Groups of layers with equal channels, because their outputs are added or normalised alike."""

    def __init__(self, graph: OperatorGraph):
        self._operators = {operator.name: operator for operator in graph.operators}
        self._parent: list[int] = []
        self._of: dict[str, int] = {}
        fixed: set[int] = set()
        for operator in graph.operators:
            inputs = [self._of[name] for name in operator.inputs]
            if self._is_channelwise(operator):
                self._of[operator.name] = inputs[0]
                for other in inputs[1:]:
                    self._join(inputs[0], other)
                continue
            self._parent.append(len(self._parent))
            self._of[operator.name] = dimensions = self._parent[-1]
            # Attention gives back the width it is given.
            if self.is_attention(operator.name):
                self._join(dimensions, inputs[0])
            elif operator.op not in SIZE_OF or operator.attributes.get("groups", 1) != 1:
                fixed.update([dimensions, *inputs])
        fixed.add(self._of[graph.operators[-1].name])
        self._fixed = {self._root(group) for group in fixed}

    @property
    def free(self) -> set[int]:
        return {self._root(group) for group in self._of.values()} - self._fixed

    def inside(self, stage: Sequence[_Block]) -> set[int]:
        """Return the groups that live in the blocks alone."""
        within = {name for block in stage for name in block.select.operators}
        between = {name for block in stage for name in (block.select.entry, block.select.exit)}
        mine = {self._group(name) for name in within - between}
        return (mine & self.free) - {self._group(n) for n in self._operators if n not in within or n in between}

    def layers(self, groups: set[int]) -> list[str]:
        """Return the layers that give the groups their size."""
        sized = ("Conv2D", "Dense")
        return [n for n, o in self._operators.items() if o.op in sized and self._group(n) in groups]

    def is_attention(self, name: str) -> bool:
        return self._operators[name].op == "MultiHeadAttention"

    def _is_channelwise(self, operator: Operator) -> bool:
        shapes = [self._operators[name].shape for name in operator.inputs]
        if operator.op == "Flatten":
            # Channels stay together only at the front.
            return len(shapes[0]) != 2
        has_equal_channels = len({shape[channel_axis(shape)] for shape in shapes}) == 1
        return operator.op in CHANNELWISE and operator.attributes.get("multiplier", 1) == 1 and has_equal_channels

    def _group(self, name: str) -> int:
        return self._root(self._of[name])

    def _root(self, group: int) -> int:
        while self._parent[group] != group:
            group = self._parent[group]
        return group

    def _join(self, first: int, second: int) -> None:
        self._parent[self._root(second)] = self._root(first)


def _stages(graph: OperatorGraph) -> list[list[_Block]]:
    stages: list[list[_Block]] = []
    before: _Block | None = None
    for block in _paired(graph, _blocks(graph)):
        if before is None or not block.skippable or block.select.entry != before.select.exit:
            stages.append([])
        stages[-1].append(block)
        before = block
    return stages


def _blocks(graph: OperatorGraph) -> list[_Block]:
    """Return every addition of two branches that part at one operator."""
    operators = {operator.name: operator for operator in graph.operators}
    order = {name: i for i, name in enumerate(operators)}
    consumers: dict[str, list[str]] = {name: [] for name in operators}
    above: dict[str, set[str]] = {}
    for operator in graph.operators:
        above[operator.name] = {operator.name}.union(*(above[name] for name in operator.inputs))
        for name in operator.inputs:
            consumers[name].append(operator.name)
    points = []
    for operator in graph.operators:
        if operator.op != "Add" or len(operator.inputs) != 2:
            continue
        first, second = operator.inputs
        common = above[first] & above[second]
        entry = max(common, key=order.__getitem__)
        inner = (above[first] | above[second]) - common | {operator.name}
        if any(name not in inner and name != entry for n in inner for name in operators[n].inputs):
            continue
        after = consumers[operator.name]
        activated = len(after) == 1 and operators[after[0]].op in ("ReLU", "Activation")
        exit_ = after[0] if activated else operator.name
        select = LayerSelect(entry, exit_, tuple(sorted(inner | {exit_}, key=order.__getitem__)))
        points.append(_Block(select, entry in operator.inputs and operators[entry].shape == operators[exit_].shape))
    return points


def _paired(graph: OperatorGraph, blocks: list[_Block]) -> list[_Block]:
    """Attention and the block after it are one layer of a transformer."""
    attentions = {operator.name for operator in graph.operators if operator.op == "MultiHeadAttention"}
    joined: list[_Block] = []
    for block in blocks:
        last = joined[-1] if joined else None
        opened = last and attentions & set(last.select.operators) and not attentions & set(block.select.operators)
        if last and opened and last.select.exit == block.select.entry and last.skippable and block.skippable:
            both = (*last.select.operators, *block.select.operators)
            joined[-1] = _Block(LayerSelect(last.select.entry, block.select.exit, both), True)
        else:
            joined.append(block)
    return joined
