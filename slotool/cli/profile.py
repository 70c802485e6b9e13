"""``slotool profile``: latencies measured on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotool.cli import interrupts
from slotool.cli.options import (
    DataImages,
    DataInputs,
    DataLabel,
    Force,
    Json,
    Out,
    Seed,
    Threads,
    optional_source,
    panel,
    parse_duration,
    parse_numbers,
)
from slotool.cli.profile_engine import Address, EngineName

if TYPE_CHECKING:
    from slotool.api.profile import Planned

_sampling, _campaign, _adapt = map(panel, ("Sampling", "Campaign", "Adapting a predictor"))
For = Annotated[Path | None, _adapt("--for", help="Predictor to adapt: measure what it learns most from.")]
Samples = Annotated[
    int | None, _adapt("--samples", min=3, help="Networks to measure.", show_default="10, or with --until all")
]
Until = Annotated[
    str | None, _adapt("--until", help="Stop when its own estimate of the error (90 %) is within this: 10%.")
]
Inputs = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[SUBJECT]...", help="Graph files, and folders of trained models.", show_default=False),
]
Keras = Annotated[str | None, typer.Option("--keras", help="Members of keras.applications: all, or names with commas.")]
Backend = Annotated[
    str,
    typer.Option(
        "--backend",
        help="What runs graphs: torch, keras, onnx, onnx-int8, torch-cuda-graph. Trained models run as served.",
    ),
]
Device = Annotated[str, typer.Option("--device", help="cpu or cuda:N, a GPU as nvidia-smi numbers it.")]
Batch = Annotated[str, typer.Option("--batch-size", help="Batch sizes: 1,8 or 1:8:1.")]
Runs = Annotated[int, _sampling("--runs", min=1, help="Minimum samples per row.")]
Precision = Annotated[
    float,
    _sampling(
        "--precision", min=1e-4, max=1.0, help="A row is stable when its rounds agree on the median to this share."
    ),
]
Rounds = Annotated[int, _sampling("--rounds", min=1, help="Rounds that a row's samples are spread over.")]
Timeout = Annotated[float, _campaign("--timeout", min=0.1, help="Seconds after which an item has hung.")]
MaxSeconds = Annotated[float, _sampling("--max-seconds-per-item", min=0.0, metavar="S", help="Maximum sampling time.")]
Cache = Annotated[str, _sampling("--cache", help="warm, or cold: emptied before each sample.")]
Placement = Annotated[
    str, typer.Option("--placement", help="shared: all on the same --threads cores; split: --threads cores each.")
]
Budget = Annotated[str | None, _campaign("--budget", help="Stop after this long (30m); mostly cheap items first.")]
Limit = Annotated[int | None, _campaign("--limit", min=1, help="Only the first subjects.")]
DryRun = Annotated[bool, _campaign("--dry-run", help="Print the plan and a predicted time.")]
Strict = Annotated[bool, _campaign("--strict", help="Exit 1 when a row is not stable.")]


def register(app: typer.Typer) -> None:
    group = typer.Typer(no_args_is_help=True, help="Measure latency on this machine.")
    group.command("solo")(profile_solo)
    group.command("colocated")(profile_colocated)
    group.command("points")(profile_points)
    app.add_typer(group, name="profile")


def profile_solo(
    out: Out,
    inputs: Inputs = None,
    keras: Keras = None,
    backend: Backend = "torch",
    device: Device = "cpu",
    threads: Threads = None,
    batch: Batch = "1",
    runs: Runs = 20,
    precision: Precision = 0.01,
    rounds: Annotated[
        int | None,
        _sampling(
            "--rounds", min=1, help="Rounds that a row's samples are spread over.", show_default="2, with --for 1"
        ),
    ] = None,
    cache: Cache = "warm",
    limit: Limit = None,
    predictor: For = None,
    samples: Samples = None,
    until: Until = None,
    timeout: Timeout = 60.0,
    max_seconds: MaxSeconds = 0.5,
    budget: Budget = None,
    engine: EngineName = "local",
    address: Address = None,
    seed: Seed = 0,
    dry_run: DryRun = False,
    strict: Strict = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Measure graphs and trained models, each alone, and write the latency table.

    The same command again resumes a campaign or adds subjects; nothing is measured twice.

    Example: slotool profile solo mlps.parquet -o latency.parquet --threads 1 --limit 100
    """
    from slotool.api.profile import solo_campaign

    planned = solo_campaign(
        inputs or (),
        out,
        keras=keras,
        backend=backend,
        device=device,
        threads=threads,
        batch_sizes=_batch_sizes(batch),
        runs=runs,
        precision=precision,
        rounds=rounds,
        cache=cache,
        limit=limit,
        predictor=predictor,
        samples=samples,
        until=None if until is None else _share(until),
        timeout_s=timeout,
        max_seconds=max_seconds,
        budget_s=parse_duration(budget, "--budget"),
        engine=engine,
        address=address,
        seed=seed,
        force=force,
    )
    _run(planned, dry_run=dry_run, strict=strict, json=json)


