"""``slotool.generate_networks``: random operator graphs, streamed to a file."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.api.display import Part, table
from slotool.api.outputs import writes
from slotool.api.progress import Reporting, reporter_of
from slotool.api.result import Result
from slotool.errors import ArgumentError

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.graphs.generators import SearchSpace

BYTES_PER_GB = 10**9
# Exponents of 2 of units or channels, and the shape of one example, where none are given.
WIDTHS = {"mlp": (0, 14), "cnn": (0, 10)}
INPUT_SHAPES = {"mlp": (784,), "cnn": (3, 32, 32)}
# What the file's header leaves out.
_PLAIN = (("plain",), ("none",))


@dataclass(frozen=True, repr=False, eq=False)
class GeneratedNetworks(Result):
    """What was drawn: ``provenance``, as the file's header has it, and ``measured``: how many, how large, how fast."""

    out: Path
    provenance: Mapping[str, Any]
    measured: Mapping[str, Any]

    schema = "generate"

    def findings(self) -> Mapping[str, Any]:
        return {"out": str(self.out), **self.provenance, **self.measured}

    def shown(self) -> list[Part]:
        measured = self.measured
        rows = [
            ["unique networks", f"{measured['written']:,}"],
            ["search-space size", _many(measured["search_space_size"])],
            [f"skipped, over {self.provenance['max_memory_bytes'] / BYTES_PER_GB:.3g} GB", f"{measured['skipped']:,}"],
            ["weights", f"{measured['weights_min']:,} to {measured['weights_max']:,}"],
            ["FLOPs per example", f"{measured['flops_min']:,} to {measured['flops_max']:,}"],
            ["networks per second", f"{measured['written'] / measured['seconds']:,.0f}"],
        ]
        title = f"Random {self.provenance['family'].upper()}s, seed {self.provenance['seed']}"
        return [table(title, ["fact", "value"], rows), f"wrote {self.out}"]


@writes("out")
def generate_networks(
    kind: str,
    out: str | Path,
    *,
    count: int = 1000,
    depth: tuple[int, int] = (3, 10),
    widths: tuple[int, int] | None = None,
    input_shape: Sequence[int] | None = None,
    resolutions: Sequence[int] = (),
    blocks: str | Sequence[str] = "plain",
    downsample: str | Sequence[str] = "none",
    batch_size: int = 1,
    max_memory_gb: float | None = None,
    seed: int = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> GeneratedNetworks:
    """Draw unique random networks and write them to a graph file.

    Source: Inference Latency Prediction, section 3: random MLPs and CNNs.

    Args:
        kind: ``"mlp"`` or ``"cnn"``.
        out: Graph file to write, Parquet or .jsonl.
        count: Number of unique networks.
        depth: Minimum and maximum of hidden layers.
        widths: Minimum and maximum of units (MLP) or channels (CNN) per layer, as exponents of 2; None: 0 to 14, or 0
            to 10.
        input_shape: Shape of one example; None: 784 features, or 3 × 32 × 32.
        resolutions: Of a CNN: square images of one of these sizes instead.
        blocks: Of a CNN: what a layer may be, one or several of ``slotool.graphs.blocks.BLOCKS``, or ``"all"``.
        downsample: Of a CNN: how a layer may halve the image: ``"none"``, ``"pool"``, ``"stride"``, one or several.
        batch_size: Examples in one call, for the memory limit.
        max_memory_gb: Skip networks whose weights and outputs take more; None: half of this machine's memory.
        seed: The same seed draws the same networks.
        force: Replace ``out`` if it exists.
        progress: Who hears how far it is; see ``slotool.api.progress``.

    Returns:
        How many networks were written, of which sizes.

    Raises:
        ArgumentError: An argument has a value that it cannot have, or none for this kind.
        InputError: The search space holds too few networks.
        AlreadyExistsError: ``out`` exists.
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.graphs.generators import RandomGraphs
    from slotool.graphs.store import write_graphs

    space = _space(kind, depth, widths, input_shape, resolutions, blocks, downsample)
    limit = int(max_memory_gb * BYTES_PER_GB) if max_memory_gb else _half_of_memory()
    written_to = Path(out)
    refuse_existing(written_to, force)
    provenance = {
        "family": kind,
        "seed": seed,
        "count": count,
        **_provenance(space),
        "batch_size": batch_size,
        "max_memory_bytes": limit,
    }
    started = time.perf_counter()
    graphs = RandomGraphs(kind, count, seed, space, limit, batch_size)
    watched = _Watched(graphs)
    with reporter_of(progress).progress(f"drawing {kind.upper()}s", total=count) as steps:
        written = write_graphs(written_to, watched, provenance, steps.advance)
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
    from slotool.graphs import blocks as known
    from slotool.graphs.generators import SearchSpace

    if kind not in WIDTHS:
        raise ArgumentError("kind", f"{kind!r} is neither {' nor '.join(WIDTHS)}")
    shape, sizes = tuple(input_shape or INPUT_SHAPES[kind]), len(INPUT_SHAPES[kind])
    if len(shape) != sizes:
        stated = ",".join(map(str, shape))
        raise ArgumentError("input_shape", f"{stated!r} is not {sizes} size{'s' if sizes > 1 else ''}")
    if kind == "mlp":
        for argument, given in (("resolutions", resolutions), ("blocks", blocks), ("downsample", downsample)):
            if given not in ((), "plain", "none"):
                raise ArgumentError(argument, "an MLP has none; leave it out")
        return SearchSpace(depth, widths or WIDTHS[kind], shape)
    return SearchSpace(
        depth,
        widths or WIDTHS[kind],
        shape,
        blocks=tuple(known.BLOCKS) if blocks == "all" else _names(blocks),
        downsampling=_names(downsample),
        resolutions=tuple(resolutions),
    )


def _names(given: str | Sequence[str]) -> tuple[str, ...]:
    return (given,) if isinstance(given, str) else tuple(given)


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
    optional = ("blocks", "downsampling", "resolutions")
    return {name: value for name, value in asdict(space).items() if name not in optional or value not in ((), *_PLAIN)}
