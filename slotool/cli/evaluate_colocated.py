"""``slotool evaluate-colocated``: deadlines and accuracy, solo and co-located with busy copies on the same core."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import Force, Json, Out, Seed

if TYPE_CHECKING:
    from slotool.cli.output import Output
    from slotool.workloads.co_location import CoLocationResult

LATENCY_SUFFIX = "-latency.parquet"
# Accuracy targets by default: the full network's accuracy less these.
SLACKS = (0.1, 0.03, 0.01, 0.003)


def register(app: typer.Typer) -> None:
    app.command("evaluate-colocated")(evaluate_colocated)


def evaluate_colocated(
    artifact: Annotated[Path, typer.Argument(help="A network, family, SLO-NN or supernet.")],
    out: Out,
    co_runners: Annotated[
        str, typer.Option("--co-runners", help="Numbers of busy copies on the same core: 1 or 0,1,2; 0 is always run.")
    ] = "0,1",
    data: Annotated[str | None, typer.Option("--data", help="Data set.", show_default="what it was trained on")] = None,
    latency: Annotated[
        Path | None, typer.Option("--latency", help="Table of T(k, β).", show_default="measured first")
    ] = None,
    deadlines_us: Annotated[
        str | None,
        typer.Option("--deadlines-us", help="Deadlines, µs.", show_default="up to the full network's p95 and beyond"),
    ] = None,
    targets: Annotated[
        str | None,
        typer.Option(
            "--targets",
            help="For an SLO-NN: accuracy targets.",
            show_default="0.1, 0.03, 0.01 and 0.003 below the full network",
        ),
    ] = None,
    quantile: Annotated[float, typer.Option("--quantile", help="LCAO plans with this quantile of T(k, β).")] = 0.95,
    duration: Annotated[
        str, typer.Option("--duration", help="How long each strategy runs at each number of co-runners.")
    ] = "1s",
    estimate: Annotated[
        bool, typer.Option("--estimate", help="LCAO estimates β from recent latencies; without this it knows β.")
    ] = False,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Measure deadlines met, co-located with busy copies on a core.

    Every policy runs solo and co-located. LCAO (the most accurate k within the deadline), ACLO (the fastest k for an
    accuracy target) and the full network take turns. The interference table goes to --out, T(k, β) to a file next to it
    unless --latency gives it.

    Example: slotool evaluate-colocated slo-nn -o colocated.parquet --co-runners 0,1
    """
    from slotool.artifacts import open_artifact
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.options import parse_duration
    from slotool.cli.output import Output
    from slotool.elastic import load_model
    from slotool.elastic.queries import dataset_of
    from slotool.machine import machine_id
    from slotool.process import limit_threads
    from slotool.tables import LatencyTable
    from slotool.workloads import co_location

    seconds = parse_duration(duration, "--duration")
    assert seconds is not None
    latency_path = out.with_name(out.stem + LATENCY_SUFFIX)
    opened = open_artifact(artifact)
    refuse_existing(out, force)
    if latency is None:
        refuse_existing(latency_path, force)
    limit_threads(1)
    model, output = load_model(opened), Output(as_json=json)
    settings = co_location.CoLocationSettings(
        co_runner_counts=_copies(co_runners),
        quantile=quantile,
        seconds=seconds,
        deadlines_us=_numbers(deadlines_us, "--deadlines-us"),
        targets=_targets(model, targets),
        estimate=estimate,
        seed=seed,
    )
    dataset = dataset_of(model, data or opened.manifest["config"].get("data", "auto"))
    source = getattr(dataset, "source", dataset.name)
    request = {"path": str(opened.path.resolve()), "point": model.full.key, "data": source}
    provenance = {
        "subject": model.name,
        "kind": opened.kind,
        "artifact_id": opened.id,
        "data": dataset.name,
        "split": "test",
        "quantile": quantile,
        "estimated": estimate,
        "machine": machine_id(),
    }
    given = None if latency is None else LatencyTable.load(latency)
    with output.progress(f"{model.name} on {dataset.name}, solo and co-located") as progress:
        measured = co_location.measure(
            model, dataset, request, settings, latency=given, provenance=provenance, progress=progress.say
        )
    measured.table.save(out)
    if given is None:
        measured.latency.save(latency_path)
    _report(output, measured, provenance, out, None if given else latency_path)


def _copies(text: str) -> list[int]:
    from slotool.cli.options import parse_numbers

    numbers = parse_numbers(text, "--co-runners")
    if any(number < 0 or number != int(number) for number in numbers):
        raise typer.BadParameter(f"{text!r} are no numbers of copies", param_hint="--co-runners")
    return [int(number) for number in numbers]


def _numbers(text: str | None, option: str) -> list[float]:
    from slotool.cli.options import parse_numbers

    numbers = parse_numbers(text, option) if text else []
    if any(number <= 0 for number in numbers):
        raise typer.BadParameter(f"{text!r}: only numbers above 0", param_hint=option)
    return sorted(numbers)


