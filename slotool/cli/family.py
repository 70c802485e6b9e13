"""``slotool family``: versions of one service from models that somebody else made."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import slotool
from slotool.cli.commands import FILES_TO_WRITE
from slotool.cli.options import (
    DataImages,
    DataInputs,
    DataLabel,
    Force,
    Json,
    Out,
    Seed,
    data_source,
    drawable,
    named_values,
    panel,
    parse_numbers,
)


def register(app: typer.Typer) -> None:
    app.command()(family)


_answers, _measuring, _written = map(panel, ("What answers mean", "Measuring", FILES_TO_WRITE))


def family(
    versions: Annotated[
        list[str],
        typer.Argument(metavar="[NAME=]MODEL…", help="A file, URL or module:factory; a file names itself."),
    ],
    out: Out,
    data: Annotated[
        str, typer.Option("--data", help="Labelled examples that trained none of them: data.parquet:LABEL.")
    ],
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="VERSION:TENSOR=NAME", help="What it is called here; repeatable."),
    ] = None,
    task: Annotated[
        str, _answers("--task", help="classification, multi-label, regression, text or module:Class.")
    ] = "classification",
    output: Annotated[
        str | None, _answers("--output", help="Output tensor with the answers.", show_default="the only one")
    ] = None,
    scores: Annotated[
        str | None,
        _answers("--scores", help="logits, probabilities or labels.", show_default="by the output's name"),
    ] = None,
    confidence: Annotated[
        str | None, _answers("--confidence", metavar="OUTPUT", help="Output tensor with the confidence.")
    ] = None,
    calibration: Annotated[
        str, _answers("--calibration", help="Learn it on the validation split: temperature or isotonic.")
    ] = "none",
    keep_calibration: Annotated[
        bool, _answers("--keep-calibration", help="Also one with which held-out error is larger.")
    ] = False,
    cost: Annotated[
        list[str] | None,
        _answers("--cost", metavar="NAME=PRICE", help="Price of one answer, for each version; else seconds."),
    ] = None,
    split: Annotated[
        str | None,
        _measuring("--split", help="all, train, validation or test.", show_default="all; test with --calibration"),
    ] = None,
    repeats: Annotated[int, _measuring("--repeats", min=1, help="Timed calls per example and version.")] = 3,
    batch_size: Annotated[str, _measuring("--batch-size", help="Of --latency, e.g. 1,8.")] = "1,8",
    threads: Annotated[int, _measuring("--threads", min=1, help="Compute threads.")] = 1,
    outcomes: Annotated[Path | None, _written("--outcomes", help="The outcome table, for gen-rules.")] = None,
    latency: Annotated[Path | None, _written("--latency", help="Latencies by batch size, for serve, simulate.")] = None,
    plot: Annotated[Path | None, _written("--plot", callback=drawable, help="Error against latency (PNG).")] = None,
    copy: Annotated[bool, _written("--copy", help="Keep copies of the model files in the artifact.")] = False,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make a family of versions from models of your own.

    Reads .onnx, .pt2, .keras, .skops, .ubj and .json (XGBoost), .txt (LightGBM), code as module:factory, and models
    behind http://host/v2/models/NAME or grpc://host/NAME.

    Example: slotool family small=a.skops large=b.onnx --data wine.parquet:quality -o wine --outcomes outcomes.parquet
    """
    from slotool.cli.commands import refuse_without_effect
    from slotool.cli.output import Output

    if latency is None:
        refuse_without_effect(("batch_size",), "without --latency")
    output_ = Output(as_json=json)
    made = slotool.family(
        named_values([_with_name(version) for version in versions], "MODEL", "small=small.onnx"),
        data_source(data, label, inputs, images),
        out=out,
        outcomes=outcomes,
        latency=latency,
        plot=plot,
        task=task,
        output=output,
        scores=scores,
        confidence=confidence,
        calibration=calibration,
        keep_calibration=keep_calibration,
        split=split,
        rename=_renamed(rename or []),
        cost={name: _price(price) for name, price in named_values(cost or [], "PRICE", "small=0.002").items()},
        repeats=repeats,
        batch_sizes=[int(size) for size in parse_numbers(batch_size, "--batch-size")],
        threads=threads,
        copy=copy,
        seed=seed,
        force=force,
        progress=output_,
    )
    output_.show(made)


def _renamed(texts: list[str]) -> dict[str, dict[str, str]]:
    """By version, names by the tensor's own of VERSION:TENSOR=NAME texts."""
    found: dict[str, dict[str, str]] = {}
    for text in texts:
        version, colon, names = text.partition(":")
        own, equals, name = names.rpartition("=")
        if not (colon and equals and version and own and name):
            raise typer.BadParameter(
                f"{text!r} is not VERSION:TENSOR=NAME, such as large:dense_3=probabilities", param_hint="--rename"
            )
        found.setdefault(version, {})[own] = name
    return found


def _price(text: str) -> float:
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < float("inf"):
        raise typer.BadParameter(f"{text!r} is no price: a number from 0 up is expected", param_hint="--cost")
    return price


def _with_name(version: str) -> str:
    """A file that has no name is called as itself."""
    path = Path(version)
    is_file = "=" not in version and path.suffix and ":" not in version
    return f"{path.stem}={version}" if is_file else version
