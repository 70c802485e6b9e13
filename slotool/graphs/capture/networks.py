"""Networks as arguments of functions: graphs, files of them, and models of Keras, PyTorch and ONNX."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from slotool.errors import ArgumentError, RunError, SlotoolError
from slotool.printable import with_article
from slotool.progress import Progress, Quiet, Reporter, short_phase

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.graphs.capture import Limits, Source

GRAPH_SUFFIXES = (".parquet", ".jsonl")
# Those before .keras are rejected with advice.
KERAS_SUFFIXES = (".keras", ".h5", ".hdf5")
# Of networks that cannot be captured, so many say why in one sentence.
MAX_REASONS = 8
Shapes = Sequence[int] | Sequence[Sequence[int]] | Mapping[str, Sequence[int]]
Dtypes = str | Mapping[str, str]
# OperatorGraph, Source, torch.nn.Module or keras.Model, a graph or model file, a name: see ``Networks.of``.
Network = Any


KERAS = "keras"


@dataclass(frozen=True)
class PackageNetworks:
    """Networks of a package, built without weights and download.

    Args:
        package: Name of the package: torchvision, timm, transformers, or keras for keras.applications.
        names: ``"all"``, ``"families"`` (one network of each module or type; not of keras), or names; of transformers
            types of configurations, such as bert, whose defaults are taken.
    """

    package: str
    names: str | Sequence[str] = "families"

    @property
    def title(self) -> str:
        """Name of the package, or module, for people."""
        return "keras.applications" if self.package == KERAS else self.package

    @property
    def text(self) -> str:
        """Names with commas."""
        return self.names if isinstance(self.names, str) else ",".join(self.names)

    def chosen(self) -> list[str]:
        """Return the names of the networks. Raises ``ArgumentError`` for an unknown package."""
        from slotool.graphs.capture.loading import chosen_applications
        from slotool.graphs.capture.zoo import PACKAGES, chosen_networks

        if self.package == KERAS:
            return list(chosen_applications(self.text))
        if self.package not in PACKAGES:
            available = ", ".join((KERAS, *PACKAGES))
            raise ArgumentError("networks", f"unknown package {self.package!r}; available: {available}")
        return list(chosen_networks(self.package, self.text))


@dataclass(frozen=True)
class InMemory:
    """Model object of torch or keras; ``input_shape``: of one example, for torch and free axes of Keras."""

    framework: str
    model: Any
    input_shape: tuple[int, ...] | Mapping[str, tuple[int, ...]]
    input_dtype: Dtypes | None

    def captured(self) -> OperatorGraph:
        """Capture the model's graph in this process."""
        name = type(self.model).__name__
        if self.framework == "torch":
            from slotool.graphs.capture import capture_torch

            return replace(capture_torch(self.model, self.input_shape, self.input_dtype), name=name)
        from slotool.graphs.capture import capture_keras

        graph = capture_keras(self.model, self.input_shape, self.input_dtype)
        return replace(graph, name=graph.name or name)


@dataclass(frozen=True)
class Captured:
    """Network by its name of ``Networks.distinct_names``, with its ``graph``, or the ``error`` of its capture."""

    name: str
    graph: OperatorGraph | None = None
    error: SlotoolError | None = None


