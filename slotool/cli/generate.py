"""``slotool generate``: random operator graphs, streamed to a file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

import slotool
from slotool.cli.generate_arrivals import generate_arrivals
from slotool.cli.options import Force, Json, Out, Seed, panel, parse_numbers

_space = panel("Search space")
BLOCKS = "plain, residual, depthwise, bottleneck, inverted, dense, separable, branches, convnext"
ARCHITECTURES = "resnet, mobilenet, densenet, convnext, vit, swin, mixer, hybrid, bert, gpt, llama"
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
Flops = Annotated[
    float | None,
    typer.Option("--max-gflops", min=1e-6, help="Skip networks that take more billions of FLOPs.", show_default=False),
]
BatchSize = Annotated[int, typer.Option("--batch-size", min=1, help="Examples in one call, for the memory limit.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Draw random operator graphs, or arrivals of requests.")
    group.command("mlp")(generate_mlp)
    group.command("cnn")(generate_cnn)
    group.command("architectures")(generate_architectures)
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
    max_gflops: Flops = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Draw unique MLPs: 3 to 10 hidden layers of 2^0 to 2^14 units.

    Example: slotool generate mlp -o mlps.parquet --count 1000
    """
    _generate(
        "mlp",
        out,
        json,
        count=count,
        depth=_range(depth, "--depth"),
        widths=_range(units, "--units"),
        input_shape=_sizes(input_shape, "--input-shape"),
        batch_size=batch_size,
        max_memory_gb=max_memory_gb,
        max_gflops=max_gflops,
        seed=seed,
        force=force,
    )


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
    max_gflops: Flops = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Draw unique CNNs: 3 to 10 layers of 2^0 to 2^10 channels; plain convolutions unless other blocks are named.

    Example: slotool generate cnn -o cnns.parquet --count 500 --input-shape 3,32,32

    Example: slotool generate cnn -o mixed.parquet --blocks all --downsample none,pool,stride
    """
    _generate(
        "cnn",
        out,
        json,
        count=count,
        depth=_range(depth, "--depth"),
        widths=_range(channels, "--channels"),
        input_shape=_sizes(input_shape, "--input-shape"),
        resolutions=_sizes(resolutions, "--resolutions") if resolutions else (),
        blocks="all" if blocks == "all" else _names(blocks),
        downsample=_names(downsample),
        batch_size=batch_size,
        max_memory_gb=max_memory_gb,
        max_gflops=max_gflops,
        seed=seed,
        force=force,
    )


def generate_architectures(
    out: Out,
    count: Count = 1000,
    architectures: Annotated[
        str, _space("--architectures", help=f"What to draw from, several with commas, or all: {ARCHITECTURES}.")
    ] = "all",
    batch_size: BatchSize = 1,
    max_memory_gb: Memory = None,
    max_gflops: Flops = None,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Draw unique networks of the kinds that people use, transformers among them, with sizes as theirs.

    Example: slotool generate architectures -o networks.parquet --count 300 --max-gflops 10
    """
    _generate(
        "architectures",
        out,
        json,
        count=count,
        architectures="all" if architectures == "all" else _names(architectures),
        batch_size=batch_size,
        max_memory_gb=max_memory_gb,
        max_gflops=max_gflops,
        seed=seed,
        force=force,
    )


def _generate(kind: str, out: Path, json: bool, **asked: Any) -> None:
    from slotool.cli.output import Output

    output = Output(as_json=json)
    output.show(slotool.generate_networks(kind, out, progress=output, **asked))


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(","))


def _sizes(text: str, option: str) -> tuple[int, ...]:
    numbers = parse_numbers(text, option)
    if not all(number.is_integer() for number in numbers):
        raise typer.BadParameter(f"{text!r} is not of whole numbers", param_hint=option)
    return tuple(map(int, numbers))


def _range(text: str, option: str) -> tuple[int, int]:
    """``3:10`` as (3, 10), ``5`` as (5, 5)."""
    try:
        ends = [int(end) for end in text.split(":")]
    except ValueError:
        ends = []
    if len(ends) not in (1, 2):
        raise typer.BadParameter(f"{text!r} is not minimum:maximum", param_hint=option)
    return ends[0], ends[-1]
