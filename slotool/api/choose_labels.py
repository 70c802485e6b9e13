"""``slotool.choose_labels``: which answered requests are worth a label."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.api.display import Part
from slotool.api.inputs import FilePath, loaded
from slotool.api.outputs import writes
from slotool.api.result import Result
from slotool.errors import ArgumentError

if TYPE_CHECKING:
    import pandas as pd

    from slotool.rules import RuleSet
    from slotool.tables import OutcomeTable


@writes("out")
def choose_labels(
    rules: FilePath | RuleSet,
    answers: FilePath | OutcomeTable,
    out: FilePath | None = None,
    *,
    labels: int | None = None,
    seed: int = 0,
    force: bool = False,
) -> LabelsChosen:
    """Name the answered requests whose label tells something about the guarantees of rules.

    Where every ensemble answers as the best version does, its error is the best version's, whatever the truth: such a
    request counts in ``evaluate_drift`` and ``gen_rules`` without a label, with the error of every version 0.

    Args:
        rules: Rules, or their file.
        answers: Answers of all versions that the rules consult: an outcome table, whose errors are not looked at, or a
            file (CSV or Parquet) of example, version, answer, confidence and the columns that the rules know.
        out: CSV file to write: example; order, its place in the random order; differs, the number of ensembles that
            answer otherwise, 0: needs no label; and truth, empty, to be filled in for ``evaluate_drift``.
        labels: How many labels there may be; None: as many as are useful.
        seed: Of the random order in which requests are taken, which keeps them a random sample.
        force: Replace ``out`` if it exists.

    Returns:
        ``differs``, a frame of ``out``'s rows; ``labels``, how many of them need one.

    Raises:
        ArgumentError: ``labels`` is below 1.
        InputError: The rules cannot be read, or the answers lack a version that they consult.
        TableError: The answers cannot be read, or lack the column of the rules' groups.
        AlreadyExistsError: ``out`` exists.
    """
    import pandas as pd

    from slotool.artifacts.bundle import refuse_existing
    from slotool.atomic import whole_file
    from slotool.rules import RuleSet
    from slotool.rules.labelling import ensembles_that_differ, sample_to_label
    from slotool.tables import OutcomeTable
    from slotool.tables.importing import read_answers

    if labels is not None and labels < 1:
        raise ArgumentError("labels", "must be 1 or more")
    if out is not None:
        refuse_existing(Path(out), force)
    given = answers if isinstance(answers, OutcomeTable) else read_answers(Path(answers))
    certified = loaded(RuleSet, rules)
    if (group := certified.config.get("group")) is not None:
        given.text(group)  # before labels are paid for
    differ = ensembles_that_differ(certified, given)
    taken = sample_to_label(differ, labels, seed)
    rows = pd.DataFrame({"example": [given.examples[at] for at in taken], "differs": differ[taken]})
    if out is not None:
        written = rows.assign(order=range(1, len(rows) + 1), truth="")
        with whole_file(Path(out), replace=force) as partial:
            written[["example", "order", "differs", "truth"]].to_csv(partial, index=False)
    return LabelsChosen(rows, len(differ), int((differ > 0).sum()), None if out is None else Path(out))


@dataclass(frozen=True, repr=False, eq=False)
class LabelsChosen(Result):
    """``differs``: a row per request taken, in random order; ``requests``: all there are; ``differ``: how many of
    them some ensemble answers otherwise than the best version."""

    differs: pd.DataFrame
    requests: int
    differ: int
    out: Path | None = None

    schema = "choose-labels"

    @property
    def labels(self) -> int:
        """How many requests to label."""
        return int((self.differs["differs"] > 0).sum())

    def findings(self) -> dict[str, Any]:
        free = len(self.differs) - self.labels
        out = None if self.out is None else str(self.out)
        return {"out": out, "requests": self.requests, "differ": self.differ, "labels": self.labels, "free": free}

    def shown(self) -> list[Part]:
        taken = len(self.differs)
        written = [] if self.out is None else [f"wrote {self.out}"]
        otherwise = f"{self.differ:,} of {self.requests:,} requests"
        return [
            f"some tier answers {otherwise} otherwise than the best version",
            f"label {self.labels:,}; with them {taken - self.labels:,} more requests count, whatever their truth",
            *written,
        ]
