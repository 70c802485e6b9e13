"""Results of ``slotool.train_predictor``: scores of each predictor on held-out networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Part, table
from slotool.commands.result import Result, output, result, unlisted
from slotool.printable import counted

if TYPE_CHECKING:
    import pandas as pd

    from slotool.predictors.labels import Setting
    from slotool.predictors.training.many_settings import SettingsRun
    from slotool.predictors.training.selection import TrainingRun

IN_SECONDS = ("MAE s", "label mean s", "label deviation s", "floor s")
RELATIVE = ("MAE/mean", "MAPE", "±5 %", "±10 %", "Spearman", "90 % covers")
FLOOR = "noise floor"
FLOOR_MEANS = f"{FLOOR}: about what a perfect predictor would score, as labels are noisy measurements"


@result
class PredictorTraining(Result):
    """Scores of each predictor on held-out rows, and the chosen one; ``model``: names to choose from."""

    run: TrainingRun[Any] = unlisted()
    model: str
    out: Path | None = output("artifact", default=None)

    schema = "train-predictor"

    @cached_property
    def scores(self) -> dict[str, Any]:
        """Scores by predictor, with the numbers of rows for training, choice and scores."""
        return self.run.scores()

    @property
    def kept(self) -> str:
        """Name of the chosen predictor."""
        return str(self.scores["chosen"])

    def frame(self) -> pd.DataFrame:
        """Return scores on the held-out rows, a row per predictor."""
        import pandas as pd

        return pd.DataFrame.from_dict(self.document["predictors"], orient="index")

    def findings(self) -> Mapping[str, Any]:
        return {**super().findings(), **self.scores}

    def shown(self) -> list[Part]:
        from slotool.predictors.labels import Setting

        predictors, rows = self.scores["predictors"], self.scores["rows"]
        kinds = ", ".join(f"{kind['n']} {name}" for name, kind in predictors[self.kept]["by_kind"].items())
        tested = counted(rows["test"], "held-out co-location" if "networks" in self.scores else "held-out network")
        title = f"On {tested} ({kinds}); trained on {rows['train']}, chosen on {rows['dev']}"
        chosen = self.model == "auto" or "," in self.model
        why = "lowest MAE on the dev set" if chosen else "as requested"
        seconds = [[name, *in_seconds(score), f"{score['dev_mae_s']:.3g}"] for name, score in predictors.items()]
        shares = [[name, *relative(score)] for name, score in predictors.items()]
        shares.append([FLOOR, *floor_relative(predictors[self.kept])])
        return [
            table(title, ["predictor", *IN_SECONDS, "dev MAE s"], seconds),
            table("Relative to the latency", ["predictor", *RELATIVE], shares),
            FLOOR_MEANS,
            f"labels: {Setting.from_document(self.scores['setting'])}",
            f"chosen: {self.kept}, {why}",
        ]


def in_seconds(score: Mapping[str, Any]) -> list[str]:
    """Return the cells of ``IN_SECONDS``."""
    floor_s = score["floor"]["mae_s"]
    return [*(f"{score[key]:.3g}" for key in ("mae_s", "label_mean_s", "label_std_s")), _or_dash(floor_s, ".3g")]


def relative(score: Mapping[str, Any]) -> list[str]:
    """Return the cells of ``RELATIVE``."""
    errors = [f"{score[key]:.1%}" for key in ("mae_over_mean", "mape")]
    within = [f"{score[key]:.0%}" for key in ("within_5_percent", "within_10_percent")]
    return [*errors, *within, _or_dash(score["spearman"], ".3f"), covers(score)]


def floor_relative(score: Mapping[str, Any]) -> list[str]:
    """Return the cells of ``RELATIVE`` for the noise floor."""
    floor = score["floor"]
    errors = [_or_dash(floor[key], ".1%") for key in ("mae_over_mean", "mape")]
    within = [_or_dash(floor[key], ".0%") for key in ("within_5_percent", "within_10_percent")]
    return [*errors, *within, "–", "–"]


def covers(score: Mapping[str, Any]) -> str:
    """Return the share of labels inside their interval, and the share that has one if not all do."""
    covered = _or_dash(score["interval_coverage"], ".0%")
    share = score.get("interval_given", 1.0)
    return covered if share == 1.0 else f"{covered} of {share:.0%}"


def _or_dash(value: float | None, form: str) -> str:
    return "–" if value is None else format(value, form)


@result
class SettingsTraining(Result):
    """Scores of one predictor in each setting that it learnt, on held-out networks."""

    run: SettingsRun = unlisted()
    out: Path | None = output("artifact", default=None)

    schema = "train-predictor-of-settings"

    @cached_property
    def scores(self) -> dict[str, Any]:
        return self.run.scores()

    @property
    def kept(self) -> str:
        """Name of the predictor."""
        return str(self.scores["chosen"])

    def frame(self) -> pd.DataFrame:
        """Return scores, a row per setting."""
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
                str(score["n"]),
                *(f"{score[name]:.1%}" for name in ("mape", "least_squares_mape", "interval_coverage")),
            ]
            for setting, score in zip(self.run.labelled.settings, self.scores["settings"], strict=True)
        ]
        noun = "kinds of networks" if self.scores["held_out"] == "kinds" else "networks"
        return [
            table(
                f"{counted(self.scores['networks'], 'network')}; errors while their {noun} were held out", titles, rows
            ),
            "least squares: of FLOPs, operators and activation elements, in log, from the same labels",
        ]


def named(setting: Any) -> str:
    """Describe a setting in a few words."""
    words = [
        setting.device,
        setting.backend,
        setting.precision,
        f"{setting.threads} thread{'s' * (setting.threads > 1)}",
    ]
    return ", ".join([*(word for word in words if word != "unknown"), f"batch {setting.batch_size}"])


def worse_than_baseline(setting: Setting, scores: Mapping[str, Any]) -> str | None:
    """Return a warning for a setting in which least squares has the smaller error, else None."""
    mape, baseline = scores["mape"], scores["least_squares_mape"]
    if mape <= baseline:
        return None
    return (
        f"{named(setting)}: DO NOT USE IT FOR THIS SETTING: it is off by {mape:.1%} on networks held out, least "
        f"squares of three numbers by {baseline:.1%}; give more labels, or train a predictor of this setting alone"
    )
