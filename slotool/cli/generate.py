"""``slotool generate``: random operator graphs, streamed to a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.generate_arrivals import generate_arrivals
from slotool.cli.options import Force, Json, Out, Seed, panel, parse_numbers

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slotool.cli.output import Output
    from slotool.graphs import OperatorGraph
    from slotool.graphs.generators import SearchSpace

BYTES_PER_GB = 10**9
_space = panel("Search space")
BLOCKS = "plain, residual, depthwise, bottleneck, inverted, dense, separable, branches, convnext"
Count = Annotated[int, typer.Option("--count", "-n", min=1, help="Number of unique networks.")]
Depth = Annotated[str, _space("--depth", help="Minimum:maximum of hidden layers.")]
Memory = Annotated[
    float | None,
    typer.Option(
        "--max-memory-gb",
        min=1e-6,
        help="Skip networks whose weights and outputs take more.",
        show_default="half of this machine's",
    ),
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Examples in one call, for the memory limit.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Draw random networks as operator graphs, or arrivals of requests.")
    group.command("mlp")(generate_mlp)
    group.command("cnn")(generate_cnn)
    group.command("arrivals")(generate_arrivals)
    app.add_typer(group, name="generate")


def generate_mlp(
    out: Out,
    count: Count = 1000,
    depth: Depth = "3:10",
    units: Annotated[
        str, typer.Option("--units", help="Minimum:maximum of units per layer, as exponents of 2.")
    ] = "0:14",
    input_shape: Annotated[str, _space("--input-shape", help="Features of one example.")] = "784",
    batch_size: BatchSize = 1,
    max_memory_gb: Memory = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Draw unique MLPs: 3 to 10 hidden layers of 2^0 to 2^14 units.

    Example: slotool generate mlp -o mlps.parquet --count 1000
    """
    from slotool.graphs.generators import SearchSpace

    shape = _sizes(input_shape, "--input-shape", 1)
    space = SearchSpace(_range(depth, "--depth"), _range(units, "--units"), shape)
    _generate("mlp", out, count, space, batch_size, max_memory_gb, seed, force, json)


