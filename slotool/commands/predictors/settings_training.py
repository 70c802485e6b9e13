"""What ``train_predictor`` finds when it learns many settings at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Part, table
from slotool.commands.measured import MeasuredNetworks
from slotool.commands.progress import Reporter
from slotool.commands.result import Result

if TYPE_CHECKING:
    import pandas as pd

    from slotool.predictors.labels import Setting
    from slotool.predictors.training.many_settings import SettingsRun


@dataclass(frozen=True, repr=False, eq=False)
class SettingsTraining(Result):
    """How well one predictor does in each setting it learnt, on networks held out. ``out``: the artifact written, if
    any."""

    run: SettingsRun
    out: Path | None = None

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
        return {"artifact": None if self.out is None else str(self.out), **self.scores}

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
            table(f"{self.scores['networks']} networks; errors while their {what} were held out", titles, rows),
            "least squares: of FLOPs, operators and activation elements, in log, from the same labels",
            *([f"wrote {self.out}"] if self.out else []),
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
    text = f"training on {len(labelled.items)} networks in {len(labelled.settings)} settings"
    with reporter.progress(text, total=FOLDS + 1) as progress:

        def finished(what: str) -> None:
            progress.say(f"{text}; {what}")
            progress.advance()

        run = train_settings(labelled, seed, finished)
    if out is not None:
        config = {**source.config(), "model": run.trained.predictor.name, **source.rows}
        run.save(out, config=config, seed=seed, force=force)
    return SettingsTraining(run, out)
