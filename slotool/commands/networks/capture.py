"""``slotool.capture``: existing models as operator graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import Ineffective, command_line
from slotool.commands.display import Part, Table, table
from slotool.commands.inputs import FilePath
from slotool.commands.networks.named_networks import KERAS, PackageNetworks, models_in
from slotool.commands.networks.networks import Dtypes, Network, Networks, Shapes
from slotool.commands.outputs import writes
from slotool.commands.progress import Reporter, Reporting, reporter_of, short_phase
from slotool.commands.result import Result
from slotool.commands.values import at_least
from slotool.errors import ArgumentError, RunError
from slotool.machine import usable_cores
from slotool.printable import counted

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from slotool.graphs import OperatorGraph
    from slotool.graphs.capture import Limits

# Seconds after which the capture of one model has hung.
TIMEOUT_S = 600.0
# The same for each network of a package.
PACKAGE_TIMEOUT_S = 180.0
# The share of counted FLOPs that a graph may lack without a word.
UNCOUNTED_WARNED = 0.01


@command_line(
    made_by={"networks": models_in},
    python_only=("input_shape", "input_dtype"),
    ineffective=(Ineffective(("force",), "out"),),
    resumes=True,
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

    Shapes have their channels first; FLOPs are per example, a multiply-add counting two. Of several networks those that
    cannot be captured are left out and named, and the exit code is 1. A sweep of a package that was interrupted goes on
    where it was.

    Example: slotool capture --keras ResNet50 -o resnet50.jsonl

    Example: slotool capture --keras all -o applications.parquet

    Example: slotool capture --timm families -o timm.parquet

    Example: slotool capture --torch nets:small --torch nets:large --input-shape 3,32,32 -o nets.jsonl

    Args:
        networks: One, several, or several by name: each a ``torch.nn.Module``, a ``keras.Model``, a name in
            keras.applications, an .onnx or .keras file, ``"module:factory"`` of a torch module, an ``OperatorGraph``,
            or a graph file; or ``PackageNetworks``, those of a package. Models given by name are captured in a process
            of their own, model objects in this one.
        out: Graph file to write: .jsonl or .parquet.
        input_shape: Shape of one example without the batch, in the model's own order of axes: for torch modules, free
            axes of ONNX and Keras, and Keras models that are not built, which this builds; one for all, or one for
            each; a mapping of shapes by name for several inputs.
        input_dtype: Element type of the inputs of a torch module, or of a Keras model with a ``call`` of its own; a
            mapping by name for several; None: that of the weights, whole numbers where only these run.
        processes: Captures of a package at once; None: all cores.
        timeout_s: Time until a capture has hung; None: 600s, of a package's 180s.
        max_memory_gb: Memory of one capture; None: 90 % of free.
        force: Replace ``out`` if it exists.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.commands.progress``.

    Returns:
        ``graphs``, in the order given, and why those left out ``failed``; ``frame()`` has a row per network.

    Raises:
        ArgumentError: An argument has a value that it cannot have.
        GraphError: The model, or none of several, can be captured.
        AlreadyExistsError: ``out`` exists.
        TimedOut: A capture took longer than ``timeout_s``.
        RunError: A capture died, or took too much memory; or no network of a package could be captured.
        MissingPackageError: The package is not installed.
    """
    from slotool.graphs.capture import Limits

    reporter = reporter_of(progress)
    max_bytes = None if max_memory_gb is None else int(max_memory_gb * 1e9)
    if isinstance(networks, PackageNetworks):
        if networks.package == KERAS:
            for argument, given in (("processes", processes), ("timeout_s", timeout_s), ("max_memory_gb", max_bytes)):
                if given is not None:
                    raise ArgumentError(
                        argument, "it has no effect on several networks of keras.applications; leave it out"
                    )
        return _of_package(networks, out, Limits(timeout_s or PACKAGE_TIMEOUT_S, max_bytes), processes, force, reporter)
    if processes is not None:
        raise ArgumentError("processes", "it has an effect on the networks of a package only; leave it out")
    limits = Limits(timeout_s or TIMEOUT_S, max_bytes)
    asked = Networks.of(networks, input_shape, input_dtype, reporter=reporter)
    _refuse(out, force)
    failed: dict[str, str] = {}
    graphs = asked.graphs(limits, failed)
    for name, reason in failed.items():
        reporter.warn(f"{name} is left out: {reason}")
    names = asked.names if len(asked.names) == len(graphs) else [graph.name or graph.id for graph in graphs]
    if out is not None:
        _write(Path(out), graphs, asked.provenance())
    single = names[0] if len(graphs) == 1 and not failed else None
    return Capture(graphs, asked.framework or "graph", single, failed, None if out is None else Path(out))


