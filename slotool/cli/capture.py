"""``slotool capture``: an existing model as an operator graph."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import slotool
from slotool.cli.commands import refuse_without_effect, require_none_failed
from slotool.cli.options import Force, Json

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slotool.graphs.capture.sources import Source


def register(app: typer.Typer) -> None:
    app.command()(capture)


Torch = Annotated[
    list[str] | None,
    typer.Option(
        "--torch",
        help="module:factory or file.py:factory, run in a process of its own; repeatable.",
    ),
]
Onnx = Annotated[list[Path] | None, typer.Option("--onnx", help="An .onnx file; repeatable.", show_default=False)]
InputShape = Annotated[
    list[str] | None,
    typer.Option(
        "--input-shape",
        help="One example's, for --torch, and for free axes of --onnx and --keras: 3,32,32, or 'tokens=128;mask=128'; "
        "one for all or each. Keras has channels last.",
    ),
]
InputDtype = Annotated[
    str | None,
    typer.Option(
        "--input-dtype",
        help="Of inputs of --torch, or of --keras not built: int64, or 'ids=int64;x=float32'.",
        show_default="that of the weights, or int64",
    ),
]
_TIMEOUT = "Seconds until a capture has hung."
CaptureTimeout = Annotated[float, typer.Option("--timeout", min=0.1, help=_TIMEOUT)]
MaxMemory = Annotated[
    float | None,
    typer.Option("--max-memory-gb", min=0.01, help="For one capture.", show_default="90 % of free"),
]


def capture(
    keras: Annotated[
        list[str] | None,
        typer.Option(
            "--keras",
            help="all, or names in keras.applications with commas; a .keras file; as --torch; repeatable.",
        ),
    ] = None,
    torch: Torch = None,
    onnx: Onnx = None,
    torchvision: Annotated[str | None, typer.Option(help="Names with commas, families (one of each), or all.")] = None,
    timm: Annotated[str | None, typer.Option(help="As --torchvision.")] = None,
    transformers: Annotated[str | None, typer.Option(help="As --torchvision; types such as bert.")] = None,
    input_shape: InputShape = None,
    input_dtype: InputDtype = None,
    factory_arguments: Annotated[
        list[str] | None,
        typer.Option(
            "--factory-arguments",
            help="For a factory's function: 'depth=12,width=64'; repeatable.",
        ),
    ] = None,
    processes: Annotated[
        int | None, typer.Option(min=1, help="Captures of a package at once.", show_default="all cores")
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Graph file to write: .jsonl or .parquet.")] = None,
    timeout: Annotated[
        float | None,
        typer.Option("--timeout", min=0.1, help=_TIMEOUT, show_default="600, of a package's 180"),
    ] = None,
    max_memory_gb: MaxMemory = None,
    force: Force = False,
    json: Json = False,
) -> None:
    """Read Keras, PyTorch or ONNX models as operator graphs.

    Shapes have their channels first; FLOPs are per example, a multiply-add counting two. Of several networks those that
    cannot be captured are left out and named, and the exit code is 1. A sweep of a package that was interrupted goes on
    where it was.

    Example: slotool capture --keras ResNet50 -o resnet50.jsonl

    Example: slotool capture --keras all -o applications.parquet

    Example: slotool capture --timm families -o timm.parquet

    Example: slotool capture --torch nets:small --torch nets:large --input-shape 3,32,32 -o nets.jsonl
    """
    from slotool.cli import interrupts
    from slotool.cli.output import Output

    zoo = {"torchvision": torchvision, "timm": timm, "transformers": transformers}
    packages = [package for package, names in zoo.items() if names is not None]
    if sum(bool(source) for source in (keras, torch, onnx, *packages)) != 1:
        raise typer.BadParameter(
            "give exactly one of --keras, --torch and --onnx, or of --torchvision, --timm, --transformers"
        )
    sources = [] if packages else sources_of(keras, torch, onnx, input_shape, input_dtype, factory_arguments)
    if out is None:
        refuse_without_effect(("force",), "without --out")
    output = Output(as_json=json)
    # Left out, each function has its own.
    limits: dict[str, Any] = {} if timeout is None else {"timeout_s": timeout}
    if packages:
        refuse_without_effect(("input_shape", "input_dtype", "factory_arguments"), f"with --{packages[0]}")
        (package,), (names,) = packages, [str(zoo[package]) for package in packages]
        with interrupts.explaining(output.note):
            found = slotool.capture_zoo(
                package,
                names,
                out,
                processes=processes,
                **limits,
                max_memory_gb=max_memory_gb,
                force=force,
                progress=output,
            )
    else:
        refuse_without_effect(("processes",), "without --torchvision, --timm or --transformers")
        if keras and len(keras) == 1 and (keras[0] == "all" or "," in keras[0]):
            refuse_without_effect(("timeout", "max_memory_gb"), "for several networks of keras.applications")
            found = slotool.capture_applications(keras[0], out, force=force, progress=output)
        else:
            found = slotool.capture(sources, out, max_memory_gb=max_memory_gb, force=force, progress=output, **limits)
    output.show(found)
    require_none_failed(found.failed)


def sources_of(
    keras: Sequence[str] | None = None,
    torch: Sequence[str] | None = None,
    onnx: Sequence[Path] | None = None,
    input_shape: Sequence[str] | None = None,
    input_dtype: str | None = None,
    factory_arguments: Sequence[str] | None = None,
) -> list[Source]:
    """What these options name, in order. A usage error when shapes do not belong to ``--torch`` one for one."""
    from slotool.errors import GraphError
    from slotool.factories import arguments_of, is_factory
    from slotool.graphs.capture.sources import Source

    if torch and not input_shape:
        raise typer.BadParameter(
            "--torch needs the shape of one example, without the batch: --input-shape 3,32,32",
            param_hint="--input-shape",
        )
    own = torch or [name for name in keras or () if is_factory(name)]
    if input_shape and not (own or onnx) and all(map(str.isidentifier, keras or ())):
        raise typer.BadParameter(
            "it belongs to --torch, to models of your own and to free axes of --onnx and .keras files",
            param_hint="--input-shape",
        )
    for flag, given in (("--input-dtype", input_dtype), ("--factory-arguments", factory_arguments)):
        if given and not own:
            raise typer.BadParameter("it belongs to --torch, or --keras module:factory", param_hint=flag)
    shapes = [_shape(text) for text in input_shape or ()] or [()]
    if onnx:
        pairs = zip(onnx, _one_each(shapes, len(onnx), "shapes", "--input-shape", "--onnx"), strict=True)
        return [Source("onnx", str(path), shape) for path, shape in pairs]
    framework, names = ("torch", list(torch)) if torch else ("keras", list(keras or ()))
    arguments = [arguments_of(text, GraphError) for text in factory_arguments or ()] or [{}]
    if len(names) == 1 < len(arguments):
        names = names * len(arguments)
    dtype = _named(input_dtype) if input_dtype and "=" in input_dtype else input_dtype
    flag = f"--{framework}"
    each = zip(
        names,
        _one_each(shapes, len(names), "shapes", "--input-shape", flag),
        _one_each(arguments, len(names), "lists of arguments", "--factory-arguments", flag),
        strict=True,
    )
    return [Source(framework, name, shape, dtype, given) for name, shape, given in each]


def _one_each(given: list[Any], networks: int, what: str, option: str, of: str) -> list[Any]:
    """What is given, of one for all so often. A usage error for another number."""
    if len(given) not in (1, networks):
        raise typer.BadParameter(
            f"{len(given)} {what} for {networks} of {of}; give one for all, or one for each", param_hint=option
        )
    return given * networks if len(given) == 1 else given


def _named(text: str) -> dict[str, str]:
    """``tokens=int64;mask=bool`` by the names of inputs."""
    return {name.strip(): value.strip() for name, _, value in (part.partition("=") for part in text.split(";"))}


def _shape(text: str) -> tuple[int, ...] | dict[str, tuple[int, ...]]:
    """``3,32,32``, or of several inputs ``tokens=128;mask=128``."""
    return {name: _sizes(sizes) for name, sizes in _named(text).items()} if "=" in text else _sizes(text)


def _sizes(text: str) -> tuple[int, ...]:
    try:
        shape = tuple(int(size) for size in text.split(","))
    except ValueError:
        shape = ()
    if not shape or min(shape) < 1:
        raise typer.BadParameter(f"{text!r} is not a list of sizes such as 3,32,32", param_hint="--input-shape")
    return shape
