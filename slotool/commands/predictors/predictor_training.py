"""Results of ``slotool.train_predictor``: scores of each predictor on held-out networks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Column, Part, records_table
from slotool.commands.result import Result, output, result, unlisted
from slotool.printable import counted

if TYPE_CHECKING:
    import pandas as pd

    from slotool.predictors.labels import Setting
    from slotool.predictors.training.many_settings import SettingsRun
    from slotool.predictors.training.one_setting import TrainingRun

IN_SECONDS = (
    *(Column("mae_s", "MAE s", ".3g"), Column("label_mean_s", "label mean s", ".3g")),
    *(Column("label_std_s", "label deviation s", ".3g"), Column("floor_s", "floor s", ".3g")),
)
RELATIVE = (
    *(Column("mae_over_mean", "MAE/mean", ".1%"), Column("mape", "MAPE", ".1%")),
    *(Column("within_5_percent", "±5 %", ".0%"), Column("within_10_percent", "±10 %", ".0%")),
    *(Column("spearman", "Spearman", ".3f"), Column("interval_given", "interval", ".0%")),
    Column("interval_coverage", "inside it", ".0%"),
)
_BY_SETTING = (
    *(Column("setting"), Column("n", "labels"), Column("mape", "MAPE", ".1%")),
    *(Column("least_squares_mape", "least squares", ".1%"), Column("interval_coverage", "interval covers", ".1%")),
)
FLOOR = "noise floor"
MEANINGS = (
    "interval: share of networks with a 90 % interval; inside it: share of these with their label in it, 90 % if exact",
    f"{FLOOR}: about what a perfect predictor would score, as labels are noisy measurements",
)


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

        predictors, used = self.scores["predictors"], self.scores["rows"]
        kinds = ", ".join(f"{kind['n']} {name}" for name, kind in predictors[self.kept]["by_kind"].items())
        colocated = "networks" in self.scores
        tested = counted(used["test"], "held-out co-location" if colocated else "held-out network")
        title = f"On {tested} ({kinds}); trained on {used['train']}, chosen on {used['dev']}"
        chosen = self.model == "auto" or "," in self.model
        why = "lowest MAE on the dev set" if chosen else "as requested"
        rows, predictor = [scored(*item) for item in predictors.items()], Column("name", "predictor")
        floor = noise_floor(predictors[self.kept])
        return [
            records_table(title, rows, [predictor, *IN_SECONDS, Column("dev_mae_s", "dev MAE s", ".3g")]),
            records_table("Relative to the latency", [*rows, floor], [predictor, *RELATIVE]),
            *MEANINGS,
            f"labels: {Setting.from_document(self.scores['setting'])}",
            f"chosen: {self.kept}, {why}" + ("" if colocated else "; only its intervals are calibrated, and scored"),
        ]


def scored(name: str, score: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of ``IN_SECONDS`` and ``RELATIVE``."""
    return {
        **score,
        "name": name,
        "floor_s": score["floor"]["mae_s"],
        "interval_given": score["interval_given"] or None,
    }


def noise_floor(score: Mapping[str, Any]) -> dict[str, Any]:
    """Return the row of ``RELATIVE`` for the noise floor."""
    return {**score["floor"], "name": FLOOR, **dict.fromkeys(("spearman", "interval_given", "interval_coverage"))}


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
        scores = zip(self.run.labelled.settings, self.scores["settings"], strict=True)
        rows = [{**score, "setting": named(setting)} for setting, score in scores]
        networks = counted(self.scores["networks"], "network")
        noun = "kinds of networks" if self.scores["held_out"] == "kinds" else "networks"
        return [
            records_table(f"{networks}; errors while their {noun} were held out", rows, _BY_SETTING),
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