@dataclass(frozen=True)
class Networks:
    """Requested networks, in order; nothing is read or captured before ``graphs``.

    ``called``: names given to them, none or one for each; ``reporter`` receives the progress of their capture.
    """

    parts: Sequence[OperatorGraph | Path | Source | InMemory]
    called: Sequence[str] = ()
    reporter: Reporter = field(default_factory=Quiet)

    @classmethod
    def of(
        cls,
        networks: Network | Sequence[Network] | Mapping[str, Network] | PackageNetworks,
        input_shape: Shapes | None = None,
        input_dtype: Dtypes | None = None,
        *,
        argument: str = "networks",
        reporter: Reporter | None = None,
    ) -> Networks:
        """Return one network, several, several by name, or those of a package, as ``Networks``.

        Each is an ``OperatorGraph``, a graph file (.parquet or .jsonl, all graphs in it), an .onnx file, a .keras file,
        a name in keras.applications, ``module:factory`` of one or several torch modules, a ``torch.nn.Module``, a
        ``keras.Model``, or a ``Source``; several by name are a mapping, or pairs of a name and a network.
        ``input_shape``, of one example without the batch, is for torch modules, and where there is none for free axes
        of .onnx files, .keras files and Keras models: one for all, or one for each.

        Raises ``ArgumentError`` for anything else, and where shapes do not belong to these one for one.
        """
        if isinstance(networks, PackageNetworks):
            from slotool.graphs.capture import Source

            networks = [Source(networks.package, name) for name in networks.chosen()]
        if isinstance(networks, Iterator):
            networks = list(networks)
        if isinstance(networks, list) and networks and all(map(_is_named, networks)):
            if twice := next(
                (name for name, count in Counter(name for name, _ in networks).items() if count > 1), None
            ):
                raise ArgumentError(argument, f"two networks are named {twice}")
            networks = dict(networks)
        called = tuple(networks) if isinstance(networks, Mapping) else ()
        if isinstance(networks, Mapping):
            networks = list(networks.values())
        models = list(networks) if isinstance(networks, list | tuple) else [networks]
        if not models:
            raise ArgumentError(argument, "name at least one network")
        takes = _needs_shape if any(map(_needs_shape, models)) else _may_take_shape
        modules = sum(map(_needs_shape, models))
        shapes = _shapes(input_shape, modules, sum(map(takes, models)))
        if input_dtype is not None and not any(map(_may_take_dtype, models)):
            raise ArgumentError("input_dtype", "it belongs to torch modules and Keras models, and none is given")
        each = iter(shapes)
        parts = [_part(one, next(each, ()) if takes(one) else (), input_dtype, argument) for one in models]
        if called and any(isinstance(part, Path) for part in parts):
            raise ArgumentError(argument, "a graph file names its own networks: give it without a name")
        return cls(parts, called, reporter or Quiet())

    @property
    def framework(self) -> str | None:
        """Framework of the first model, torch, keras or onnx; graphs have none."""
        return next((part.framework for part in self.parts if _is_model(part)), None)

    @property
    def names(self) -> list[str]:
        """Names given to the networks; for an object its type, for a graph its name."""
        return list(self.called) or [_called(part) for part in self.parts]

    @property
    def distinct_names(self) -> list[str]:
        """``names``, those that several have with a number: ``Net``, ``Net (2)``."""
        names = self.names
        before = [names[:i].count(name) for i, name in enumerate(names)]
        return [f"{name} ({n + 1})" if n else name for name, n in zip(names, before, strict=True)]

    def versions(self, argument: str) -> list[str]:
        """Return version names: the given ones, or last parts, such as ``small`` of ``nets/small.onnx``.

        Raises ``ArgumentError`` naming ``argument`` for graph files, whose networks have no given names, and for two of
        one name.
        """
        if any(isinstance(part, Path) for part in self.parts):
            raise ArgumentError(argument, "versions are named one by one: give models, not files of graphs")
        names = list(self.called) or [Path(name.rpartition(":")[2]).stem for name in self.names]
        if twice := next((name for name in names if names.count(name) > 1), None):
            raise ArgumentError(argument, f"two networks are named {twice}; versions have names of their own")
        return names

    def provenance(self) -> dict[str, Any]:
        """Return the header of a graph file: names by framework, and the shapes for torch modules."""
        key = self.framework or "graphs"
        facts: dict[str, Any] = {key: self.names if len(self.names) > 1 else self.names[0]}
        if key == "torch":
            facts["input_shape"] = [_plain(part.input_shape) for part in self.parts if _is_model(part)]
        return facts

    @contextmanager
    def capturing(self, times: int = 1) -> Iterator[Progress | None]:
        """Report a phase with a step for each model, captured ``times`` times; None for graphs only.

        Importing a model's libraries takes seconds.
        """
        models = [name for name, part in zip(self.distinct_names, self.parts, strict=True) if _is_model(part)]
        if not models:
            yield None
            return
        text = f"capturing {models[0]}" if len(models) == 1 else "capturing networks"
        total = times * len(models)
        with short_phase(self.reporter, text, total if total > 1 else None) as steps:
            yield steps

    def captured(self, limits: Limits | None = None, steps: Progress | None = None) -> Iterator[Captured]:
        """Yield every network in order, all of a graph file; models are captured in processes, within ``limits``.

        ``steps`` advance by each model, see ``capturing``.
        """
        from slotool.graphs.capture import Source, all_captured_apart
        from slotool.graphs.store import read_graphs

        apart = iter(all_captured_apart([part for part in self.parts if isinstance(part, Source)], limits))
        for name, part in zip(self.distinct_names, self.parts, strict=True):
            if isinstance(part, Path):
                yield from (Captured(name, graph) for graph in read_graphs(part))
                continue
            answer = next(apart) if isinstance(part, Source) else _captured_here(part)
            if steps is not None and _is_model(part):
                steps.advance()
            for called, one in answer if isinstance(answer, list) else [(name, answer)]:
                if isinstance(one, SlotoolError):
                    yield Captured(called, error=one)
                else:
                    yield Captured(called, replace(one, name=called) if self.called else one)

    def graphs(self, limits: Limits | None = None, failed: dict[str, str] | None = None) -> list[OperatorGraph]:
        """Return all graphs in order; see ``captured``.

        Raises ``GraphError``, ``TimedOut``, ``RunError`` or ``WorkerError`` if a capture fails; with ``failed``, which
        receives reasons by name, only if all do.
        """
        captured: list[OperatorGraph] = []
        errors: dict[str, SlotoolError] = {}
        with self.capturing() as steps:
            for each in self.captured(limits, steps):
                if each.graph is not None:
                    captured.append(each.graph)
                elif each.error is not None:
                    errors[each.name] = each.error
                if failed is None and errors:
                    break
        if errors and (failed is None or not captured):
            raise self.not_captured(errors)
        if failed is not None:
            failed |= {name: str(error) for name, error in errors.items()}
        return captured

    def not_captured(self, errors: Mapping[str, SlotoolError]) -> SlotoolError:
        """Return one error for networks that could not be captured; equal reasons are named once."""
        if len(self.parts) == 1 == len(errors):
            return next(iter(errors.values()))
        reasons: dict[str, str] = {}
        for name, error in errors.items():
            reasons.setdefault(str(error), name)
        sentences = [why if name in why else f"{name}: {why}" for why, name in reasons.items()][:MAX_REASONS]
        more = [f"and {len(reasons) - MAX_REASONS} more"] if len(reasons) > MAX_REASONS else []
        kinds = {type(error) for error in errors.values()}
        kind = kinds.pop() if len(kinds) == 1 else RunError
        several = f"none of {len(errors)} networks can be captured: " if len(errors) > 1 else ""
        return kind(several + "; ".join([*sentences, *more]))


