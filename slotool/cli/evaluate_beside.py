"""``slotool evaluate --beside``: deadlines and accuracy alone and beside busy copies of the model on the same core."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

if TYPE_CHECKING:
    from slotool.artifacts import Artifact
    from slotool.cli.output import Output
    from slotool.workloads.in_company import Measured

LATENCY_SUFFIX = "-latency.parquet"


@dataclass(frozen=True)
class Asked:
    """What the command line says; see the options of ``slotool evaluate``."""

    beside: str
    deadlines_us: str | None
    quantile: float
    seconds: float
    estimate: bool
    latency: Path | None
    data: str | None
    targets: Sequence[float] | None
    seed: int = 0


def evaluate_beside(opened: Artifact, out: Path, asked: Asked, *, force: bool, json: bool) -> None:
    """Measure, write the interference table and, unless one was given, the latency table beside it; print both."""
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.output import Output
    from slotool.elastic import load_model
    from slotool.elastic.queries import dataset_of
    from slotool.machine import machine_id
    from slotool.process import limit_threads
    from slotool.tables import LatencyTable
    from slotool.workloads import in_company

    latency_path = out.with_name(out.stem + LATENCY_SUFFIX)
    refuse_existing(out, force)
    if asked.latency is None:
        refuse_existing(latency_path, force)
    limit_threads(1)
    model, output = load_model(opened), Output(as_json=json)
    data = dataset_of(model, asked.data or opened.manifest["config"].get("data", "auto"))
    source = getattr(data, "source", data.name)
    settings = in_company.Settings(
        besides=_copies(asked.beside),
        quantile=asked.quantile,
        seconds=asked.seconds,
        deadlines_us=_numbers(asked.deadlines_us, "--deadlines-us"),
        targets=_targets(model, asked.targets),
        estimate=asked.estimate,
        seed=asked.seed,
    )
    request = {"path": str(opened.path.resolve()), "point": model.full.key, "data": source}
    provenance = {
        "subject": model.name,
        "kind": opened.kind,
        "artifact_id": opened.id,
        "data": data.name,
        "split": "test",
        "quantile": asked.quantile,
        "estimated": asked.estimate,
        "machine": machine_id(),
    }
    given = None if asked.latency is None else LatencyTable.load(asked.latency)
    with output.progress(f"{model.name} on {data.name}, alone and in company") as progress:
        measured = in_company.measure(
            model, data, request, settings, latency=given, provenance=provenance, progress=progress.say
        )
    measured.table.save(out)
    if given is None:
        measured.latency.save(latency_path)
    _report(output, measured, provenance, out, None if given else latency_path)


def _copies(text: str) -> list[int]:
    from slotool.cli.options import parse_numbers

    numbers = parse_numbers(text, "--beside")
    if any(number < 0 or number != int(number) for number in numbers):
        raise typer.BadParameter(f"{text!r} are no numbers of copies", param_hint="--beside")
    return [int(number) for number in numbers]


def _numbers(text: str | None, option: str) -> list[float]:
    from slotool.cli.options import parse_numbers

    numbers = parse_numbers(text, option) if text else []
    if any(number <= 0 for number in numbers):
        raise typer.BadParameter(f"{text!r}: only numbers above 0", param_hint=option)
    return sorted(numbers)


def _targets(model: Any, targets: Sequence[float] | None) -> list[float]:
    """Accuracy targets that the model can meet, by default a little below its own accuracy; none where it cannot tell
    inputs apart."""
    from slotool.elastic.activators.slo_nn import SloNN

    if not isinstance(model, SloNN) or not model.confidence.means.shape[1]:
        return []
    best = float(model.calibration.by_point[-1])
    chosen = [best - slack for slack in (0.1, 0.03, 0.01, 0.003)] if targets is None else targets
    return sorted(target for target in chosen if 0 < target <= best)


def _report(
    output: Output, measured: Measured, provenance: dict[str, Any], out: Path, latency_path: Path | None
) -> None:
    from slotool.cli.output import duration, table

    rows = list(measured.table.summary())
    headline = [row for row in rows if abs(row["deadline_us"] / measured.deadline_us - 1) < 1e-9]
    shown: list[Any] = [
        table(
            f"{provenance['subject']} on {provenance['data']}: latency-constrained, accuracy-optimised, one core",
            ["deadline", "beside", "met", "full net", "least k", "refused", "accuracy", "± SE", "mean k"],
            [
                [
                    duration(1e-6 * row["deadline_us"]),
                    str(row["beside"]),
                    f"{100 * row['met_share']:.2f} %",
                    f"{100 * row['full_met_share']:.2f} %",
                    f"{100 * row['least_met_share']:.2f} %",
                    f"{100 * row['refused_share']:.1f} %",
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
                str(t["beside"]),
                f"{t['accuracy']:.4f}",
                f"{t['mean_k']:.4f}",
                duration(t["mean_s"]),
                duration(t["p95_s"]),
            ]
            for t in targets
        ]
        heads = ["target", "beside", "accuracy", "mean k", "mean latency", "p95"]
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
    output.result("evaluate-beside", document, *shown, *_sentences(measured, headline), wrote)


def _aclo(measured: Measured) -> list[dict[str, Any]]:
    from slotool.workloads.interference import ACLO

    return [
        {
            "target": answers.target,
            "beside": beside,
            "accuracy": answers.accuracy,
            "mean_k": answers.mean_k,
            "mean_s": float(answers.latency_s.mean()),
            "p95_s": answers.quantile_s(0.95),
        }
        for beside in measured.table.besides
        for answers in measured.table.answers(ACLO, beside)
    ]


def _slices(measured: Measured) -> list[dict[str, Any]]:
    import numpy as np

    return [
        {"beside": beside, "pauses": len(pauses), "median_s": float(np.median(pauses)) if len(pauses) else None}
        for beside, pauses in measured.pauses_s.items()
    ]


def _sentences(measured: Measured, headline: list[dict[str, Any]]) -> list[str]:
    from slotool.cli.output import duration

    said = []
    if measured.full_network != measured.table.provenance["subject"]:
        said.append("the full network is the one that was brought, in float32; the model's own is rounded")
    for found in _slices(measured):
        if found["beside"] and found["median_s"]:
            said.append(f"beside {found['beside']} the core is away for {duration(found['median_s'])} at a time")
    for row in headline:
        said.append(
            f"at the uninterfered full network's p95, {duration(1e-6 * row['deadline_us'])}, beside {row['beside']}: "
            f"{100 * row['met_share']:.2f} % in time, the full network {100 * row['full_met_share']:.2f} %; "
            f"{100 * (1 - row['least_met_share']):.2f} % no choice of k could have saved; "
            f"{100 * row['lost']:.2f} ± {100 * row['lost_standard_error']:.2f} points lost"
        )
    return said
