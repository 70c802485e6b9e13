"""``slotool evaluate`` of models that choose per input: accuracy targets beside fixed k and the ideal, and plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from slotool.cli.evaluate import Extras
    from slotool.elastic import ElasticModel
    from slotool.elastic.activators.slo_nn import SloNN
    from slotool.reports.figure import Figure
    from slotool.tables import OutcomeTable


@dataclass(frozen=True)
class Found:
    """What a sweep adds to the document, and what a person reads of it."""

    document: dict[str, Any] = field(default_factory=dict)
    human: tuple[Any, ...] = ()


def sweeps(
    model: ElasticModel,
    others: Sequence[ElasticModel],
    examples: Any,
    outcomes: OutcomeTable,
    extras: Extras,
    targets: Sequence[float],
) -> Found:
    """The targets given, for any model that tells inputs apart; for an SLO-NN also the losses of its own sweep."""
    from slotool.elastic.activators.promises import Promise
    from slotool.elastic.activators.slo_nn import SloNN
    from slotool.elastic.evaluation import METRICS, accuracy_by_target

    # Targets are calibrated by the first answer: they promise nothing of any other metric.
    told = accuracy_by_target(model, examples, targets, outcomes) if extras.metric == METRICS[0] else []
    if not told or not isinstance(model, SloNN):
        return Found({"accuracy_targets": told})
    if extras.confidence is not None:
        model = model.stating(extras.confidence)
    promise = Promise.of(model, extras.allowed_loss)
    swept = [_swept(model, examples.x, 1.0 - outcomes.matrix("error"), outcomes.matrix("latency_s"))]
    swept += [_swept(other, examples.x, _correct(other, examples)) for other in others if isinstance(other, SloNN)]
    document: dict[str, Any] = {"accuracy_targets": told, "sweeps": [one.document() for one in swept]}
    document["promise"] = asdict(promise)
    human: list[Any] = [_targets_table(model, told), *(_sweep_table(one) for one in swept), *map(_ideal, swept)]
    human += promise.sentences
    if extras.plots:
        files = _plot(swept, outcomes, extras.plots)
        document["plots"] = [str(path) for path in files]
        human.append(f"drew {', '.join(str(path) for path in files)}")
    return Found(document, tuple(human))


@dataclass(frozen=True)
class _Swept:
    """One SLO-NN on the examples: ``correct`` and, where it was measured, ``latency_s``, float64 [n, points]."""

    model: SloNN
    correct: np.ndarray
    latency_s: np.ndarray | None
    rows: list[dict[str, Any]]
    ideal_k: float

    def document(self) -> dict[str, Any]:
        return {
            "subject": self.model.name,
            "ranker": self.model.ranker,
            "measure": self.model.measure,
            "accuracy_by_point": dict(
                zip((p.key for p in self.model.points), self.correct.mean(axis=0).tolist(), strict=True)
            ),
            "ideal_mean_k": self.ideal_k,
            "confidence": self.model.calibration.stated,
            "losses": self.rows,
        }


def _swept(model: SloNN, x: Any, correct: np.ndarray, latency_s: np.ndarray | None = None) -> _Swept:
    from slotool.elastic.activators import assessment

    rows = assessment.aclo_sweep(model, x, correct, latency_s=latency_s)
    return _Swept(model, correct, latency_s, rows, assessment.ideal_k(model, correct))


def _correct(model: SloNN, examples: Any) -> np.ndarray:
    from slotool.elastic.activators.build import flat, right
    from slotool.elastic.activators.trying import try_all

    labels = try_all(model.mlp, model.activators, model.shares, flat(examples.x)).labels
    return right(labels, examples.y).astype(float)


def _targets_table(model: SloNN, told: Sequence[dict[str, float]]) -> Any:
    from slotool.cli.output import duration, table

    best = float(model.calibration.by_point[-1])
    return table(
        "Accuracy-constrained, latency-optimised: the cheapest point each input needs",
        ["target", "share it can be met for", "accuracy reached", "mean latency", ""],
        [
            [
                f"{r['target']:.3f}",
                f"{r['met_share']:.3f}",
                f"{r['accuracy']:.4f}",
                duration(r["latency_s"]),
                "" if r["target"] <= best else f"cannot be met: the full network has {best:.4f}",
            ]
            for r in told
        ],
    )


def _sweep_table(one: _Swept) -> Any:
    from slotool.cli.output import duration, table

    cells = [
        [
            f"{r['loss']:.3f}",
            f"{r['mean_k']:.4g}",
            f"{r['accuracy']:.4f}",
            f"{r['difference']:+.4f}",
            f"{r['standard_error']:.4f}",
            duration(r["latency_s"]) if "latency_s" in r else "–",
            f"{r['fixed_k']:.4g}",
            f"{r['fixed_accuracy']:.4f}",
            f"{r['same_accuracy_k']:.4g}",
        ]
        for r in one.rows
    ]
    heads = ["allowed", "mean k", "accuracy", "vs full", "± SE", "latency", "fixed k", "its accuracy", "k as accurate"]
    sure = f"{100 * one.model.calibration.stated:g} % confidence"
    title = f"{one.model.name}, {one.model.ranker}: k for an accuracy allowed to be lost, promised with {sure}"
    return table(title, heads, cells)


def _ideal(one: _Swept) -> str:
    return (
        f"{one.model.name}: if each input's need were known, a mean k of {one.ideal_k:.4g} would lose nothing; "
        f"confidence is by {one.model.measure}"
    )


def _plot(swept: Sequence[_Swept], outcomes: OutcomeTable, folder: Path) -> list[Path]:
    from slotool.reports.plots import save_png

    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for figure in _figures(swept, outcomes):
        paths.append(folder / f"{figure.id}.png")
        save_png(figure, paths[-1])
    return paths


def _figures(swept: Sequence[_Swept], outcomes: OutcomeTable) -> list[Figure]:
    import numpy as np

    from slotool.reports.series.elastic import Line, accuracy_against_mean_k, accuracy_against_mean_latency

    full = float(swept[0].correct[:, -1].mean())
    data, examples = outcomes.provenance.get("data", ""), len(outcomes.examples)
    source = f"{examples:,} {outcomes.provenance.get('split', '')} examples of {data}"
    fixed = [Line(f"{_name(one, swept)}", _costs(one.model), one.correct.mean(axis=0)) for one in swept]
    chosen = [Line(f"{_name(one, swept)}, per input", *_column(one, "mean_k")) for one in swept]
    ideal = [Line(f"{_name(one, swept)}, ideal", np.array([one.ideal_k]), np.array([full])) for one in swept]
    subject = swept[0].model.name
    figures = [accuracy_against_mean_k(subject, fixed, chosen, ideal, full, source)]
    timed = [(one, one.latency_s) for one in swept if one.latency_s is not None]
    slow = [Line(f"{_name(one, swept)}", taken.mean(axis=0), one.correct.mean(axis=0)) for one, taken in timed]
    told = [Line(f"{_name(one, swept)}, per input", *_column(one, "latency_s")) for one, _ in timed]
    return [*figures, accuracy_against_mean_latency(subject, slow, told, full, source)]


def _name(one: _Swept, swept: Sequence[_Swept]) -> str:
    alike = sum(other.model.ranker == one.model.ranker for other in swept) > 1
    return f"{one.model.name} ({one.model.ranker})" if alike else one.model.ranker


def _costs(model: SloNN) -> np.ndarray:
    import numpy as np

    return np.append(model.shares, 1.0)


def _column(one: _Swept, what: str) -> tuple[np.ndarray, np.ndarray]:
    """That and the accuracy reached, by rising target."""
    import numpy as np

    rows = sorted(one.rows, key=lambda row: row["target"])
    return np.array([row[what] for row in rows]), np.array([row["accuracy"] for row in rows])
