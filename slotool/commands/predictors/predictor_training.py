"""Scores of trained predictors, as ``slotool.train_predictor`` returns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.display import Part, table
from slotool.commands.predictors.predictor_scores import (
    FLOOR,
    FLOOR_MEANS,
    IN_SECONDS,
    RELATIVE,
    floor_relative,
    in_seconds,
    relative,
)
from slotool.commands.result import Result
from slotool.printable import counted

if TYPE_CHECKING:
    import pandas as pd

    from slotool.predictors.training.selection import TrainingRun


@dataclass(frozen=True, repr=False, eq=False)
class PredictorTraining(Result):
    """Scores of each predictor on rows held out, and the one that was kept. ``model``: those that could be kept.
    ``out``: the artifact written, if any."""

    run: TrainingRun[Any]
    model: str
    out: Path | None = None

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
        return {"artifact": None if self.out is None else str(self.out), "model": self.model, **self.scores}

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
            *([f"wrote {self.out}"] if self.out else []),
        ]
