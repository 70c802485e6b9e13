"""Find the dimensions of a network written without any: its residual blocks and the channels that may be fewer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slotool.elastic.supernets.space import SIZE_OF, Dimension, LayerSelect, Space
from slotool.errors import InputError
from slotool.graphs import OperatorGraph
from slotool.graphs.operators import Operator, channel_axis

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
    """The space of a network's subnets.

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
        kept = len(stage) - len(free) or 1
        free = free[len(free) - (len(stage) - kept) :]
        if free:
            dimensions.append(Dimension("depth", tuple(range(kept, len(stage) + 1)), (), free, kept))
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
    """Which layers must have equal numbers of channels, because their outputs are added or normalised alike."""

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
            self._of[operator.name] = own = self._parent[-1]
            # Attention gives back the width it is given.
            if self.is_attention(operator.name):
                self._join(own, inputs[0])
            elif operator.op not in SIZE_OF or operator.attributes.get("groups", 1) != 1:
                fixed.update([own, *inputs])
        fixed.add(self._of[graph.operators[-1].name])
        self._fixed = {self._root(group) for group in fixed}

    @property
    def free(self) -> set[int]:
        return {self._root(group) for group in self._of.values()} - self._fixed

    def inside(self, stage: Sequence[_Block]) -> set[int]:
        """The groups that live in the blocks alone."""
        within = {name for block in stage for name in block.select.operators}
        between = {name for block in stage for name in (block.select.entry, block.select.exit)}
        mine = {self._group(name) for name in within - between}
        return (mine & self.free) - {self._group(n) for n in self._operators if n not in within or n in between}

    def layers(self, groups: set[int]) -> list[str]:
        """The layers that give the groups their size."""
        return [n for n, o in self._operators.items() if self._sizes_itself(o) and self._group(n) in groups]

    def is_attention(self, name: str) -> bool:
        return self._operators[name].op == "MultiHeadAttention"

    def _is_channelwise(self, operator: Operator) -> bool:
        shapes = [self._operators[name].shape for name in operator.inputs]
        if operator.op == "Flatten":
            # Only channels that come first stay together.
            return len(shapes[0]) != 2
        alike = len({shape[channel_axis(shape)] for shape in shapes}) == 1
        return operator.op in CHANNELWISE and operator.attributes.get("multiplier", 1) == 1 and alike

    @staticmethod
    def _sizes_itself(operator: Operator) -> bool:
        return operator.op in ("Conv2D", "Dense")

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
    """Every addition of two branches that part at one operator."""
    operators = {operator.name: operator for operator in graph.operators}
    order = {name: i for i, name in enumerate(operators)}
    consumers: dict[str, list[str]] = {name: [] for name in operators}
    above: dict[str, set[str]] = {}
    for operator in graph.operators:
        above[operator.name] = {operator.name}.union(*(above[name] for name in operator.inputs))
        for name in operator.inputs:
            consumers[name].append(operator.name)
    found = []
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
        found.append(_Block(select, entry in operator.inputs and operators[entry].shape == operators[exit_].shape))
    return found


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