def _of_package(
    networks: PackageNetworks,
    out: FilePath | None,
    limits: Limits,
    processes: int | None,
    force: bool,
    reporter: Reporter,
) -> Capture:
    """Capture networks of a package; those that cannot be captured are left out. Raises ``RunError`` for none left."""
    from slotool.graphs.capture.zoo import PACKAGES

    package, names = networks.package, networks.text
    if package not in (KERAS, *PACKAGES):
        raise ArgumentError("networks", f"unknown package {package!r}; available: {', '.join((KERAS, *PACKAGES))}")
    if processes is not None and processes < 1:
        raise ArgumentError("processes", f"{processes} is less than 1")
    _refuse(out, force)
    captured = (
        _applications(names, reporter)
        if package == KERAS
        else _zoo(package, names, out, force, limits, processes or usable_cores(), reporter)
    )
    # The journal of a sweep stays until its networks are written.
    with captured as (graphs, failed):
        if not graphs:
            raise _none_of(failed)
        if out is not None:
            _write(Path(out), graphs, {package: names})
    whence = "keras.applications" if package == KERAS else package
    return Capture(graphs, whence, None, failed, None if out is None else Path(out))


def _zoo(
    package: str,
    names: str,
    out: FilePath | None,
    force: bool,
    limits: Limits,
    processes: int,
    reporter: Reporter,
) -> AbstractContextManager[tuple[list[OperatorGraph], dict[str, str]]]:
    from slotool.commands.networks.capture_sweep import swept
    from slotool.graphs.capture.zoo import chosen_networks

    # torch and a package of a thousand networks are imported, which takes seconds.
    with short_phase(reporter, f"looking for networks of {package}"):
        chosen = chosen_networks(package, names)
    return swept(package, chosen, out, force, limits, processes, reporter)


@contextmanager
def _applications(names: str, reporter: Reporter) -> Iterator[tuple[list[OperatorGraph], dict[str, str]]]:
    """Graphs of several members of keras.applications, and the reason for each that is missing."""
    from slotool.graphs.capture import ApplicationGraphs
    from slotool.graphs.capture.loading import chosen_applications

    chosen = chosen_applications(names)
    with reporter.progress("capturing networks of keras.applications", total=len(chosen)) as progress:
        graphs = ApplicationGraphs(chosen, progress.advance)
        captured = list(graphs)
    for name, reason in graphs.failed.items():
        reporter.warn(f"{name} is left out: {reason}")
    yield captured, graphs.failed


def _none_of(failed: Mapping[str, str]) -> RunError:
    first = next(iter(failed.values()))
    return RunError(f"none of {len(failed)} networks could be captured, so nothing is written; the first: {first}")


def _refuse(out: FilePath | None, force: bool) -> None:
    from slotool.artifacts.bundle import refuse_existing
    from slotool.graphs.store import require_graph_suffix

    if out is not None:
        require_graph_suffix(Path(out))
        refuse_existing(Path(out), force)


def _write(out: Path, graphs: Sequence[OperatorGraph], provenance: dict[str, Any]) -> None:
    from slotool.graphs.store import write_graphs

    write_graphs(out, graphs, provenance)


