"""``slotool profile``: latencies measured on this machine."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slotool.cli import interrupts
from slotool.cli.options import Force, Json, Out, Seed, Threads, cores_given, panel, parse_duration, parse_numbers
from slotool.cli.profile_engine import Address, EngineName, chosen_engine
from slotool.cli.profile_for import For, Proposal, Samples, Until, note_outcome, proposal, report_proposal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slotool.cli.output import Output
    from slotool.profiling.campaign import Campaign
    from slotool.profiling.plan import Item, Settings
    from slotool.profiling.subjects import Subject
    from slotool.tables import LatencyTable

_sampling, _campaign = map(panel, ("Sampling", "Campaign"))
Inputs = Annotated[
    list[Path] | None,
    typer.Argument(metavar="[SUBJECT]...", help="Graph files, and folders of trained models.", show_default=False),
]
Keras = Annotated[str | None, typer.Option("--keras", help="Members of keras.applications: all, or names with commas.")]
Backend = Annotated[
    str, typer.Option("--backend", help="What runs graphs: torch, keras or onnx. A trained model runs as it is served.")
]
Device = Annotated[str, typer.Option("--device", help="cpu, or cuda:0 (graphs on torch, and SLO-NNs).")]
Batch = Annotated[str, typer.Option("--batch-size", help="Batch sizes: 1,8 or 1:8:1.")]
Runs = Annotated[int, _sampling("--runs", min=1, help="Minimum samples per row.")]
Precision = Annotated[
    float,
    _sampling(
        "--precision", min=1e-4, max=1.0, help="A row is stable when its rounds agree on the median to this share."
    ),
]
Rounds = Annotated[int, _sampling("--rounds", min=1, help="Rounds that the samples of a row are spread over.")]
Timeout = Annotated[float, _campaign("--timeout", min=0.1, help="Seconds after which an item has hung.")]
MaxSeconds = Annotated[float, _sampling("--max-seconds-per-item", min=0.0, metavar="S", help="Maximum sampling time.")]
Cache = Annotated[str, _sampling("--cache", help="warm, or cold: emptied before each sample.")]
Placement = Annotated[
    str, typer.Option("--placement", help="shared: all on the same --threads cores; split: --threads cores each.")
]
Budget = Annotated[
    str | None, _campaign("--budget", help="Stop after this long (90s, 30m, 2h); cheap items tend to come first.")
]
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
            "--rounds", min=1, help="Rounds that the samples of a row are spread over.", show_default="2, with --for 1"
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
    from slotool.profiling.plan import Settings, solo_items
    from slotool.profiling.timer import StoppingRule

    settings = Settings(
        backend=backend,
        device=device,
        threads=cores_given(threads),
        batch_sizes=_batch_sizes(batch),
        rule=StoppingRule(runs=runs, precision=precision, max_seconds=max_seconds),
        timeout_s=timeout,
        seed=seed,
        # Whoever pays for single labels of a few networks wants the next one rather than a second round.
        rounds=rounds or (1 if predictor else 2),
        cold=_is_cold(cache),
    )
    chosen = proposal(predictor, inputs, keras, limit, samples, until, settings)
    items = solo_items(chosen.subjects if chosen else _subjects(inputs, keras, limit), settings)
    _run(
        json,
        items,
        settings,
        out,
        force=force,
        budget=budget,
        dry_run=dry_run,
        strict=strict,
        engine=engine,
        address=address,
        chosen=chosen,
    )


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
    from slotool.profiling.plan import Settings, combinations_of
    from slotool.profiling.timer import StoppingRule

    settings = Settings(
        backend=backend,
        device=device,
        threads=cores_given(threads),
        batch_sizes=_batch_sizes(batch),
        rule=StoppingRule(runs=runs, precision=precision, max_seconds=max_seconds),
        timeout_s=timeout,
        seed=seed,
        rounds=rounds,
        placement=_placement(placement),
    )
    sizes = [int(number) for number in parse_numbers(size, "--size")]
    items = combinations_of(_subjects(inputs, keras, None), sizes, settings, limit=limit, with_itself=with_itself)
    _run(
        json,
        items,
        settings,
        out,
        force=force,
        budget=budget,
        dry_run=dry_run,
        strict=strict,
        engine=engine,
        address=address,
    )


def profile_points(
    artifacts: Annotated[list[Path], typer.Argument(metavar="ARTIFACT...", help="Folders of trained models.")],
    out: Out,
    copies: Annotated[
        str,
        typer.Option("--co-runners", help="Numbers of busy copies of the full model on the same cores: 0,1 or 0:2."),
    ] = "0,1",
    data: Annotated[
        str, typer.Option("--data", help="Answer examples of this set, one label each, instead of random inputs.")
    ] = "",
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
    from slotool.profiling.plan import Settings, points_with_copies
    from slotool.profiling.subjects import artifact_subjects
    from slotool.profiling.timer import StoppingRule

    settings = Settings(
        backend="elastic",
        device=device,
        threads=cores_given(threads),
        batch_sizes=_batch_sizes(batch),
        rule=StoppingRule(runs=runs, precision=precision, max_seconds=max_seconds, single=True),
        timeout_s=timeout,
        seed=seed,
        rounds=rounds,
        placement=_placement(placement),
    )
    counts = sorted({int(number) for number in parse_numbers(copies, "--co-runners")})
    items = [item for path in artifacts for item in points_with_copies(artifact_subjects(path, data), counts, settings)]
    _run(json, items, settings, out, force=force, budget=budget, dry_run=dry_run, strict=strict)


def _subjects(inputs: list[Path] | None, keras: str | None, limit: int | None) -> list[Subject]:
    """Of the paths and of ``--keras``; one of them must be given."""
    from itertools import islice

    from slotool.graphs.capture.loading import chosen_applications
    from slotool.profiling.subjects import application_subject, read_subjects

    if not inputs and not keras:
        raise typer.BadParameter("name graph files, folders of trained models, or networks with --keras")
    applications = chosen_applications(keras)[:limit] if keras else []
    return [*islice(read_subjects(inputs or []), limit), *map(application_subject, applications)]


def _run(
    json: bool,
    items: Sequence[Item],
    settings: Settings,
    out: Path,
    *,
    force: bool,
    budget: str | None,
    dry_run: bool,
    strict: bool,
    engine: str = "local",
    address: str | None = None,
    chosen: Proposal | None = None,
) -> None:
    """Measure, or only plan, and report."""
    from slotool.cli.output import Output
    from slotool.cli.profile_report import report, report_plan
    from slotool.profiling.campaign import Campaign, plan_only
    from slotool.profiling.plan import predicted_seconds

    output, budget_s = Output(as_json=json), parse_duration(budget, "--budget")
    make_engine = chosen_engine(engine, address, output)
    if dry_run:
        plan = plan_only(items, settings, out, force=force, budgeted=budget_s is not None, in_order=chosen is not None)
        if chosen:
            report_proposal(output, chosen, settings.configuration(), predicted_seconds(plan.todo, settings))
        else:
            report_plan(output, plan, settings, out, budget_s)
        return
    enough = chosen.enough if chosen else None
    with Campaign(items, settings, out, force=force, budget_s=budget_s, enough=enough, engine=make_engine) as campaign:
        titles = {member.name: member.title for item in items for member in item.members if member.title}
        unstable = report(output, _measured(output, campaign, settings, out), settings, out, titles)
    if chosen:
        note_outcome(output, chosen, out)
    if strict and unstable:
        raise typer.Exit(1)


def _measured(output: Output, campaign: Campaign, settings: Settings, out: Path) -> LatencyTable:
    todo, resumed = len(campaign.plan.todo), campaign.plan.resumed
    if resumed and todo:
        output.note(f"resuming: {resumed} rows are finished, {todo} measurements are left")
    try:
        threads = "1 thread" if settings.threads == 1 else f"{settings.threads} threads"
        with output.progress(f"profiling on {threads}", total=todo) as progress:
            return campaign.run(progress.advance)
    except KeyboardInterrupt:
        interrupts.explained()
        if campaign.has_rows:
            output.note(f"interrupted; finished rows are in {out}.journal, the same command again resumes")
        else:
            output.note("interrupted before a row was finished")
        raise


def _batch_sizes(text: str) -> tuple[int, ...]:
    sizes = parse_numbers(text, "--batch-size")
    if any(size < 1 or size != int(size) for size in sizes):
        raise typer.BadParameter(f"{text!r}: a batch size is a whole number from 1 up", param_hint="--batch-size")
    return tuple(sorted({int(size) for size in sizes}))


def _is_cold(cache: str) -> bool:
    if cache not in ("warm", "cold"):
        raise typer.BadParameter(f"{cache!r} is neither warm nor cold", param_hint="--cache")
    return cache == "cold"


def _placement(placement: str) -> str:
    from slotool.profiling.plan import PLACEMENTS

    if placement not in PLACEMENTS:
        raise typer.BadParameter(f"{placement!r} is neither {' nor '.join(PLACEMENTS)}", param_hint="--placement")
    return placement
