"""``slotool.compare_predictors``: every predictor under every protocol, beside the noise floor."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.display import Part, Table, table
from slotool.commands.inputs import numbers_in
from slotool.commands.measured import MeasuredNetworks, Paths, Rows, unmatched
from slotool.commands.outputs import writes
from slotool.commands.predictors.predictor_training import (
    DEPTHS,
    FLOOR,
    FLOOR_MEANS,
    IN_SECONDS,
    RELATIVE,
    floor_relative,
    in_seconds,
    names_among,
    predictor_makers,
    relative,
)
from slotool.commands.progress import Reporter, Reporting, reporter_of
from slotool.commands.result import Result, output, result, unlisted
from slotool.commands.values import at_least, whole_numbers

if TYPE_CHECKING:
    import pandas as pd

    from slotool.graphs import OperatorGraph
    from slotool.predictors.base import Predictor
    from slotool.predictors.labels import LabelledSet
    from slotool.predictors.training.study import Study, StudyTask
    from slotool.profiling.journal import Journal

TITLES = {
    "random": "Random split (the paper's)",
    "depth": "Depth: learnt from shallower networks, on the deepest of each kind",
    "width": "Width: learnt from narrower networks, on the widest of each kind",
    "family": "Family: learnt from the other kinds",
}


@result
class PredictorComparison(Result):
    """Scores of every predictor, network by network held out. ``curve``: whether it holds a learning curve. ``out``:
    the artifact written."""

    study: Study = unlisted()
    curve: bool = unlisted()
    out: Path = output("artifact")

    schema = "compare-predictors"
    rows_key = "scores"

    @cached_property
    def scores(self) -> dict[str, Any]:
        """What was learnt from, and the scores of each predictor under each protocol."""
        return self.study.document()

    @property
    def predictions(self) -> pd.DataFrame:
        """Measured and predicted latency of every network held out, by protocol, split, seed and predictor."""
        return self.study.table.rows

    def findings(self) -> Mapping[str, Any]:
        return {"artifact": self.out, **self.scores}

    def shown(self) -> list[Part]:
        from slotool.predictors.labels import Setting
        from slotool.predictors.training.study import RANDOM, whole_scores

        whole = whole_scores(self.scores["scores"])
        random = [score for score in whole if score["protocol"] == RANDOM]
        parts: list[Part | None] = [_in_seconds(random)] if random else []
        parts += [_relative(title, [s for s in whole if s["protocol"] == name]) for name, title in TITLES.items()]
        if self.curve:
            parts.append(_curve(self.scores["scores"]))
        parts += _reasons(self.scores["refused"])
        setting = Setting.from_document(self.scores["setting"])
        return [part for part in parts if part] + [FLOOR_MEANS, f"labels: {setting}"]


def curve_in(text: Any) -> list[int | None]:
    """Return the numbers of networks in ``500,all``, None for all."""
    parts = [part.strip() for part in str(text).split(",") if part.strip()]
    counts = [part for part in parts if part != "all"]
    points: list[int | None] = [*whole_numbers(",".join(counts))] if counts else []
    if any(point is not None and point < 1 for point in points):
        raise ValueError(f"{text!r}: a point of the learning curve is a whole number of networks, at least 1")
    return [*points, None] if len(counts) < len(parts) else points


@command_line(
    arguments=(),
    names={"graphs": "--graphs -g"},
    values={"curve": curve_in},
    panels={"Every predictor on held-out networks": ("protocols", "models", "curve", "seeds", "depths", "seed")},
    resumes=True,
)
@writes(folders=("out",))
def compare_predictors(
    latency: Paths,
    *,
    graphs: Paths,
    out: str | Path,
    protocols: str | Sequence[str] = "random",
    models: str | Sequence[str] | None = None,
    curve: Sequence[int | None] = (),
    seeds: Annotated[int, at_least(1)] = 1,
    depths: Annotated[int | Sequence[int], at_least(1)] | None = None,
    rows: Rows | None = None,
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> PredictorComparison:
    """Score every predictor on the same held-out networks.

    Each is trained anew under every protocol. Interrupted, the same command goes on where it was. Reports draw the
    result.

    Args:
        latency: Latency tables (Parquet or CSV) of measured networks.
        graphs: Graph file (Parquet or .jsonl) with these networks; repeatable.
        out: Artifact to write. Trials finished so far are kept beside it.
        protocols: Protocols of holding networks out: random, depth, width, family.
        models: Predictors to compare, such as linear,dnn,graph; None: every one.
        curve: Learning curve: numbers of networks to learn from, and all.
        seeds: Number of splits and trainings, averaged.
        depths: Numbers of hidden layers that the DNN tries; None: 1:20.
        rows: Take only rows of the tables with these values of ``device``, ``backend``, ``threads``, ``batch_size`` or
            ``machine``.
        seed: Same seed, same result.
        force: Replace ``out`` if it exists, and train anew what was finished.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.commands.progress``.

    Returns:
        Scores by protocol, split and predictor (``frame()``), and every prediction (``predictions``).

    Raises:
        ArgumentError: An argument has a value that it cannot have.
        InputError: The networks do not allow a protocol or a point of the curve, or no predictor takes them.
        TableError: A latency table cannot be read, mixes settings, or has no row of these networks.
        AlreadyExistsError: ``out`` exists.
    """
    from slotool.predictors.base import SOLO
    from slotool.predictors.registry import names_of, registry
    from slotool.predictors.splits import PROTOCOLS
    from slotool.predictors.training.study import plan_tasks

    asked = names_among(protocols, list(PROTOCOLS), "protocols")
    known = names_of(SOLO)
    names = known if models is None else names_among(models, known, "models", plugins=registry)
    searched = numbers_in(depths or DEPTHS)
    makers = predictor_makers(names, searched)
    reporter, written = reporter_of(progress), Path(out)
    source = MeasuredNetworks.of(latency, graphs, rows)
    labelled = source.labelled()
    for sentence in unmatched(labelled):
        reporter.warn(sentence)
    tasks = plan_tasks(labelled, asked, range(seed, seed + seeds), curve)
    options = {"protocols": asked, "models": names, "curve": list(curve), "seeds": seeds, "depths": searched}
    with _journal(written, labelled, searched, force) as journal:
        study = _run(reporter, labelled, tasks, makers, journal)
        study.save(written, config={**source.config(), **source.rows, **options}, seed=seed, force=force)
        journal.remove()
    return PredictorComparison(study, bool(curve), written)


def _journal(out: Path, labelled: LabelledSet[OperatorGraph], depths: list[int], force: bool) -> Journal:
    """Where finished trials are kept until the study is written."""
    from slotool.predictors.training.study import data_digest
    from slotool.profiling.journal import Journal

    configuration = {"study": data_digest(labelled), "depths": depths}
    return Journal(out.with_name(f"{out.name}.journal"), configuration, fresh=force)


def _run(
    reporter: Reporter,
    labelled: LabelledSet[OperatorGraph],
    tasks: list[StudyTask],
    makers: Mapping[str, Callable[[], Predictor[OperatorGraph]]],
    journal: Journal,
) -> Study:
    from slotool.predictors.training.study import run_study, steps_left

    if journal.rows:
        reporter.note(f"resuming: {len(journal.rows)} of {len(tasks) * len(makers)} trainings are finished")
    text = f"{len(makers)} predictors, {len(tasks)} splits; trainings"
    try:
        with reporter.progress(text, total=steps_left(tasks, makers, journal)) as progress:

            def finished(what: str) -> None:
                progress.say(what)
                progress.advance()

            return run_study(labelled, tasks, makers, journal, progress=finished)
    except KeyboardInterrupt as interruption:
        if journal.rows:
            interruption.add_note(f"what was finished is in {journal.path}, the same command again resumes")
        raise


def _in_seconds(scores: list[dict[str, Any]]) -> Table:
    rows = [[score["split"], score["predictor"], *in_seconds(score)] for score in scores]
    return table("In seconds, as the paper reports it (random split)", ["networks", "predictor", *IN_SECONDS], rows)


def _relative(title: str, scores: list[dict[str, Any]]) -> Table | None:
    """One protocol: per split every predictor, then the noise floor."""
    rows: list[list[str]] = []
    for name in dict.fromkeys(score["split"] for score in scores):
        own = [score for score in scores if score["split"] == name]
        counts = [f"{own[0]['labels']:,}", f"{own[0]['n']:,}"]
        rows += [[name, *counts, score["predictor"], *relative(score)] for score in own]
        rows.append([name, *counts, FLOOR, *floor_relative(own[0])])
    return table(title, ["networks", "learnt from", "on", "predictor", *RELATIVE], rows) if rows else None


def _curve(scores: list[dict[str, Any]]) -> Table:
    from slotool.predictors.training.study import curve_scores

    points = curve_scores(scores)
    names = list(dict.fromkeys(score["predictor"] for score in points))
    by_labels: dict[int, dict[str, str]] = {}
    for score in points:
        row = by_labels.setdefault(score["labels"], {})
        row[score["predictor"]] = f"{score['mape']:.1%} ({score['mae_over_mean']:.1%})"
    rows = [[f"{labels:,}", *(row.get(name, "–") for name in names)] for labels, row in sorted(by_labels.items())]
    return table("Learning curve: MAPE (MAE/mean)", ["learnt from", *names], rows)


def _reasons(refused: list[dict[str, Any]]) -> list[str]:
    """One sentence per predictor and split it could not do."""
    reasons = {(each["protocol"], each["split"], each["predictor"]): each["reason"] for each in refused}
    return [f"{name} could not do {protocol}/{split}: {why}" for (protocol, split, name), why in reasons.items()]