def generate_cnn(
    out: Out,
    count: Count = 1000,
    depth: Depth = "3:10",
    channels: Annotated[
        str, _space("--channels", help="Minimum:maximum of channels per layer, as exponents of 2.")
    ] = "0:10",
    input_shape: Annotated[str, _space("--input-shape", help="channels,height,width.")] = "3,32,32",
    resolutions: Annotated[
        str | None, _space("--resolutions", help="Square images of one of these sizes instead, e.g. 32,64,224.")
    ] = None,
    blocks: Annotated[
        str, _space("--blocks", help=f"What a layer may be, several with commas, or all: {BLOCKS}.")
    ] = "plain",
    downsample: Annotated[
        str, _space("--downsample", help="How a layer may halve the image: none, pool, stride.")
    ] = "none",
    batch_size: BatchSize = 1,
    max_memory_gb: Memory = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Draw unique CNNs: 3 to 10 layers of 2^0 to 2^10 channels; plain convolutions unless other blocks are named.

    Example: slotool generate cnn -o cnns.parquet --count 500 --input-shape 3,32,32

    Example: slotool generate cnn -o mixed.parquet --blocks all --downsample none,pool,stride
    """
    from slotool.graphs import blocks as known
    from slotool.graphs.generators import SearchSpace

    space = SearchSpace(
        _range(depth, "--depth"),
        _range(channels, "--channels"),
        _sizes(input_shape, "--input-shape", 3),
        blocks=tuple(known.BLOCKS) if blocks == "all" else _names(blocks),
        downsampling=_names(downsample),
        resolutions=_sizes(resolutions, "--resolutions") if resolutions else (),
    )
    _generate("cnn", out, count, space, batch_size, max_memory_gb, seed, force, json)


def _generate(
    family: str,
    out: Path,
    count: int,
    space: SearchSpace,
    batch_size: int,
    max_memory_gb: float | None,
    seed: int,
    force: bool,
    json: bool,
) -> None:
    import time

    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.graphs.generators import RandomGraphs
    from slotool.graphs.store import write_graphs

    limit = int(max_memory_gb * BYTES_PER_GB) if max_memory_gb else _half_of_memory()
    refuse_existing(out, force)
    output = Output(as_json=json)
    provenance = {
        "family": family,
        "seed": seed,
        "count": count,
        **_provenance(space),
        "batch_size": batch_size,
        "max_memory_bytes": limit,
    }
    started = time.perf_counter()
    graphs = RandomGraphs(family, count, seed, space, limit, batch_size)
    watched = _Watched(graphs)
    with output.progress(f"drawing {family.upper()}s", total=count) as progress:
        written = write_graphs(out, watched, provenance, progress.advance)
    measured = {
        "written": written,
        "search_space_size": space.size,
        "skipped": graphs.skipped,
        "weights_min": watched.weights[0],
        "weights_max": watched.weights[1],
        "flops_min": watched.flops[0],
        "flops_max": watched.flops[1],
        "seconds": time.perf_counter() - started,
    }
    _report(output, out, provenance, measured)


def _report(output: Output, out: Path, provenance: dict[str, Any], measured: dict[str, Any]) -> None:
    from slotool.cli.output import table

    rows = [
        ["unique networks", f"{measured['written']:,}"],
        ["search-space size", _many(measured["search_space_size"])],
        [f"skipped, over {provenance['max_memory_bytes'] / BYTES_PER_GB:.3g} GB", f"{measured['skipped']:,}"],
        ["weights", f"{measured['weights_min']:,} to {measured['weights_max']:,}"],
        ["FLOPs per example", f"{measured['flops_min']:,} to {measured['flops_max']:,}"],
        ["networks per second", f"{measured['written'] / measured['seconds']:,.0f}"],
    ]
    title = f"Random {provenance['family'].upper()}s, seed {provenance['seed']}"
    output.result(
        "generate", {"out": str(out), **provenance, **measured}, table(title, ["fact", "value"], rows), f"wrote {out}"
    )


def _many(count: int) -> str:
    return f"{count:,}" if count < 10**9 else f"{count:.2e}"


def _half_of_memory() -> int:
    """Half of what this process may use, in bytes."""
    from slotool.machine import machine_facts

    facts = machine_facts()
    return int(min(facts["memory_bytes"], facts["memory_limit_bytes"] or facts["memory_bytes"])) // 2


class _Watched:
    """Passes graphs on and remembers the ranges of their costs."""

    def __init__(self, graphs: Iterable[OperatorGraph]):
        self._graphs = graphs
        self.weights, self.flops = (0, 0), (0, 0)

    def __iter__(self) -> Iterator[OperatorGraph]:
        for graph in self._graphs:
            self.weights = _widened(self.weights, graph.weights)
            self.flops = _widened(self.flops, graph.flops)
            yield graph


def _widened(ends: tuple[int, int], value: int) -> tuple[int, int]:
    return min(ends[0] or value, value), max(ends[1], value)


def _provenance(space: SearchSpace) -> dict[str, Any]:
    """The search space in the file's header; what a family does not have is left out."""
    from dataclasses import asdict

    optional = ("blocks", "downsampling", "resolutions")
    return {name: value for name, value in asdict(space).items() if name not in optional or value not in ((), *_PLAIN)}


_PLAIN = (("plain",), ("none",))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _sizes(text: str, option: str, count: int | None = None) -> tuple[int, ...]:
    numbers = parse_numbers(text, option)
    if not all(number.is_integer() for number in numbers):
        raise typer.BadParameter(f"{text!r} is not of whole numbers", param_hint=option)
    sizes = tuple(map(int, numbers))
    if count is not None and len(sizes) != count:
        raise typer.BadParameter(f"{text!r} is not {count} size{'s' if count > 1 else ''}", param_hint=option)
    return sizes


def _range(text: str, option: str) -> tuple[int, int]:
    """``3:10`` as (3, 10), ``5`` as (5, 5)."""
    try:
        ends = [int(end) for end in text.split(":")]
    except ValueError:
        ends = []
    if len(ends) not in (1, 2):
        raise typer.BadParameter(f"{text!r} is not minimum:maximum", param_hint=option)
    return ends[0], ends[-1]
