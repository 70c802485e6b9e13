"""``slotool.generate_networks``: random operator graphs, streamed to a file."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.display import Part, table
from slotool.commands.outputs import writes
from slotool.commands.result import Result, output, result, unlisted
from slotool.commands.values import at_least, sizes
from slotool.errors import ArgumentError
from slotool.machine import memory_within
from slotool.progress import Reporting, reporter_of
from slotool.sources import as_list

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.graphs.generators import RandomNetworks, SearchSpace

BYTES_PER_GB = 10**9
FLOPS_PER_GFLOP = 10**9
DEPTH = (3, 10)
ARCHITECTURES = "architectures"
# Options of each kind, and the default values of options that a kind lacks.
_OPTIONS = {
    "mlp": ("depth", "widths", "input_shape"),
    "cnn": ("depth", "widths", "input_shape", "resolutions", "blocks", "downsample"),
    ARCHITECTURES: ("architectures",),
}
_NOT_GIVEN = {
    "depth": DEPTH, "widths": None, "input_shape": None, "resolutions": (), "blocks": "plain", "downsample": "none",
    "architectures": "all",
}  # fmt: skip


@result
class GeneratedNetworks(Result):
    """Random networks in ``out``: ``provenance``, as in the file's header, and ``measured``, numbers and sizes."""

    out: Path = output()
    provenance: Mapping[str, Any] = unlisted()
    measured: Mapping[str, Any] = unlisted()

    schema = "generate"

    def findings(self) -> Mapping[str, Any]:
        return {**super().findings(), **self.provenance, **self.measured}

    def shown(self) -> list[Part]:
        measured, size = self.measured, self.measured["search_space_size"]
        rows = [
            ["unique networks", f"{measured['written']:,}"],
            ["search-space size", f"{size:,}" if size < 10**9 else f"{size:.2e}"],
            [f"skipped, over {self._limits}", f"{measured['skipped']:,}"],
            ["weights", f"{measured['weights_min']:,} to {measured['weights_max']:,}"],
            ["FLOPs per example", f"{measured['flops_min']:,} to {measured['flops_max']:,}"],
            ["networks per second", f"{measured['written'] / measured['seconds']:,.0f}"],
        ]
        family = self.provenance["family"]
        noun = "networks" if family == ARCHITECTURES else f"{family.upper()}s"
        title = f"Random {noun}, seed {self.provenance['seed']}"
        return [table(title, ["fact", "value"], rows)]

    @property
    def _limits(self) -> str:
        memory = f"{self.provenance['max_memory_bytes'] / BYTES_PER_GB:.3g} GB"
        flops = self.provenance.get("max_flops")
        return memory if flops is None else f"{memory} or {flops / FLOPS_PER_GFLOP:.3g} GFLOPs"