def profile_colocated(
    out: Out,
    inputs: Inputs = None,
    keras: Keras = None,
    size: Annotated[str, typer.Option("--size", help="Networks per combination: 2, 3 or 2,3.")] = "2",
    limit: Annotated[
        int | None, typer.Option("--limit", min=1, help="Only so many combinations of each size, drawn by the seed.")
    ] = None,
    with_itself: Annotated[
        bool, typer.Option("--with-itself", help="Also a subject co-located with copies of itself.")
    ] = False,
    placement: Placement = "shared",
    sharing: Annotated[str, typer.Option("--sharing", help="processes, or on a GPU streams of one.")] = "processes",
    backend: Backend = "torch",
    device: Device = "cpu",
    threads: Threads = None,
    batch: Batch = "1",
    runs: Runs = 20,
    precision: Precision = 0.05,
    rounds: Rounds = 2,
    timeout: Timeout = 120.0,
    max_seconds: MaxSeconds = 30.0,
    budget: Budget = None,
    engine: EngineName = "local",
    address: Address = None,
    seed: Seed = 0,
    dry_run: DryRun = False,
    strict: Strict = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Measure how much co-located models slow each other down: pairs, trios and more, each in its own process.

    A sample counts only while all members of a combination run. Each member is timed alone just before and just
    after, so drift of the machine does not enter the degradation (co-located over solo median).

    Example: slotool profile colocated --keras MobileNet,MobileNetV2,ResNet50 -o pairs.parquet
    """
    from slotool.api.profile import colocated_campaign

    planned = colocated_campaign(
        inputs or (),
        out,
        keras=keras,
        sizes=[int(number) for number in parse_numbers(size, "--size")],
        limit=limit,
        with_itself=with_itself,
        placement=placement,
        sharing=sharing,
        backend=backend,
        device=device,
        threads=threads,
        batch_sizes=_batch_sizes(batch),
        runs=runs,
        precision=precision,
        rounds=rounds,
        timeout_s=timeout,
        max_seconds=max_seconds,
        budget_s=parse_duration(budget, "--budget"),
        engine=engine,
        address=address,
        seed=seed,
        force=force,
    )
    _run(planned, dry_run=dry_run, strict=strict, json=json)


def profile_points(
    artifacts: Annotated[list[Path], typer.Argument(metavar="ARTIFACT...", help="Folders of trained models.")],
    out: Out,
    copies: Annotated[
        str,
        typer.Option("--co-runners", help="Numbers of busy copies of the full model on the same cores: 0,1 or 0:2."),
    ] = "0,1",
    data: Annotated[str, typer.Option("--data", help="Answer examples of this set instead of random inputs.")] = "",
    label: DataLabel = None,
    inputs: DataInputs = None,
    images: DataImages = None,
    placement: Placement = "shared",
    device: Device = "cpu",
    threads: Threads = 1,
    batch: Batch = "1",
    runs: Runs = 200,
    precision: Precision = 0.05,
    rounds: Rounds = 2,
    timeout: Timeout = 120.0,
    max_seconds: MaxSeconds = 10.0,
    budget: Budget = None,
    seed: Seed = 0,
    dry_run: DryRun = False,
    strict: Strict = False,
    force: Force = False,
    json: Json = False,
) -> None:
    """Measure T(point, β): every operating point of a trained model, solo and with β busy copies of it.

    A sample is a single call, so that a quantile of them is what a deadline has to allow for.

    Example: slotool profile points models/family -o points.parquet --co-runners 0,1 --batch-size 1,8
    """
    from slotool.api.profile import points_campaign

    planned = points_campaign(
        artifacts,
        out,
        co_runners=[int(number) for number in parse_numbers(copies, "--co-runners")],
        data=optional_source(data or None, label, inputs, images) or "",
        placement=placement,
        device=device,
        threads=threads,
        batch_sizes=_batch_sizes(batch),
        runs=runs,
        precision=precision,
        rounds=rounds,
        timeout_s=timeout,
        max_seconds=max_seconds,
        budget_s=parse_duration(budget, "--budget"),
        seed=seed,
        force=force,
    )
    _run(planned, dry_run=dry_run, strict=strict, json=json)


def _run(planned: Planned, *, dry_run: bool, strict: bool, json: bool) -> None:
    """Measure, or only plan, and print what was found."""
    from slotool.api.profile import required
    from slotool.cli.output import Output

    output = Output(as_json=json)
    if dry_run:
        output.show(planned.plan())
        return
    with interrupts.explaining(output.note):
        found = planned.measured(output)
    output.show(found)
    if required(found).unstable_rows and strict:
        raise typer.Exit(1)


def _batch_sizes(text: str) -> tuple[int, ...]:
    sizes = parse_numbers(text, "--batch-size")
    if any(size < 1 or size != int(size) for size in sizes):
        raise typer.BadParameter(f"{text!r}: a batch size is a whole number from 1 up", param_hint="--batch-size")
    return tuple(sorted({int(size) for size in sizes}))


def _share(text: str) -> float:
    """0.1 for ``10%`` or ``0.1``."""
    number, scale = (text[:-1], 0.01) if text.endswith("%") else (text, 1.0)
    try:
        share = float(number) * scale
    except ValueError:
        share = -1.0
    if not 0 < share < float("inf"):
        raise typer.BadParameter(f"{text!r} is no share such as 10%", param_hint="--until")
    return share
