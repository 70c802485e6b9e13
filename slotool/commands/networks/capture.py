"""``slotool.capture``: models as operator graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import Ineffective, command_line
from slotool.commands.display import Column, Part, Table, records_table, table
from slotool.commands.networks.named_networks import networks_in
from slotool.commands.outputs import writes
from slotool.commands.result import Result, output, result, unlisted
from slotool.commands.values import at_least
from slotool.errors import ArgumentError, RunError
from slotool.graphs.capture.networks import Dtypes, Network, Networks, PackageNetworks, Shapes
from slotool.machine import usable_cores
from slotool.printable import counted
from slotool.progress import Reporting, reporter_of
from slotool.sources import FilePath

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph

# Seconds after which the capture of one model, or of one network of a package, counts as hung.
TIMEOUT_S, PACKAGE_TIMEOUT_S = 600.0, 180.0


@command_line(
    made_by={"networks": (networks_in, ("graph", "networks"))},
    python_only=("input_shape", "input_dtype"),
    ineffective=(Ineffective(("force",), "out"),),
)
@writes("out")
def capture(
    networks: Network | Sequence[Network] | Mapping[str, Network] | PackageNetworks,
    out: FilePath | None = None,
    *,
    input_shape: Shapes | None = None,
    input_dtype: Dtypes | None = None,
    processes: Annotated[int, at_least(1)] | None = None,
    timeout_s: float | None = None,
    max_memory_gb: Annotated[float, at_least(0.01)] | None = None,
    force: bool = False,
    progress: Reporting = "auto",
) -> Capture:
    """Read Keras, PyTorch or ONNX models as operator graphs.

    Shapes have their channels first; FLOPs are per example, and a multiply-add counts two. Networks that cannot be
    captured are left out and named, with exit code 1. An interrupted capture of a package resumes.

    Example: slotool capture --keras ResNet50 -o resnet50.jsonl

    Example: slotool capture --keras all -o applications.parquet

    Example: slotool capture --timm families -o timm.parquet

    Example: slotool capture --torch nets:small --torch nets:large --input-shape 3,32,32 -o nets.jsonl

    Args:
        networks: One, several, or several by name: each a ``torch.nn.Module``, a ``keras.Model``, a name in
            keras.applications, an .onnx or .keras file, ``"module:factory"`` of one torch module or of several, an
            ``OperatorGraph``, or a graph file; or ``PackageNetworks``, those of a package. Models given by name are
            captured in other processes, model objects in this one.
        out: Graph file to write: .jsonl or .parquet.
        input_shape: Shape of one example without the batch, in the model's own order of axes: for torch modules, free
            axes of ONNX and Keras, and Keras models that are not built, which this builds; one for all, or one for
            each; a mapping of shapes by name for several inputs.
        input_dtype: Element type of the inputs of a torch module, or of a Keras model with a ``call`` of its own; a
            mapping by name for several; None: that of the weights, whole numbers where only these run.
        processes: Captures of a package at once; None: all cores.
        timeout_s: Time after which a capture has hung; None: 600s, for a package 180s.
        max_memory_gb: Memory of one capture, in GB; None: 90 % of the free memory.

    Returns:
        ``graphs``, in the order given, and ``failed``, reasons why others were left out; ``frame()`` has a row per
        network.

    Raises:
        GraphError: The model, or none of several, can be captured.
        TimedOut: A capture took longer than ``timeout_s``.
        RunError: A capture died, or took too much memory; or no network of a package could be captured.
        MissingPackageError: The package is not installed.
    """
    from slotool.graphs.capture import Limits
    from slotool.graphs.capture.package import captured_package
    from slotool.graphs.store import require_graph_suffix, write_graphs

    reporter = reporter_of(progress)
    written = None if out is None else Path(out)
    if written is not None:
        require_graph_suffix(written)
    of_package = isinstance(networks, PackageNetworks)
    limits = Limits(
        timeout_s or (PACKAGE_TIMEOUT_S if of_package else TIMEOUT_S),
        None if max_memory_gb is None else int(max_memory_gb * 1e9),
    )
    if isinstance(networks, PackageNetworks):
        captured = captured_package(networks, written, force, limits, processes or usable_cores(), reporter)
        # The journal of a sweep stays until its networks are written.
        with captured as (graphs, failed):
            if not graphs:
                first = next(iter(failed.values()))
                none = f"none of {counted(len(failed), 'network')} could be captured, so nothing is written"
                raise RunError(f"{none}; the first: {first}")
            if written is not None:
                write_graphs(written, graphs, {networks.package: networks.text})
        return Capture(graphs, networks.title, None, failed, written)
    if processes is not None:
        raise ArgumentError("processes", "it has an effect on the networks of a package only; leave it out")
    sources = Networks.of(networks, input_shape, input_dtype, reporter=reporter)
    failed = {}
    graphs = sources.graphs(limits, failed)
    for name, reason in failed.items():
        reporter.warn(f"{name} is left out: {reason}")
    names = sources.names if len(sources.names) == len(graphs) else [graph.name or graph.id for graph in graphs]
    if written is not None:
        write_graphs(written, graphs, sources.provenance())
    single = names[0] if len(graphs) == 1 and not failed else None
    return Capture(graphs, sources.framework or "graph", single, failed, written)


_NETWORKS = (
    Column("name", "network"),
    Column("graph_id", "graph"),
    Column("operators", form=","),
    Column("unknown_share", "unknown", ".1%"),
    Column("weights", form=","),
    Column("flops", "GFLOPs", lambda flops: f"{flops / 1e9:,.3f}"),
)


@result
class Capture(Result):
    """Captured ``graphs`` of ``whence``, a framework or a package; ``source``: name of a single network, else None.

    ``failed``: reasons why others could not be captured, by name. ``out``: graph file.
    """

    graphs: list[OperatorGraph] = unlisted()
    whence: str = unlisted()
    source: str | None = unlisted()
    failed: dict[str, str] = unlisted(default_factory=dict)
    out: Path | None = output(default=None)

    schema = "capture"

    @property
    def exit_code(self) -> int:
        """1 if a network could not be captured."""
        return int(bool(self.failed))

    def frame(self) -> Any:
        """Return facts of the networks, a row each."""
        import pandas as pd

        return pd.DataFrame(self._facts)

    def findings(self) -> dict[str, Any]:
        from slotool.graphs.capture.omissions import facts_of

        if self.source is None:
            return {**super().findings(), "graphs": self._facts, "failed": self.failed}
        (graph,) = self.graphs
        return {**super().findings(), "source": self.source, **facts_of(graph), "graph": graph.document()}

    def shown(self) -> list[Part]:
        return [self._several() if self.source is None else self._one(self.source)]

    @property
    def _facts(self) -> list[dict[str, Any]]:
        from slotool.graphs.capture.omissions import facts_of

        return [{"name": graph.name, **facts_of(graph)} for graph in self.graphs]

    @property
    def warnings(self) -> list[str]:
        """Sentences on parts of networks that their graphs leave out."""
        from slotool.graphs.capture.omissions import omissions

        return [sentence for graph in self.graphs for sentence in omissions(graph, named=len(self.graphs) > 1)]

    def _one(self, source: str) -> Table:
        (graph,) = self.graphs
        rows = [
            [op.name, op.op, "×".join(map(str, op.shape)), f"{op.weights:,}", f"{op.flops:,}"] for op in graph.operators
        ]
        rows.append(["total", f"{len(rows)} operators", "", f"{graph.weights:,}", f"{graph.flops:,}"])
        return table(f"{source}, graph {graph.id}", ["operator", "type", "output", "weights", "FLOPs"], rows)

    def _several(self) -> Table:
        left_out = f", {len(self.failed)} left out" if self.failed else ""
        complete = sum(not graph.unknown for graph in self.graphs)
        every = "" if complete == len(self.graphs) else f", of {complete} every operator known"
        title = f"{counted(len(self.graphs), 'network')} of {self.whence}{every}{left_out}"
        return records_table(title, self._facts, _NETWORKS)