def _captured_here(part: OperatorGraph | InMemory) -> OperatorGraph | SlotoolError:
    try:
        return part.captured() if isinstance(part, InMemory) else part
    except SlotoolError as error:
        return error


def _part(
    one: Network, shape: tuple[int, ...], dtype: Dtypes | None, argument: str
) -> OperatorGraph | Path | Source | InMemory:
    from slotool.graphs import OperatorGraph
    from slotool.graphs.capture import Source

    if isinstance(one, OperatorGraph | Source):
        return one
    if isinstance(one, str | Path):
        suffix = Path(one).suffix
        if suffix == ".onnx":
            return Source("onnx", str(one), shape)
        if suffix in GRAPH_SUFFIXES or (isinstance(one, Path) and suffix != ".keras"):
            return Path(one)
        if suffix not in ("", *KERAS_SUFFIXES) and not _needs_shape(one):
            kinds = f"graph files end in {' or '.join(GRAPH_SUFFIXES)}, models in .onnx or .keras"
            raise ArgumentError(argument, f"{one} is no network: {kinds}")
        return Source("torch", str(one), shape, dtype) if _needs_shape(one) else Source("keras", str(one), shape)
    if _is_torch_module(one):
        return InMemory("torch", one, shape, dtype)
    if _is_instance(one, "keras", "Model"):
        return InMemory("keras", one, shape, dtype)
    raise ArgumentError(
        argument,
        f"{with_article(type(one).__name__)} is neither a network, nor the name or file of one: see slotool.predict",
    )