@command_line(
    path="generate mlp",
    summary="Draw unique MLPs: 3 to 10 hidden layers of 2^0 to 2^14 units.",
    fixed={"kind": "mlp"},
    arguments=(),
    names={"count": "--count -n", "widths": "--units"},
    values={"input_shape": sizes},
    panels={"Search space": ("depth", "widths", "input_shape")},
    python_only=("resolutions", "blocks", "downsample", "architectures"),
)
@command_line(
    path="generate cnn",
    summary="Draw unique CNNs: 3 to 10 layers of 2^0 to 2^10 channels, by default plain convolutions.",
    fixed={"kind": "cnn"},
    arguments=(),
    names={"count": "--count -n", "widths": "--channels"},
    values={"input_shape": sizes, "resolutions": sizes},
    panels={"Search space": ("depth", "widths", "input_shape", "resolutions", "blocks", "downsample")},
    python_only=("architectures",),
)
@command_line(
    path="generate architectures",
    summary="Draw unique networks of common kinds and sizes, transformers included.",
    fixed={"kind": "architectures"},
    arguments=(),
    names={"count": "--count -n"},
    panels={"Search space": ("architectures",)},
    python_only=("depth", "widths", "input_shape", "resolutions", "blocks", "downsample"),
)
@writes("out")
def generate_networks(
    kind: str,
    out: str | Path,
    *,
    count: Annotated[int, at_least(1)] = 1000,
    depth: tuple[int, int] = DEPTH,
    widths: tuple[int, int] | None = None,
    input_shape: Sequence[int] | None = None,
    resolutions: Sequence[int] = (),
    blocks: str | Sequence[str] = "plain",
    downsample: str | Sequence[str] = "none",
    architectures: str | Sequence[str] = "all",
    batch_size: Annotated[int, at_least(1)] = 1,
    max_memory_gb: Annotated[float, at_least(1e-6)] | None = None,
    max_gflops: Annotated[float, at_least(1e-6)] | None = None,
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> GeneratedNetworks:
    """Draw unique random networks and write them to a graph file.

    Example: slotool generate mlp -o mlps.parquet --count 1000

    Example: slotool generate cnn -o cnns.parquet --count 500 --input-shape 3,32,32

    Example: slotool generate cnn -o mixed.parquet --blocks all --downsample none,pool,stride

    Example: slotool generate architectures -o networks.parquet --count 300 --max-gflops 10

    Args:
        kind: ``"mlp"``, ``"cnn"`` or ``"architectures"``: networks of the kinds that people use, see
            ``slotool.graphs.architectures.ARCHITECTURES``. The first two are those of Inference Latency Prediction,
            section 3.
        out: Graph file to write, .parquet or .jsonl.
        count: Number of unique networks.
        depth: Minimum:maximum of hidden layers.
        widths: Minimum:maximum of units or channels per layer, as exponents of 2; None: MLP 0:14, CNN 0:10.
        input_shape: Shape of one example; None: MLP 784, CNN 3,32,32.
        resolutions: Square images of one of these sizes instead, such as 32,64,224.
        blocks: Blocks that a layer may be, several with commas, or all: plain, residual, depthwise, bottleneck,
            inverted, dense, separable, branches, convnext.
        downsample: Ways in which a layer may halve the image: none, pool, stride, several with commas.
        architectures: Kinds to draw from, several with commas, or all: resnet, mobilenet, densenet, convnext, vit,
            swin, mixer, hybrid, bert, gpt, llama.
        batch_size: Examples in one call, for the memory limit.
        max_memory_gb: Skip networks whose weights and outputs take more; None: half of this machine's.
        max_gflops: Skip networks that take more billions of FLOPs for one example.

    Returns:
        Number and sizes of the networks.

    Raises:
        ArgumentError: An argument has a value that it cannot have, or none for this kind.
        InputError: The search space holds too few networks.
    """
    from slotool.graphs.architectures import ARCHITECTURES as KINDS
    from slotool.graphs.architectures import RandomArchitectures
    from slotool.graphs.generators import NetworkLimits, RandomGraphs
    from slotool.graphs.store import write_graphs

    if kind not in _OPTIONS:
        raise ArgumentError("kind", f"{kind!r} is none of {', '.join(_OPTIONS)}")
    options = {
        "depth": tuple(depth), "widths": widths, "input_shape": input_shape, "resolutions": tuple(resolutions),
        "blocks": blocks, "downsample": downsample, "architectures": architectures,
    }  # fmt: skip
    for name, value in options.items():
        if name not in _OPTIONS[kind] and value != _NOT_GIVEN[name]:
            raise ArgumentError(name, f"a network of kind {kind!r} has none, or its own; leave it out")
    limit = int(max_memory_gb * BYTES_PER_GB) if max_memory_gb else memory_within() // 2
    limits = NetworkLimits(limit, batch_size, int(max_gflops * FLOPS_PER_GFLOP) if max_gflops else None)
    written_to = Path(out)
    graphs: RandomNetworks
    if kind == ARCHITECTURES:
        names = tuple(KINDS) if architectures == "all" else tuple(as_list(architectures))
        graphs = RandomArchitectures(names, count, seed, limits)
    else:
        space = _space(kind, depth, widths, input_shape, resolutions, blocks, downsample)
        graphs = RandomGraphs(kind, count, seed, space, limits.memory_bytes, batch_size, limits.flops)
    provenance = {"family": kind, **graphs.provenance}
    started = time.perf_counter()
    weights, flops = [], []

    def counted() -> Iterator[OperatorGraph]:
        for graph in graphs:
            weights.append(graph.weights)
            flops.append(graph.flops)
            yield graph

    noun = "networks" if kind == ARCHITECTURES else f"{kind.upper()}s"
    with reporter_of(progress).progress(f"drawing {noun}", total=count) as steps:
        written = write_graphs(written_to, counted(), provenance, steps.advance)
    measured = {
        "written": written,
        "search_space_size": graphs.size,
        "skipped": graphs.skipped,
        "weights_min": min(weights),
        "weights_max": max(weights),
        "flops_min": min(flops),
        "flops_max": max(flops),
        "seconds": time.perf_counter() - started,
    }
    return GeneratedNetworks(written_to, provenance, measured)


def _space(
    kind: str,
    depth: tuple[int, int],
    widths: tuple[int, int] | None,
    input_shape: Sequence[int] | None,
    resolutions: Sequence[int],
    blocks: str | Sequence[str],
    downsample: str | Sequence[str],
) -> SearchSpace:
    from slotool.graphs.generators import BLOCKS, FAMILIES

    usual, _ = FAMILIES[kind]
    shape, sizes = tuple(input_shape or usual.input_shape), len(usual.input_shape)
    if len(shape) != sizes:
        stated = ",".join(map(str, shape))
        raise ArgumentError("input_shape", f"{stated!r} is not {sizes} size{'s' if sizes > 1 else ''}")
    return replace(
        usual, depth=depth, exponents=widths or usual.exponents, input_shape=shape, resolutions=tuple(resolutions),
        blocks=tuple(BLOCKS if blocks == "all" else as_list(blocks)), downsampling=tuple(as_list(downsample)),
    )  # fmt: skip
