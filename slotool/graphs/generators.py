"""Random networks to learn latency from (inference-latency-prediction, §3.2): MLPs and CNNs, all unique.

Depth counts what the paper's "depth from 3 to 10" leaves open: the hidden layers whose size is drawn. The InputLayer,
the pooling of a CNN and the closing Dense of ten classes are not counted. The paper's CNNs are plain; other
blocks, pooling and strides are there to be asked for.
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any, NamedTuple

from slotool.errors import InputError
from slotool.graphs.graph import GraphBuilder, OperatorGraph
from slotool.printable import counted

# Consecutive networks over a limit that end the search.
MAX_SKIPPED_IN_A_ROW = 20_000


@dataclass(frozen=True)
class NetworkLimits:
    """Limits of a network, None for none: bytes of weights and of a batch's outputs, and FLOPs per example."""

    memory_bytes: int | None = None
    batch_size: int = 1
    flops: int | None = None

    def allow(self, graph: OperatorGraph) -> bool:
        small = self.memory_bytes is None or graph.memory_bytes(self.batch_size) <= self.memory_bytes
        return small and (self.flops is None or graph.flops <= self.flops)

    @property
    def words(self) -> str:
        memory = [] if self.memory_bytes is None else [f"a memory limit of {self.memory_bytes:,} bytes"]
        return " and ".join(memory + ([] if self.flops is None else [f"a limit of {self.flops:,} FLOPs"]))


class RandomNetworks(Iterator[OperatorGraph], ABC):
    """``count`` different networks, drawn one by one: same seed, same networks in the same order.

    The kind is drawn uniformly among those with a network left, then the network. ``available``: number of different
    networks of each kind. A network over ``limits`` is passed over, counted in ``skipped``, and another drawn in its
    place. Memory grows by some hundred bytes per network. Raises ``InputError`` when fewer such networks exist than
    ``count``: at once where there are fewer available, else when the search has found no more.
    """

    def __init__(self, count: int, available: Mapping[Any, int], seed: int, limits: NetworkLimits):
        self.count, self.drawn, self.skipped, self.size = count, 0, 0, sum(available.values())
        if count > self.size:
            raise InputError(f"{counted(count, 'network')} wanted, but the search space has only {self.size:,}")
        self._limits, self._seed = limits, seed
        self._random = random.Random(seed)
        self._left = dict(available)
        self._seen: dict[Any, set[Any]] = {kind: set() for kind in available}

    @property
    def provenance(self) -> dict[str, Any]:
        """Facts of what is drawn, for the header of a graph file."""
        limits = self._limits
        return {
            "seed": self._seed,
            "count": self.count,
            **self._described(),
            "batch_size": limits.batch_size,
            "max_memory_bytes": limits.memory_bytes,
            **({} if limits.flops is None else {"max_flops": limits.flops}),
        }

    @abstractmethod
    def _described(self) -> dict[str, Any]:
        """Return the search space, as JSON."""

    @abstractmethod
    def _drawn(self, kind: Any) -> Any:
        """Draw a network of a kind and return its choices, by which networks are told apart."""

    @abstractmethod
    def _graph(self, kind: Any, choices: Any) -> OperatorGraph:
        """Return the network of a kind with these choices."""

    def __next__(self) -> OperatorGraph:
        if self.drawn == self.count:
            raise StopIteration
        for _ in range(MAX_SKIPPED_IN_A_ROW):
            if not self._left:
                break
            graph = self._unseen()
            if self._limits.allow(graph):
                self.drawn += 1
                return graph
            self.skipped += 1
        raise InputError(
            f"found only {self.drawn:,} of {counted(self.count, 'network')} within {self._limits.words}; "
            f"{self.skipped:,} drawn ones take more"
        )

    def _unseen(self) -> OperatorGraph:
        """Return a network not drawn before."""
        kind = self._random.choice(tuple(self._left))
        choices = self._drawn(kind)
        while choices in self._seen[kind]:
            choices = self._drawn(kind)
        self._seen[kind].add(choices)
        self._left[kind] -= 1
        if not self._left[kind]:
            del self._left[kind]
        return self._graph(kind, choices)

    def _require_one(self, smallest: OperatorGraph) -> None:
        """Raise ``InputError`` when not even the smallest network is within the limits."""
        if not self._limits.allow(smallest):
            raise InputError(
                f"the smallest network in this search space takes {smallest.memory_bytes(self._limits.batch_size):,} "
                f"bytes and {smallest.flops:,} FLOPs, more than {self._limits.words}"
            )


