"""Options that several subcommands share, so that they mean and read the same everywhere."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from slotool.data import DataSource

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of tables.")]
Force = Annotated[bool, typer.Option("--force", help="Replace the output if it exists.")]
Seed = Annotated[int, typer.Option("--seed", min=0, help="Same seed, same result.")]
Threads = Annotated[
    int | None, typer.Option("--threads", min=1, help="Compute threads.", show_default="all cores given")
]
TrainingThreads = Annotated[
    int | None,
    typer.Option("--threads", min=1, help="Compute threads.", show_default="all cores given, 1 for small networks"),
]
Out = Annotated[Path, typer.Option("--out", "-o", help="File or folder to write.")]
DataName = Annotated[
    str,
    typer.Option(
        "--data",
        help="A name, file or folder, also with :LABEL; auto: Fashion-MNIST when "
        "$SLOTOOL_DATA_DIR holds it, else digits.",
    ),
]
DataLabel = Annotated[
    str | None, typer.Option("--label", metavar="COLUMN", help="Its labels.", show_default="by usual names")
]
DataInputs = Annotated[
    list[str] | None,
    typer.Option("--input", metavar="COLUMN=TENSOR", help="A column and the input it becomes; repeatable."),
]
DataImages = Annotated[
    str | None, typer.Option("--images", metavar="SIZE:SCALE", help="How images are read, e.g. 224:imagenet.")
]


def data_source(
    data: str, label: str | None = None, inputs: list[str] | None = None, images: str | None = None
) -> DataSource:
    """What the options of a data set say together."""
    from slotool.data.options import DataSource, ImageOptions, parse_inputs
    from slotool.errors import InputError

    try:
        columns = parse_inputs(inputs or [])
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="--input") from error
    try:
        read = ImageOptions() if images is None else ImageOptions.parse(images)
    except InputError as error:
        raise typer.BadParameter(str(error), param_hint="--images") from error
    return DataSource(data, label, columns, read)


def optional_source(
    data: str | None, label: str | None, inputs: list[str] | None, images: str | None
) -> DataSource | None:
    """What the options of a data set say together, of a command that knows one without ``--data``."""
    for option, value in (("--label", label), ("--input", inputs), ("--images", images)):
        if data is None and value:
            raise typer.BadParameter("says how --data is read: give that too", param_hint=option)
    return None if data is None else data_source(data, label, inputs, images)


def panel(title: str) -> Callable[..., Any]:
    """``typer.Option`` of options that the help shows under ``title``."""
    return partial(typer.Option, rich_help_panel=title)


def named_values(texts: list[str], what: str, example: str) -> dict[str, str]:
    """Value by name of NAME=VALUE texts."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or not name or not value:
            raise typer.BadParameter(f"{text!r} is not NAME={what}, such as {example}")
        if name in found:
            raise typer.BadParameter(f"two versions are called {name!r}")
        found[name] = value
    return found


def drawable(plots: Path | None) -> Path | None:
    """Callback of an option that draws: refused before the work starts where matplotlib is not installed."""
    if plots is not None:
        from slotool.extras import require

        require("matplotlib", needed_by="drawing plots")
    return plots


def plots_folder(plots: Path | None) -> Path | None:
    """Callback of ``--plots``: a folder, new or not, to draw into; see ``drawable``."""
    if plots is not None and plots.exists() and not plots.is_dir():
        raise typer.BadParameter(f"{plots} is a file; plots go into a folder")
    return drawable(plots)


# Of one option.
MAX_NUMBERS = 10_000


def parse_numbers(text: str, option: str) -> list[float]:
    """``0:0.1:0.001`` (start:stop:step, stop included; a step left out is 1, which must fit) and comma lists, also
    mixed."""
    numbers: list[float] = []
    for part in text.split(","):
        pieces = part.strip().split(":")
        try:
            values = [float(piece) for piece in pieces]
        except ValueError:
            raise typer.BadParameter(f"{part!r} is neither a number nor start:stop:step", param_hint=option) from None
        if len(values) == 2 and values[0] <= values[1] < math.inf and (values[1] - values[0]) % 1:
            such = f"{part.strip()}:{(values[1] - values[0]) / 10:g}"
            raise typer.BadParameter(
                f"{part!r} names no step; start:stop:step is expected, such as {such}", param_hint=option
            )
        if len(values) == 2:
            values.append(1.0)
        if len(values) == 1:
            numbers += values
        elif len(values) == 3 and values[2] > 0 and -math.inf < values[0] <= values[1] < math.inf:
            start, stop, step = values
            steps = (stop - start) / step + 1e-9
            if steps >= MAX_NUMBERS:
                raise typer.BadParameter(
                    f"{part!r} are {steps + 1:,.0f} numbers; at most {MAX_NUMBERS:,} are taken", param_hint=option
                )
            numbers += [round(start + i * step, 12) for i in range(int(steps) + 1)]
        else:
            raise typer.BadParameter(f"{part!r} is not start:stop:step with step > 0", param_hint=option)
    return numbers


_SECONDS = {"us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0}


def parse_tolerance(text: str | None) -> float | dict[float, float] | None:
    """``0.05``, or shares of the requests by tolerance: ``0=0.2,0.05=0.8``."""
    if text is None:
        return None
    try:
        if "=" not in text:
            return float(text)
        pairs = [(float(left), float(share)) for left, _, share in (part.partition("=") for part in text.split(","))]
    except ValueError:
        pairs = []
    if len(dict(pairs)) < max(1, len(pairs)):
        raise typer.BadParameter(
            f"{text!r} is neither a tolerance from 0 on nor shares like 0=0.2,0.05=0.8 that add up to 1",
            param_hint="--tolerance",
        )
    return dict(pairs)


def parse_duration(text: str | None, option: str, *, may_be_zero: bool = False) -> float | None:
    """Seconds in ``20ms``, ``90s``, ``2min``, ``1.5h`` or a bare number; None stays None."""
    if text is None:
        return None
    unit = next((unit for unit in _SECONDS if text.endswith(unit)), "s")
    number = text.removesuffix(unit)
    try:
        seconds = float(number) * _SECONDS[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf") and not (may_be_zero and seconds == 0):
        raise typer.BadParameter(f"{text!r} is no duration such as 20ms, 90s, 2min or 1h", param_hint=option)
    return seconds


def parse_latency(text: str | None, option: str) -> float | None:
    """Seconds in ``20ms``, ``500us`` or ``1.5s``; None stays None. A bare number could be of any unit."""
    if text is not None and text.strip()[-1:].isdigit():
        raise typer.BadParameter(
            f"{text!r} names no unit: give microseconds, milliseconds or seconds, such as {text.strip()}us, "
            f"{text.strip()}ms or {text.strip()}s",
            param_hint=option,
        )
    return parse_duration(text, option)
