"""Networks named by options of the command line: models of Keras, PyTorch and ONNX, graph files, and packages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.command_line import command_line
from slotool.errors import ArgumentError
from slotool.graphs.capture.networks import KERAS, PackageNetworks
from slotool.sources import FilePath, as_list

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.graphs.capture.sources import Source


@command_line(metavars={"torch": "MODULE:FACTORY"})
def networks_in(
    *,
    graph: Sequence[FilePath] = (),
    keras: Sequence[str] = (),
    torch: Sequence[str] = (),
    onnx: Sequence[FilePath] = (),
    torchvision: str | None = None,
    timm: str | None = None,
    transformers: str | None = None,
    networks: str | None = None,
    input_shape: Sequence[str] = (),
    input_dtype: str | None = None,
    factory_arguments: Sequence[str] = (),
) -> Sequence[Source | Path | OperatorGraph] | PackageNetworks:
    """Return networks of one sort, or those of a package.

    Args:
        graph: Graph file (.parquet or .jsonl); repeatable.
        keras: Application, .keras file or factory; repeatable. Several with commas, or all.
        torch: Factory of modules: net.py:make; repeatable. It makes one, or several as a list, a mapping, or a
            generator of pairs of name and module. It runs in other processes.
        onnx: An .onnx file; repeatable.
        torchvision: Names with commas, families (one of each), or all.
        timm: Names as for ``torchvision``.
        transformers: Names as for ``torchvision``; types such as bert.
        networks: timm for all, or names: resnet50,mixnet_s@224. They ship: they need neither timm nor a capture.
        input_shape: Shape of an example: 3,32,32, 'ids=128;mask=128'. For ``torch`` and free axes of ``onnx`` and
            ``keras``; one for all or each.
        input_dtype: Type of inputs: int64, 'ids=int64;x=float32'; None: that of the weights.
        factory_arguments: Arguments of a factory: depth=12,width=64.

    Raises:
        ArgumentError: Not exactly one sort of networks is given, or an option has no effect on it.
    """
    from slotool.graphs.shipped import FILES, ShippedNetworks
    from slotool.graphs.store import require_graph_suffix

    zoo = {"torchvision": torchvision, "timm": timm, "transformers": transformers}
    packages = {package: names for package, names in zoo.items() if names is not None}
    if sum(map(bool, (graph, keras, torch, onnx, networks))) + len(packages) != 1:
        sorts = "--keras, --torch and --onnx, or of the other options that name networks"
        raise ArgumentError("networks", f"give exactly one of {sorts}, once or several times")
    if not (graph or packages or networks):
        sources = _sources(keras, torch, onnx, input_shape, input_dtype, factory_arguments)
        several = len(keras) == 1 and (keras[0] == "all" or "," in keras[0])
        return PackageNetworks(KERAS, keras[0]) if several else sources
    sort = next(iter(packages), "graph" if graph else "networks")
    options = {"input_shape": input_shape, "input_dtype": input_dtype, "factory_arguments": factory_arguments}
    for argument in (name for name, value in options.items() if value):
        raise ArgumentError(argument, f"it has no effect with --{sort}; leave it out")
    if packages:
        return PackageNetworks(sort, packages[sort])
    if networks:
        shipped = ShippedNetworks.of(networks if networks in FILES else "timm")
        return shipped.graphs(None if networks in FILES else map(shipped.name_of, as_list(networks)))
    paths = [Path(path) for path in graph]
    for path in paths:
        require_graph_suffix(path)
    return paths


def _sources(
    keras: Sequence[str],
    torch: Sequence[str],
    onnx: Sequence[FilePath],
    input_shape: Sequence[str],
    input_dtype: str | None,
    factory_arguments: Sequence[str] = (),
) -> list[Source]:
    """Return the models in order. Raises ``ArgumentError`` for options that do not fit the models."""
    from slotool.errors import GraphError
    from slotool.factories import arguments_of, is_factory
    from slotool.graphs.capture.sources import Source

    if torch and not input_shape:
        raise ArgumentError(
            "input_shape", "--torch needs the shape of one example, without the batch: --input-shape 3,32,32"
        )
    factories = torch or [name for name in keras if is_factory(name)]
    if input_shape and not (factories or onnx) and all(map(str.isidentifier, keras)):
        raise ArgumentError(
            "input_shape", "it belongs to --torch, to models of your own and to free axes of --onnx and .keras files"
        )
    for argument, value in (("input_dtype", input_dtype), ("factory_arguments", factory_arguments)):
        if value and not factories:
            raise ArgumentError(argument, "it belongs to --torch, or --keras module:factory")
    shapes = [_shape(text) for text in input_shape] or [()]
    by_framework = {"torch": list(torch), "onnx": list(map(str, onnx)), KERAS: list(keras)}
    framework, names = next((framework, names) for framework, names in by_framework.items() if names)
    arguments = [arguments_of(text, GraphError) for text in factory_arguments] or [{}]
    if len(names) == 1 < len(arguments):
        names = names * len(arguments)
    dtype = _by_name(input_dtype) if input_dtype and "=" in input_dtype else input_dtype
    models = zip(
        names,
        _one_each(shapes, len(names), "input_shape", "shapes", f"--{framework}"),
        _one_each(arguments, len(names), "factory_arguments", "lists of arguments", f"--{framework}"),
        strict=True,
    )
    return [Source(framework, name, shape, dtype, keywords) for name, shape, keywords in models]


def _one_each(values: list[Any], networks: int, argument: str, noun: str, option: str) -> list[Any]:
    """Return ``given``, repeated if it is one for all networks. Raises ``ArgumentError`` for another number."""
    if len(values) not in (1, networks):
        raise ArgumentError(
            argument, f"{len(values)} {noun} for {networks} of {option}; give one for all, or one for each"
        )
    return values * networks if len(values) == 1 else values


def _by_name(text: str) -> dict[str, str]:
    """Parse ``tokens=int64;mask=bool`` by names of inputs."""
    return {name.strip(): value.strip() for name, _, value in (part.partition("=") for part in text.split(";"))}


def _shape(text: str) -> tuple[int, ...] | Mapping[str, tuple[int, ...]]:
    """Parse ``3,32,32`` as sizes, or ``tokens=128;mask=128`` as those of several inputs."""
    return {name: _sizes(sizes, 0) for name, sizes in _by_name(text).items()} if "=" in text else _sizes(text, 1)


def _sizes(text: str, least: int) -> tuple[int, ...]:
    try:
        shape = tuple(int(size) for size in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < least:
        sizes = "such as 3,32,32, or of several inputs image=3,32,32;meta=20"
        raise ArgumentError("input_shape", f"{text!r} is not a list of sizes {sizes}")
    return shape