def _targets(model: Any, text: str | None) -> list[float]:
    """Accuracy targets: those given, else a few below the full network; none for a model that chooses no k per input.

    Refuses targets that the model cannot meet or would ignore.
    """
    from slotool.elastic.activators.slo_nn import SloNN

    if not isinstance(model, SloNN) or not model.confidence.means.shape[1]:
        if text is not None:
            raise typer.BadParameter(f"{model.name} does not choose k per input", param_hint="--targets")
        return []
    best = float(model.calibration.by_point[-1])
    if text is None:
        return sorted(best - slack for slack in SLACKS if slack < best)
    wanted = _numbers(text, "--targets")
    if wanted[-1] > best:
        raise typer.BadParameter(
            f"{wanted[-1]:g} cannot be met: {model.name} in full has {best:.4f} on validation data",
            param_hint="--targets",
        )
    return wanted


def _report(
    output: Output, measured: CoLocationResult, provenance: dict[str, Any], out: Path, latency_path: Path | None
) -> None:
    from slotool.cli.output import duration, table

    rows = list(measured.table.summary())
    headline = [row for row in rows if abs(row["deadline_us"] / measured.deadline_us - 1) < 1e-9]
    shown: list[Any] = [
        table(
            f"{provenance['subject']} on {provenance['data']}: latency-constrained, accuracy-optimised, one core",
            ["deadline", "co-runners", "met", "full net", "least k", "rejected", "accuracy", "± SE", "mean k"],
            [
                [
                    duration(1e-6 * row["deadline_us"]),
                    str(row["co_runners"]),
                    f"{100 * row['met_share']:.2f} %",
                    f"{100 * row['full_met_share']:.2f} %",
                    f"{100 * row['least_met_share']:.2f} %",
                    f"{100 * row['rejected_share']:.1f} %",
                    f"{row['accuracy']:.4f}",
                    f"{row['standard_error']:.4f}",
                    f"{row['mean_k']:.4f}",
                ]
                for row in rows
            ],
        )
    ]
    targets = _aclo(measured)
    if targets:
        cells = [
            [
                f"{t['target']:.4f}",
                str(t["co_runners"]),
                f"{t['accuracy']:.4f}",
                f"{t['mean_k']:.4f}",
                duration(t["mean_s"]),
                duration(t["p95_s"]),
            ]
            for t in targets
        ]
        heads = ["target", "co-runners", "accuracy", "mean k", "mean latency", "p95"]
        shown.append(table("Accuracy-constrained, latency-optimised", heads, cells))
    document = {
        **provenance,
        "deadline_us": measured.deadline_us,
        "full_network": measured.full_network,
        "at_full_p95": headline,
        "deadlines": rows,
        "accuracy_targets": targets,
        "time_slices": _slices(measured),
        "table": str(out),
        "latency": latency_path and str(latency_path),
    }
    wrote = f"wrote {out}" + (f" and {latency_path}" if latency_path else "")
    output.result("evaluate-colocated", document, *shown, *_sentences(measured, headline), wrote)


def _aclo(measured: CoLocationResult) -> list[dict[str, Any]]:
    from slotool.workloads.interference import ACLO

    return [
        {
            "target": answers.target,
            "co_runners": co_runners,
            "accuracy": answers.accuracy,
            "mean_k": answers.mean_k,
            "mean_s": float(answers.latency_s.mean()),
            "p95_s": answers.quantile_s(0.95),
        }
        for co_runners in measured.table.co_runner_counts
        for answers in measured.table.answers(ACLO, co_runners)
    ]


def _slices(measured: CoLocationResult) -> list[dict[str, Any]]:
    import numpy as np

    return [
        {"co_runners": co_runners, "pauses": len(pauses), "median_s": float(np.median(pauses)) if len(pauses) else None}
        for co_runners, pauses in measured.pauses_s.items()
    ]


def _sentences(measured: CoLocationResult, headline: list[dict[str, Any]]) -> list[str]:
    from slotool.cli.output import duration

    said = []
    if measured.full_network != measured.table.provenance["subject"]:
        said.append("the full network is the reference model in float32; the model's own weights are quantized")
    for found in _slices(measured):
        if found["co_runners"] and found["median_s"]:
            said.append(
                f"with {found['co_runners']} co-runners the core is away for {duration(found['median_s'])} at a time"
            )
    for row in headline:
        said.append(
            f"at the solo full network's p95, {duration(1e-6 * row['deadline_us'])}, "
            f"with {row['co_runners']} co-runners: "
            f"{100 * row['met_share']:.2f} % in time, the full network {100 * row['full_met_share']:.2f} %; "
            f"{100 * (1 - row['least_met_share']):.2f} % no choice of k could have saved; "
            f"{100 * row['lost']:.2f} ± {100 * row['lost_standard_error']:.2f} points lost"
        )
    return said
