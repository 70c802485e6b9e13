"""``slotool evaluate`` of models that choose per input: accuracy targets, fixed k, the ideal k, and plots."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

    from slotool.elastic import ElasticModel
    from slotool.elastic.slo_nn.assessment import Sweep
    from slotool.elastic.slo_nn.model import SloNN
    from slotool.reports.figure import Figure
    from slotool.tables import OutcomeTable


@dataclass(frozen=True)
class SweepOptions:
    """``targets``: accuracy targets to sweep. ``compare``: other SLO-NN artifacts; ``plots``: a folder for plots;
    ``allowed_loss``: the loss whose k is promised, with ``confidence`` (None: the artifact's)."""

    targets: Sequence[float]
    metric: str
    compare: tuple[Path, ...]
    plots: Path | None
    allowed_loss: float = 0.002
    confidence: float | None = None

    def load(self, model: ElasticModel) -> list[ElasticModel]:
        """The models to compare with. Raises ``InputError`` when they or ``model`` do not suit."""
        from slotool.elastic import load_model
        from slotool.elastic.slo_nn.model import SloNN
        from slotool.errors import InputError

        if (self.compare or self.plots) and not isinstance(model, SloNN):
            raise InputError(f"{model.name} is no SLO-NN, so there is no k to compare or plot; see slotool report")
        others = [load_model(str(path)) for path in self.compare]
        for other in others:
            if not isinstance(other, SloNN) or (other.input_shape, other.classes) != (model.input_shape, model.classes):
                raise InputError(f"{other.name} is no SLO-NN of the same inputs and classes as {model.name}")
        return others


@dataclass(frozen=True)
class SweepReport:
    """What a sweep adds to the document, and what a person reads of it."""

    document: dict[str, Any] = field(default_factory=dict)
    human: tuple[Any, ...] = ()


def sweeps(
    model: ElasticModel,
    others: Sequence[ElasticModel],
    examples: Any,
    outcomes: OutcomeTable,
    options: SweepOptions,
) -> SweepReport:
    """The accuracy targets, for any model that tells inputs apart; for an SLO-NN also sweeps of allowed losses."""
    from slotool.elastic.evaluation import METRICS, accuracy_by_target
    from slotool.elastic.slo_nn.assessment import Sweep
    from slotool.elastic.slo_nn.model import SloNN
    from slotool.elastic.slo_nn.promises import Promise

    # Targets are calibrated by the first label: they promise nothing of any other metric.
    by_target = accuracy_by_target(model, examples, options.targets, outcomes) if options.metric == METRICS[0] else []
    if not by_target or not isinstance(model, SloNN):
        return SweepReport({"accuracy_targets": by_target})
    if options.confidence is not None:
        model = model.stating(options.confidence)
    promise = Promise.of(model, options.allowed_loss)
    swept = [Sweep.of_outcomes(model, examples.x, outcomes)]
    swept += [Sweep.of_split(other, examples) for other in others if isinstance(other, SloNN)]
    document: dict[str, Any] = {"accuracy_targets": by_target, "sweeps": [one.document for one in swept]}
    document["promise"] = asdict(promise)
    human: list[Any] = [_targets_table(model, by_target), *map(_sweep_table, swept), *map(_ideal, swept)]
    human += promise.sentences
    if options.plots:
        from slotool.reports.plots import save_plots

        files = save_plots(_figures(swept, outcomes), options.plots)
        document["plots"] = [str(path) for path in files]
        human.append(f"drew {', '.join(str(path) for path in files)}")
    return SweepReport(document, tuple(human))


def _targets_table(model: SloNN, by_target: Sequence[dict[str, float]]) -> Any:
    from slotool.commands.display import duration, table

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
            for r in by_target
        ],
    )


def _sweep_table(one: Sweep) -> Any:
    from slotool.commands.elastic.tables_built import loss_table

    sure = f"{100 * one.model.calibration.stated:g} % confidence"
    title = f"{one.model.name}, {one.model.ranker}: k for an accuracy allowed to be lost, promised with {sure}"
    # Targets have a table of their own here.
    return loss_table(title, [{name: row[name] for name in row if name != "target"} for row in one.losses])


def _ideal(one: Sweep) -> str:
    return (
        f"{one.model.name}: if each input's need were known, a mean k of {one.ideal_k:.4g} would lose nothing; "
        f"confidence is by {one.model.measure}"
    )


def _figures(swept: Sequence[Sweep], outcomes: OutcomeTable) -> list[Figure]:
    import numpy as np

    from slotool.reports.series.elastic import Line, accuracy_against_mean_k, accuracy_against_mean_latency

    full = float(swept[0].correct[:, -1].mean())
    data, examples = outcomes.provenance.get("data", ""), len(outcomes.examples)
    source = f"{examples:,} {outcomes.provenance.get('split', '')} examples of {data}"
    fixed = [Line(f"{_name(one, swept)}", _costs(one.model), one.correct.mean(axis=0)) for one in swept]
    chosen = [Line(f"{_name(one, swept)}, per input", *one.curve("mean_k")) for one in swept]
    ideal = [Line(f"{_name(one, swept)}, ideal", np.array([one.ideal_k]), np.array([full])) for one in swept]
    subject = swept[0].model.name
    figures = [accuracy_against_mean_k(subject, fixed, chosen, ideal, full, source)]
    timed = [(one, one.latency_s) for one in swept if one.latency_s is not None]
    slow = [Line(f"{_name(one, swept)}", taken.mean(axis=0), one.correct.mean(axis=0)) for one, taken in timed]
    by_target = [Line(f"{_name(one, swept)}, per input", *one.curve("latency_s")) for one, _ in timed]
    return [*figures, accuracy_against_mean_latency(subject, slow, by_target, full, source)]


def _name(one: Sweep, swept: Sequence[Sweep]) -> str:
    alike = sum(other.model.ranker == one.model.ranker for other in swept) > 1
    return f"{one.model.name} ({one.model.ranker})" if alike else one.model.ranker


def _costs(model: SloNN) -> np.ndarray:
    import numpy as np

    return np.append(model.shares, 1.0)