# Stride of a block: nothing, or {"stride": 2}.
Stride = Mapping[str, Any]
# Takes the builder, the operator before it, its number of channels and its stride, and returns its last operator.
# Normalised ones have no bias, as their originals.
Block = Callable[[GraphBuilder, str, int, Stride], str]


def plain(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """Return a 3×3 convolution with ReLU (inference-latency-prediction, §3.2)."""
    return builder.add("Conv2D", last, filters=channels, kernel=3, padding="same", activation="relu", **stride)


def residual(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """Return the two convolutions with a shortcut, which is one of 1×1 where shapes differ (He et al. 2016)."""
    second = builder.add("Conv2D", plain(builder, last, channels, stride), filters=channels, kernel=3, padding="same")
    if stride or _channels(builder, last) != channels:
        last = builder.add("Conv2D", last, filters=channels, kernel=1, padding="same", **stride)
    return builder.add("ReLU", builder.add("Add", [second, last]))


def depthwise(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """Return a convolution per channel, then one of 1×1 across them (Howard et al. 2017)."""
    spatial = builder.add("DepthwiseConv2D", last, kernel=3, padding="same", activation="relu", **stride)
    return builder.add("Conv2D", spatial, filters=channels, kernel=1, activation="relu")


def bottleneck(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """Return 1×1 to a quarter of the channels, 3×3, 1×1 back, all normalised, with a shortcut (He et al. 2016)."""
    inner = _normalised(builder, last, max(1, channels // 4), 1, "relu", stride)
    inner = _normalised(builder, inner, max(1, channels // 4), 3, "relu")
    inner = _normalised(builder, inner, channels, 1)
    if stride or _channels(builder, last) != channels:
        last = _normalised(builder, last, channels, 1, None, stride)
    return builder.add("ReLU", builder.add("Add", [inner, last]))


def inverted(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """Append 1×1 to four times the channels, 5×5 depthwise, squeeze and excitation, 1×1.

    Sources: Sandler 2018, Tan and Le 2019.
    """
    before = _channels(builder, last)
    wide = _normalised(builder, last, 4 * before, 1, "silu")
    wide = builder.add("DepthwiseConv2D", wide, kernel=5, padding="same", bias=False, **stride)
    wide = builder.add("Activation", builder.add("BatchNormalization", wide), activation="silu")
    squeezed = builder.add("GlobalAveragePooling2D", wide, keepdims=True)
    squeezed = builder.add("Conv2D", squeezed, filters=max(1, before // 4), kernel=1, activation="silu")
    squeezed = builder.add("Conv2D", squeezed, filters=4 * before, kernel=1, activation="sigmoid")
    narrow = _normalised(builder, builder.add("Multiply", [wide, squeezed]), channels, 1)
    return narrow if stride or before != channels else builder.add("Add", [narrow, last])


def dense(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """Append channels concatenated with the input's (Huang et al. 2017), after pooling for a stride."""
    if stride:
        last = builder.add("AveragePooling2D", last, kernel=2, padding="same")
    new = builder.add("ReLU", builder.add("BatchNormalization", last))
    new = _normalised(builder, new, 4 * channels, 1, "relu")
    new = builder.add("Conv2D", new, filters=channels, kernel=3, padding="same", bias=False)
    return builder.add("Concatenate", [last, new])


def separable(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """Return a separable 3×3 convolution, normalised (Chollet 2017)."""
    both = builder.add("SeparableConv2D", last, filters=channels, kernel=3, padding="same", bias=False, **stride)
    return builder.add("ReLU", builder.add("BatchNormalization", both))


def branches(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """Return 1×1, 1×7 after 7×1, and pooling, side by side (Szegedy et al. 2016)."""
    short = _normalised(builder, last, channels, 1, "relu", stride)
    long = _normalised(builder, last, channels, 1, "relu", stride)
    long = _normalised(builder, _normalised(builder, long, channels, (7, 1), "relu"), channels, (1, 7), "relu")
    pooled = builder.add("AveragePooling2D", last, kernel=3, padding="same", stride=2 if stride else 1)
    return builder.add("Concatenate", [short, long, _normalised(builder, pooled, channels, 1, "relu")])


def convnext(builder: GraphBuilder, last: str, channels: int, stride: Stride) -> str:
    """Return 7×7 depthwise, layer normalisation, 1×1 to four times the channels and back, scaled (Liu et al. 2022)."""
    if stride or _channels(builder, last) != channels:
        kernel = 2 if stride else 1
        last = builder.add("Conv2D", last, filters=channels, kernel=kernel, padding="same", **stride)
    inner = builder.add("DepthwiseConv2D", last, kernel=7, padding="same")
    inner = builder.add("Conv2D", builder.add("LayerNormalization", inner), filters=4 * channels, kernel=1)
    inner = builder.add("Conv2D", builder.add("Activation", inner, activation="gelu"), filters=channels, kernel=1)
    return builder.add("Add", [builder.add("LayerScale", inner), last])


def _channels(builder: GraphBuilder, operator: str) -> int:
    return builder.shape(operator)[0]


def _normalised(
    builder: GraphBuilder,
    last: str,
    channels: int,
    kernel: int | tuple[int, int],
    activation: str | None = None,
    stride: Stride | None = None,
) -> str:
    """Convolution without bias, batch normalisation, activation."""
    size = kernel if isinstance(kernel, int) else list(kernel)
    last = builder.add("Conv2D", last, filters=channels, kernel=size, padding="same", bias=False, **(stride or {}))
    last = builder.add("BatchNormalization", last)
    if activation == "relu":
        return builder.add("ReLU", last)
    return builder.add("Activation", last, activation=activation) if activation else last


# The paper's own first.
BLOCKS: dict[str, Block] = {
    block.__name__: block
    for block in (plain, residual, depthwise, bottleneck, inverted, dense, separable, branches, convnext)
}


CLASSES = 10
GREATEST_EXPONENT = 30


# Ways in which a CNN's layer may halve the image.
DOWNSAMPLING = ("none", "pool", "stride")


class Layer(NamedTuple):
    """Hidden layer as drawn: 2^``exponent`` units or channels, and, in a CNN, its block and downsampling."""

    exponent: int
    block: str = "plain"
    downsampling: str = DOWNSAMPLING[0]

    @property
    def size(self) -> int:
        return 1 << self.exponent


@dataclass(frozen=True)
class SearchSpace:
    """Search space: ``depth`` hidden layers, each of 2^e units (MLP) or channels (CNN), e in ``exponents``.

    Both ranges include their ends. ``input_shape`` is (features,) or (channels, height, width). For CNNs each layer is
    one of ``blocks`` and ``downsampling``, and images are square of one of ``resolutions``, or as ``input_shape``
    says where there are none. Raises ``InputError`` for an empty range, sizes below 1 or unknown names.
    """

    depth: tuple[int, int]
    exponents: tuple[int, int]
    input_shape: tuple[int, ...]
    blocks: tuple[str, ...] = ("plain",)
    downsampling: tuple[str, ...] = DOWNSAMPLING[:1]
    resolutions: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not 1 <= self.depth[0] <= self.depth[1]:
            raise InputError(f"depth {self.depth[0]}:{self.depth[1]}: expected minimum:maximum, at least 1 layer")
        if not 0 <= self.exponents[0] <= self.exponents[1] <= GREATEST_EXPONENT:
            sizes = f"2^{self.exponents[0]} to 2^{self.exponents[1]}"
            raise InputError(f"sizes {sizes} are no range within 2^0 to 2^{GREATEST_EXPONENT}")
        if not self.input_shape or min(self.input_shape + self.resolutions) < 1:
            raise InputError(f"input shape {self.input_shape} or a resolution has a size below 1")
        for what, names, kinds in (("block", self.blocks, BLOCKS), ("downsampling", self.downsampling, DOWNSAMPLING)):
            unknown = [name for name in names if name not in kinds]
            if unknown or len(set(names)) != len(names) or not names:
                raise InputError(f"{what} {', '.join(unknown or names)!r}: choose each once, from {', '.join(kinds)}")
        if len(set(self.resolutions)) != len(self.resolutions):
            raise InputError(f"resolutions {self.resolutions} name one twice")

    @property
    def depths(self) -> range:
        return range(self.depth[0], self.depth[1] + 1)

    @property
    def input_shapes(self) -> tuple[tuple[int, ...], ...]:
        return tuple((self.input_shape[0], size, size) for size in self.resolutions) or (self.input_shape,)

    def size_of(self, depth: int) -> int:
        """Return the number of different networks of this depth."""
        layers = (self.exponents[1] - self.exponents[0] + 1) * len(self.blocks) * len(self.downsampling)
        return len(self.input_shapes) * int(layers**depth)

    @property
    def size(self) -> int:
        """The number of unique networks."""
        return sum(map(self.size_of, self.depths))


# The paper's ranges; it leaves input sizes open, so they are ours: Fashion-MNIST's pixels and a small colour image.
MLP_SPACE = SearchSpace(depth=(3, 10), exponents=(0, 14), input_shape=(784,))
CNN_SPACE = SearchSpace(depth=(3, 10), exponents=(0, 10), input_shape=(3, 32, 32))


def mlp(input_shape: tuple[int, ...], layers: Sequence[Layer]) -> OperatorGraph:
    """Hidden ``Dense`` layers with ReLU, then a ``Dense`` of ten classes. The depth counts the hidden layers."""
    builder = GraphBuilder("mlp")
    last = builder.add("InputLayer", shape=list(input_shape))
    for layer in layers:
        last = builder.add("Dense", last, units=layer.size, activation="relu")
    builder.add("Dense", last, units=CLASSES)
    return builder.graph()


def cnn(input_shape: tuple[int, ...], layers: Sequence[Layer]) -> OperatorGraph:
    """Return blocks, global average pooling, and a ``Dense`` of ten classes.

    The depth counts the blocks; ``plain`` ones without downsampling make the paper's plain CNNs.
    """
    builder = GraphBuilder("cnn")
    last = builder.add("InputLayer", shape=list(input_shape))
    for layer in layers:
        # Said only where there is one, so that a plain convolution is described as plainly as ever.
        stride = {"stride": 2} if layer.downsampling == "stride" else {}
        last = BLOCKS[layer.block](builder, last, layer.size, stride)
        if layer.downsampling == "pool":
            last = builder.add("MaxPooling2D", last, kernel=2, padding="same")
    builder.add("Dense", builder.add("GlobalAveragePooling2D", last), units=CLASSES)
    return builder.graph()


Build = Callable[[tuple[int, ...], Sequence[Layer]], OperatorGraph]
FAMILIES: dict[str, tuple[SearchSpace, Build]] = {"mlp": (MLP_SPACE, mlp), "cnn": (CNN_SPACE, cnn)}
# A network as drawn: which input shape, then for each layer which exponent, block and downsampling.
Genes = bytes


class RandomGraphs(RandomNetworks):
    """``count`` different networks of a family, drawn one by one: same seed, same networks in the same order.

    The depth is drawn uniformly (among those with a network left to draw), then each layer's size uniformly in base-2
    scale, and all else uniformly. A network that would take more than ``max_memory_bytes`` at ``batch_size``, or
    ``max_flops`` for one example, is passed over.

    Raises ``InputError`` for an unknown family, and when fewer such networks exist than ``count``.
    """

    def __init__(
        self,
        family: str,
        count: int,
        seed: int = 0,
        space: SearchSpace | None = None,
        max_memory_bytes: int | None = None,
        batch_size: int = 1,
        max_flops: int | None = None,
    ):
        if family not in FAMILIES:
            raise InputError(f"no family {family!r} of random networks; there are {', '.join(FAMILIES)}")
        default, self._build = FAMILIES[family]
        self.space = space or default
        available = {depth: self.space.size_of(depth) for depth in self.space.depths}
        super().__init__(count, available, seed, NetworkLimits(max_memory_bytes, batch_size, max_flops))
        depth = self.space.depth[0]
        self._require_one(self._graph(depth, bytes([0, *[self.space.exponents[0], 0, 0] * depth])))

    def _described(self) -> dict[str, Any]:
        # What a kind does not have is left out.
        return {name: value for name, value in asdict(self.space).items() if value not in ((), ("plain",), ("none",))}

    def _drawn(self, depth: int) -> Genes:
        space = self.space
        exponents = [self._random.randint(*space.exponents) for _ in range(depth)]
        blocks = [self._one_of(len(space.blocks)) for _ in range(depth)]
        downsampling = [self._one_of(len(space.downsampling)) for _ in range(depth)]
        shape = self._one_of(len(space.input_shapes))
        return bytes([shape, *chain.from_iterable(zip(exponents, blocks, downsampling, strict=True))])

    def _one_of(self, choices: int) -> int:
        """Draw one of ``choices``; a single one takes no random number, so that plain networks stay equal by seed."""
        return self._random.randrange(choices) if choices > 1 else 0

    def _graph(self, depth: int, genes: Genes) -> OperatorGraph:
        space, layers = self.space, zip(genes[1::3], genes[2::3], genes[3::3], strict=True)
        return self._build(
            space.input_shapes[genes[0]],
            [Layer(exponent, space.blocks[block], space.downsampling[down]) for exponent, block, down in layers],
        )