@dataclass(frozen=True, repr=False, eq=False)
class Capture(Result):
    """``graphs`` of ``whence``, a framework or a set; ``source``: of one network, what was read, else None;
    ``failed``: why those left out could not be captured; ``out``: the graph file written, if any."""

    graphs: list[OperatorGraph]
    whence: str
    source: str | None
    failed: dict[str, str] = field(default_factory=dict)
    out: Path | None = None

    schema = "capture"

    @property
    def exit_code(self) -> int:
        """1 if a network could not be captured."""
        return int(bool(self.failed))

    def frame(self) -> Any:
        """Facts of the networks, one row each."""
        import pandas as pd

        return pd.DataFrame([{"name": graph.name, **_facts(graph)} for graph in self.graphs])

    def findings(self) -> dict[str, Any]:
        out = None if self.out is None else str(self.out)
        if self.source is not None:
            (graph,) = self.graphs
            return {"out": out, "source": self.source, **_facts(graph), "graph": graph.document()}
        facts = [{"name": graph.name, **_facts(graph)} for graph in self.graphs]
        return {"out": out, "graphs": facts, "failed": self.failed}

    def shown(self) -> list[Part]:
        shown = self._several() if self.source is None else self._one(self.source)
        return [shown] if self.out is None else [shown, f"wrote {self.out}"]

    @property
    def warnings(self) -> list[str]:
        """What graphs leave out of their networks, and how much that is."""
        return [sentence for graph in self.graphs for sentence in _missing(graph, named=len(self.graphs) > 1)]

    def _one(self, source: str) -> Table:
        (graph,) = self.graphs
        rows = [
            [op.name, op.op, "×".join(map(str, op.shape)), f"{op.weights:,}", f"{op.flops:,}"] for op in graph.operators
        ]
        rows.append(["total", f"{len(rows)} operators", "", f"{graph.weights:,}", f"{graph.flops:,}"])
        return table(f"{source}, graph {graph.id}", ["operator", "type", "output", "weights", "FLOPs"], rows)

    def _several(self) -> Table:
        rows = [
            [g.name, g.id, f"{len(g.operators):,}", f"{g.unknown_share:.1%}", f"{g.weights:,}", f"{g.flops / 1e9:,.3f}"]
            for g in self.graphs
        ]
        left_out = f", {len(self.failed)} left out" if self.failed else ""
        known = sum(not graph.unknown for graph in self.graphs)
        every = "" if known == len(self.graphs) else f", of {known} every operator known"
        title = f"{counted(len(self.graphs), 'network')} of {self.whence}{every}{left_out}"
        return table(title, ["network", "graph", "operators", "unknown", "weights", "GFLOPs"], rows)


def _facts(graph: OperatorGraph) -> dict[str, Any]:
    return {
        "graph_id": graph.id,
        "operators": len(graph.operators),
        "weights": graph.weights,
        "flops": graph.flops,
        "unknown": [operator.name for operator in graph.unknown],
        "unknown_share": graph.unknown_share,
        "unknown_flops_share": graph.unknown_flops_share,
        "unknown_bytes_share": graph.unknown_bytes_share,
        "moved_bytes": graph.moved_bytes,
        "counted_flops": graph.counted_flops,
        "flops_mismatch": graph.flops_mismatch,
        "examples_interact": graph.examples_interact,
        "uncosted": list(graph.uncosted),
        "element_type": graph.element_type,
        "compiled": graph.compiled,
    }


def _unknown_work(graph: OperatorGraph) -> str:
    moved = f"they are priced by what they read and write, {graph.unknown_bytes_share:.0%} of the network's bytes"
    return f"{moved}, and {graph.unknown_flops_share:.0%} of the counted FLOPs are theirs"


def _turned_steps(graph: OperatorGraph) -> str:
    """What to do about recurrent layers that are known where steps do not come first; "" where there are none."""
    names = {operator.op.removeprefix("torch.") for operator in graph.unknown}
    if not names & {"lstm", "gru", "rnn_tanh", "rnn_relu"}:
        return ""
    return (
        "; a recurrent layer takes the first axis, the batch, for steps: give it batch_first=True, or turn its input "
        "in a module around it"
    )


def _missing(graph: OperatorGraph, *, named: bool) -> Iterator[str]:
    """What a graph leaves out of its network, and how much that is; with its name where ``named``."""
    prefix = f"{graph.name}: " if named else ""
    if graph.unknown:
        ops = ", ".join(sorted({operator.op for operator in graph.unknown}))
        operators = len(graph.operators) - len(graph.inputs)
        yield (
            f"{prefix}slotool does not know {len(graph.unknown)} of {operators} operators ({ops}): "
            f"{_unknown_work(graph)}; no backend can run the graph, so profile cannot measure it"
        )
    if graph.uncounted_flops_share > UNCOUNTED_WARNED:
        yield (
            f"{prefix}{graph.uncounted_flops_share:.0%} of the FLOPs that the framework's own counter finds "
            f"({graph.counted_flops:,}) are missing from the graph: what is predicted from it is too little"
        )
    if graph.flops_mismatch > UNCOUNTED_WARNED:
        yield (
            f"{prefix}the graph counts {1 + graph.flops_mismatch:.3g} times the FLOPs of the framework's "
            f"own counter ({graph.counted_flops:,}): what is predicted from it is too much"
        )
    if graph.examples_interact:
        yield (
            f"{prefix}the examples of a batch interact, or the code loops over them: the FLOPs are not those of one "
            f"example, and what is predicted from them holds for no other batch{_turned_steps(graph)}"
        )
    if graph.uncosted:
        what = ", ".join(graph.uncosted)
        yield f"{prefix}nothing counts the FLOPs of {what}: at most the bytes that it moves are priced"
    if not graph.plain:
        yield (f"{prefix}the network is {graph.form}; predictions and profiles of graphs are of float32 ones")
