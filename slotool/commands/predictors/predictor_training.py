"""Training of predictors by name, and their scores: what ``train_predictor`` returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool import devices
from slotool.commands.display import Part, table
from slotool.commands.inputs import as_list
from slotool.commands.measured import MeasuredNetworks
from slotool.commands.progress import Reporter
from slotool.commands.result import Result, output, result, unlisted
from slotool.errors import ArgumentError
from slotool.printable import counted

if TYPE_CHECKING:
    import pandas as pd

    from slotool.plugins import Registry
    from slotool.predictors.base import Asked, Predictor
    from slotool.predictors.labels import LabelledSet, Setting
    from slotool.predictors.splits import RowSplit
    from slotool.predictors.training.many_settings import SettingsRun
    from slotool.predictors.training.selection import TrainingRun

IN_SECONDS = ("MAE s", "label mean s", "label deviation s", "floor s")
RELATIVE = ("MAE/mean", "MAPE", "±5 %", "±10 %", "Spearman", "90 % covers")
FLOOR = "noise floor"
FLOOR_MEANS = f"{FLOOR}: what a predictor that knew every true latency would about score, for labels are measurements"
# Numbers of hidden layers that the DNN tries; the paper's range.
DEPTHS = tuple(range(1, 21))


@result
class PredictorTraining(Result):
    """Scores of each predictor on rows held out, and the one that was kept. ``model``: those that could be kept.
    ``out``: the artifact written, if any."""

    run: TrainingRun[Any] = unlisted()
    model: str
    out: Path | None = output("artifact", default=None)

    schema = "train-predictor"

    @cached_property
    def scores(self) -> dict[str, Any]:
        """Scores by predictor, with how many rows trained, chose and scored them."""
        return self.run.scores()

    @property
    def kept(self) -> str:
        """Name of the predictor that was kept."""
        return str(self.scores["chosen"])

    def frame(self) -> pd.DataFrame:
        """Scores on the rows held out, one row a predictor."""
        import pandas as pd

        return pd.DataFrame.from_dict(self.document["predictors"], orient="index")

    def findings(self) -> Mapping[str, Any]:
        return {**super().findings(), **self.scores}

    def shown(self) -> list[Part]:
        from slotool.predictors.labels import Setting

        predictors, rows = self.scores["predictors"], self.scores["rows"]
        kinds = ", ".join(f"{kind['n']} {name}" for name, kind in predictors[self.kept]["by_kind"].items())
        tested = counted(rows["test"], "held-out network")
        title = f"On {tested} ({kinds}); trained on {rows['train']}, chosen on {rows['dev']}"
        chosen = self.model == "auto" or "," in self.model
        why = "it has the lowest MAE on the dev set" if chosen else "as asked"
        seconds = [[name, *in_seconds(each), f"{each['dev_mae_s']:.3g}"] for name, each in predictors.items()]
        shares = [[name, *relative(each)] for name, each in predictors.items()]
        shares.append([FLOOR, *floor_relative(predictors[self.kept])])
        return [
            table(title, ["predictor", *IN_SECONDS, "dev MAE s"], seconds),
            table("Relative to the latency", ["predictor", *RELATIVE], shares),
            FLOOR_MEANS,
            f"labels: {Setting.from_document(self.scores['setting'])}",
            f"kept {self.kept}: {why}",
        ]


def in_seconds(score: Mapping[str, Any]) -> list[str]:
    """Cells of ``IN_SECONDS``."""
    floor_s = score["floor"]["mae_s"]
    return [*(f"{score[key]:.3g}" for key in ("mae_s", "label_mean_s", "label_std_s")), _or_dash(floor_s, ".3g")]


def relative(score: Mapping[str, Any]) -> list[str]:
    """Cells of ``RELATIVE``; with several seeds, the mean relative errors with their deviation over seeds."""
    deviation = score.get("deviation", {}) if score.get("seeds", 1) > 1 else {}
    errors = [
        f"{score[key]:.1%}" + (f" ± {100 * deviation[key]:.1f}" if key in deviation else "")
        for key in ("mae_over_mean", "mape")
    ]
    within = [f"{score[key]:.0%}" for key in ("within_5_percent", "within_10_percent")]
    return [*errors, *within, _or_dash(score["spearman"], ".3f"), covers(score)]


def floor_relative(score: Mapping[str, Any]) -> list[str]:
    """Cells of ``RELATIVE`` for the noise floor."""
    floor = score["floor"]
    errors = [_or_dash(floor[key], ".1%") for key in ("mae_over_mean", "mape")]
    within = [_or_dash(floor[key], ".0%") for key in ("within_5_percent", "within_10_percent")]
    return [*errors, *within, "–", "–"]


def covers(score: Mapping[str, Any]) -> str:
    """The share of labels inside the interval, and of how many where not all have one."""
    covered = _or_dash(score["interval_coverage"], ".0%")
    given = score.get("interval_given", 1.0)
    return covered if given == 1.0 else f"{covered} of {given:.0%}"


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


def names_among(
    asked: str | Sequence[str], known: Sequence[str], argument: str, *, plugins: Registry[Any] | None = None
) -> list[str]:
    """Return the names of a sequence or a comma list, each once.

    Raises ``ArgumentError`` for one that is neither known nor a plugin's.
    """
    names = list(dict.fromkeys(as_list(asked)))
    for name in names:
        if name not in known and not (plugins and name in plugins.plugins):
            others = plugins.plugins if plugins else []
            raise ArgumentError(argument, f"{name!r} is none of {', '.join([*known, *others])}")
    return names


def predictor_makers(
    names: Sequence[str],
    depths: Sequence[int],
    *,
    colocated: bool = False,
    device: str = devices.CPU,
) -> dict[str, Callable[[], Predictor[Any]]]:
    """By name, what makes a new predictor; the DNN searches ``depths``. The DNN and the graph network, which torch
    trains, do so on ``device``. Raises ``ArgumentError`` for a depth below 1, and for a device other than ``cpu`` where
    neither is among them."""
    from slotool.predictors.registry import predictor_class
    from slotool.predictors.solo.dnn import DnnPredictor
    from slotool.predictors.solo.graph_network import GraphNetworkPredictor

    on_device: dict[str, Callable[[], Predictor[Any]]] = {
        DnnPredictor.name: lambda: DnnPredictor(depths, device=device),
        GraphNetworkPredictor.name: lambda: GraphNetworkPredictor(device=device),
    }
    if devices.is_cuda(device) and not on_device.keys() & set(names):
        raise ArgumentError("training_device", f"{', '.join(names)} train on the CPU only; leave it out")
    return {name: on_device.get(name) or predictor_class(name, colocated=colocated) for name in names}


def trained_and_scored(
    reporter: Reporter,
    candidates: Sequence[Predictor[Asked]],
    labelled: LabelledSet[Asked],
    split: RowSplit,
    protocols: Mapping[str, Sequence[RowSplit]] | None = None,
    *,
    model: str | Sequence[str],
    seed: int,
) -> TrainingRun[Asked]:
    """``train_and_score``, saying how far it is."""
    from slotool.predictors.training.selection import train_and_score

    text = f"training on {len(split.train)} {'networks' if protocols is None else 'co-locations'}"
    # Of networks alone the last step holds out kinds of them for the interval of the one that is kept.
    extra = 1 if protocols is None else len(protocols) * len(candidates)
    with reporter.progress(text, total=extra + sum(candidate.fit_steps for candidate in candidates)) as progress:

        def finished(what: str) -> None:
            progress.say(f"{text}; {what}")
            progress.advance()

        return train_and_score(candidates, labelled, split, protocols, model=model, seed=seed, progress=finished)


@result
class SettingsTraining(Result):
    """How well one predictor does in each setting it learnt, on networks held out. ``out``: the artifact written, if
    any."""

    run: SettingsRun = unlisted()
    out: Path | None = output("artifact", default=None)

    schema = "train-predictor-of-settings"

    @cached_property
    def scores(self) -> dict[str, Any]:
        """Scores by setting."""
        return self.run.scores()

    @property
    def kept(self) -> str:
        """Name of the predictor that was kept."""
        return str(self.scores["chosen"])

    def frame(self) -> pd.DataFrame:
        """Scores, one row a setting."""
        import pandas as pd

        return pd.DataFrame([{**row.pop("setting"), **row} for row in map(dict, self.scores["settings"])])

    def findings(self) -> Mapping[str, Any]:
        return {**super().findings(), **self.scores}

    @property
    def warnings(self) -> Sequence[str]:
        left_out = [
            f"{setting}: {count} labels are too few to learn from; it is left out"
            for setting, count in self.run.labelled.left_out
        ]
        return [*left_out, *filter(None, map(worse_than_baseline, self.run.labelled.settings, self.scores["settings"]))]

    def shown(self) -> list[Part]:
        titles = ["setting", "labels", "MAPE", "least squares", "interval covers"]
        rows = [
            [
                named(setting),
                str(own["n"]),
                *(f"{own[name]:.1%}" for name in ("mape", "least_squares_mape", "interval_coverage")),
            ]
            for setting, own in zip(self.run.labelled.settings, self.scores["settings"], strict=True)
        ]
        what = "kinds of networks" if self.scores["held_out"] == "kinds" else "networks"
        return [
            table(
                f"{counted(self.scores['networks'], 'network')}; errors while their {what} were held out", titles, rows
            ),
            "least squares: of FLOPs, operators and activation elements, in log, from the same labels",
        ]


def named(setting: Any) -> str:
    """A setting in a few words."""
    words = [
        setting.device,
        setting.backend,
        setting.precision,
        f"{setting.threads} thread{'s' * (setting.threads > 1)}",
    ]
    return ", ".join([*(word for word in words if word != "unknown"), f"batch {setting.batch_size}"])


def worse_than_baseline(setting: Setting, scores: Mapping[str, Any]) -> str | None:
    """What to do about a setting in which least squares is off by less, None where it is not."""
    own, baseline = scores["mape"], scores["least_squares_mape"]
    if own <= baseline:
        return None
    return (
        f"{named(setting)}: DO NOT USE IT FOR THIS SETTING: it is off by {own:.1%} on networks held out, least squares "
        f"of three numbers by {baseline:.1%}; give more labels, or train a predictor of this setting alone"
    )


def trained_on_settings(
    source: MeasuredNetworks, out: Path | None, seed: int, force: bool, reporter: Reporter
) -> SettingsTraining:
    """One predictor of all settings in ``source``, written to ``out``."""
    from slotool.predictors.labels import join_settings
    from slotool.predictors.training.many_settings import FOLDS, train_settings

    labelled = join_settings(source.table(), source.read_graphs(), source.rows)
    text = f"training on {counted(len(labelled.items), 'network')} in {counted(len(labelled.settings), 'setting')}"
    with reporter.progress(text, total=FOLDS + 1) as progress:

        def finished(what: str) -> None:
            progress.say(f"{text}; {what}")
            progress.advance()

        run = train_settings(labelled, seed, finished)
    if out is not None:
        config = {**source.config(), "model": run.trained.predictor.name, **source.rows}
        run.save(out, config=config, seed=seed, force=force)
    return SettingsTraining(run, out)
