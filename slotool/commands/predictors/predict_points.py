"""``slotool.predict_points``: T(k, β) that was not measured, predicted from measured rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.display import Part, table
from slotool.commands.outputs import writes
from slotool.commands.result import Result, output, result, unlisted
from slotool.commands.values import at_least, whole_numbers
from slotool.printable import duration
from slotool.sources import FilePath, paths_of

if TYPE_CHECKING:
    import pandas as pd

    from slotool.predictors.colocated.time_slices import Filled


@result
class PointPrediction(Result):
    """T(point, β) of model ``subject``, measured and predicted rows in one table, written to ``out``."""

    subject: str
    filled: Filled = unlisted()
    out: Path | None = output("table", default=None)

    schema = "predict-points"

    def frame(self) -> pd.DataFrame:
        """Return the latency table, a row per point and number of co-runners."""
        return self.filled.table.rows

    def findings(self) -> Mapping[str, Any]:
        return {
            **super().findings(),
            "measured_rows": self._measured,
            "predicted_rows": self.filled.predicted,
            "learnt": [effect.document() for effect in self.filled.learnt.values()],
            "left_out": self.filled.mean_errors,
        }

    def shown(self) -> list[Part]:
        shown: list[Part] = []
        if errors := self.filled.mean_errors:
            cells = [[str(e["copies"]), str(e["rows"]), e["statistic"], f"{e['mape']:.1%}"] for e in errors]
            title = f"{self.subject}: co-located points, each predicted from the others"
            shown.append(table(title, ["co-runners", "rows", "of single calls", "mean error"], cells))
        shown += [_effect(effect.document()) for effect in self.filled.learnt.values()]
        return [*shown, f"{self._measured} rows as measured, {self.filled.predicted} predicted"]

    @property
    def _measured(self) -> int:
        return len(self.filled.table) - self.filled.predicted


def numbers_of_copies(texts: Sequence[str]) -> list[int]:
    """Return the numbers in ``0,1,2`` or ``0:3``, in one text or several."""
    return whole_numbers(",".join(texts))


@command_line(
    arguments=(),
    required=("out",),
    names={"artifact": "--points"},
    values={"co_runners": numbers_of_copies},
    panels={"Operating points beside copies": ("artifact", "latency")},
)
@writes("out")
def predict_points(
    artifact: FilePath,
    latency: FilePath | Sequence[FilePath],
    co_runners: Annotated[Sequence[int], at_least(0)],
    *,
    out: FilePath | None = None,
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
) -> PointPrediction:
    """Fill in T(point, β), the latency of operating points beside β busy copies of the model.

    Measured rows stay as they are. Missing ones are predicted from the point's solo latency and from the points that
    were measured co-located. They are marked as predicted, with an interval that holds 90 % of single calls.

    Args:
        artifact: Fill in T(point, β) of this SLO-NN, supernet or family.
        latency: Its latencies, solo and a few co-located; repeatable.
        co_runners: Numbers of busy copies to predict for: 1 or 0,1,2 or 0:3.
        out: Table to write.

    Returns:
        The table (``frame()``), and the measured effect of each number of copies.

    Raises:
        ArgumentError: A number of co-runners below 0.
        InputError: The tables have no co-located row of the model, or lack the solo latency of a point.
        ArtifactError: ``artifact`` is damaged.
        TableError: A latency table cannot be read.
    """
    from slotool.elastic import load_model
    from slotool.predictors.colocated.time_slices import fill
    from slotool.tables import LatencyTable

    written = None if out is None else Path(out)
    model = load_model(str(artifact))
    counts = sorted(set(co_runners))
    filled = fill(model.name, model.points, LatencyTable.load_all(paths_of(latency)), counts, seed=seed)
    if written is not None:
        filled.table.save(written)
    return PointPrediction(model.name, filled, written)


def _effect(effect: Mapping[str, Any]) -> str:
    pause_s = effect["mean_pause_s"]
    often = (
        f"the core is away for {duration(pause_s)} after every {duration(effect['worked_s'] / effect['pauses'])}"
        if pause_s and effect["pauses"]
        else "no pause was observed"
    )
    pauses = f"with {effect['copies']} co-runners (from {effect['rows']} points): {often} of own work"
    return f"{pauses}, which takes {effect['stretch']:.3f} times as long"