def _called(part: OperatorGraph | Path | Source | InMemory) -> str:
    if isinstance(part, InMemory):
        return type(part.model).__name__
    return str(part) if isinstance(part, Path) else part.name


def _needs_shape(one: Network) -> bool:
    """True for a torch module, or the name of one."""
    if isinstance(one, str):
        return ":" in one and Path(one).suffix not in (*GRAPH_SUFFIXES, ".onnx", ".keras")
    return _is_torch_module(one)


def _is_torch_module(value: Any) -> bool:
    """True if it is one and no Keras model, which is a module too where torch is Keras' backend."""
    return _is_instance(value, "torch", "nn", "Module") and not _is_instance(value, "keras", "Model")


def _is_named(one: Any) -> bool:
    """True if it is a pair of a name and a network."""
    return isinstance(one, tuple) and len(one) == 2 and isinstance(one[0], str)


def _may_take_dtype(one: Network) -> bool:
    return _needs_shape(one) or _is_instance(one, "keras", "Model")


def _may_take_shape(one: Network) -> bool:
    """True if free axes are possible: a file of ONNX or Keras, or a Keras model."""
    is_file = isinstance(one, str | Path) and Path(one).suffix in (".onnx", ".keras")
    return is_file or _is_instance(one, "keras", "Model")


def _shapes(stated: Shapes | None, modules: int, takers: int) -> list[Any]:
    """Return one shape for each torch module or, without any, for each network with possible free axes."""
    if stated is None:
        if modules:
            raise ArgumentError("input_shape", "a torch module needs the shape of one example, such as (3, 32, 32)")
        return []
    if not takers:
        raise ArgumentError(
            "input_shape", "it belongs to torch modules, .onnx files and Keras models, and none is given"
        )
    if isinstance(stated, Mapping):
        return [{name: _sizes(sizes) for name, sizes in stated.items()}] * takers
    if not isinstance(stated, Sequence):
        _sizes(stated)
    flat = not any(isinstance(size, Sequence) for size in stated)
    shapes = [tuple(stated)] if flat else [tuple(shape) for shape in stated]  # type: ignore[arg-type]  # as told by flat
    if len(shapes) not in (1, takers):
        what = "torch modules" if modules else "networks with free axes"
        raise ArgumentError("input_shape", f"{len(shapes)} shapes for {takers} {what}; give one, or one each")
    for shape in shapes:
        _sizes(shape, least=1)
    return shapes * takers if len(shapes) == 1 else shapes


def _sizes(shape: Any, least: int = 0) -> tuple[int, ...]:
    """Return valid sizes; for several inputs one may be a number per example, or empty with ``least`` 0."""
    whole = isinstance(shape, Sequence) and len(shape) >= least
    if not whole or not all(isinstance(size, int) and size >= least for size in shape):
        raise ArgumentError("input_shape", f"{shape!r} is not a list of sizes such as (3, 32, 32)")
    return tuple(shape)


def _plain(shape: Any) -> Any:
    """Return a shape, or shapes by name, as JSON."""
    return {name: list(sizes) for name, sizes in shape.items()} if isinstance(shape, Mapping) else list(shape)


def _is_model(part: OperatorGraph | Path | Source | InMemory) -> TypeGuard[Source | InMemory]:
    return hasattr(part, "framework")


def _is_instance(value: Any, package: str, *path: str) -> bool:
    """True if ``value`` is of this class of a package, which is never imported here."""
    kind = sys.modules.get(package)
    for name in path:
        kind = getattr(kind, name, None)
    return isinstance(kind, type) and isinstance(value, kind)
