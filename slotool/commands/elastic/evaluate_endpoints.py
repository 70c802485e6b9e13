"""``slotool.evaluate_endpoints``: the outcome table of live services."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.display import Column
from slotool.commands.outputs import writes
from slotool.commands.result import Result, listed, output, result, unlisted
from slotool.commands.values import above, at_least
from slotool.errors import ArgumentError
from slotool.printable import duration, name_list
from slotool.progress import Reporter, Reporting, reporter_of
from slotool.sources import FilePath

if TYPE_CHECKING:
    from slotool.data import DataSource
    from slotool.data.options import ImageOptions
    from slotool.elastic.family import Family
    from slotool.tables import OutcomeTable


@command_line(
    arguments=(),
    required=("out",),
    names={"endpoints": "--endpoint"},
    metavars={"endpoints": "NAME=URL"},
    python_only=("task", "confidence", "inputs", "images"),
    panels={
        "For live services": (
            *("endpoints", "output", "scores", "prices", "budget", "max_requests", "rate", "concurrency"),
        ),
    },
)
@writes("out", resumes=True)
def evaluate_endpoints(
    endpoints: Mapping[str, str],
    data: str | DataSource,
    out: FilePath,
    *,
    prices: FilePath | Mapping[str, float] | None = None,
    budget: Annotated[float, above(0)] | None = None,
    max_requests: Annotated[int, above(0)] | None = None,
    rate: Annotated[float, above(0)] | None = None,
    concurrency: Annotated[int, at_least(1)] = 1,
    split: str = "all",
    limit: Annotated[int, at_least(1)] | None = None,
    task: str = "classification",
    output: str | None = None,
    scores: str | None = None,
    confidence: str | None = None,
    inputs: Mapping[str, str] | None = None,
    images: ImageOptions | None = None,
    force: bool = False,
    progress: Reporting = "auto",
) -> EndpointEvaluation:
    """Send labelled examples to live services, and make the outcome table of their answers.

    A journal beside ``out`` stores each answer. The same call again sends only examples that lack an answer: after an
    interruption, with larger limits, or where calls failed. A missing answer counts as wrong, with the lowest
    confidence.

    Args:
        endpoints: Service, as for ``family``; repeatable. In Python the URL of each version by its name:
            ``http://host/v2/models/NAME`` or ``grpc://host/NAME``.
        data: Labelled examples.
        out: File for the outcome table (Parquet).
        prices: Price list, as for ``import_outcomes``. In Python also prices of a call by version.
        budget: Maximum cost of all calls, with ``prices``, including earlier runs.
        max_requests: Maximum number of calls, including earlier runs.
        rate: Calls per second to each service; None: as fast as answers come.
        concurrency: Calls at the same time, to all services together.
        split: ``"all"``, ``"train"``, ``"validation"`` or ``"test"``.
        limit: Use only this many examples, the first ones.
        task: Task, as for ``family``.
        output: Output tensor with the answers.
        scores: Content of this output: logits, probabilities or labels.
        confidence: Output tensor with the confidence, as for ``family``.
        inputs: Tensor by column of the data set, where names differ.
        images: Conversion of images to tensors.
        force: Send all examples again, and replace ``out``.

    Returns:
        ``outcomes``, the table of the examples that all services received; ``frame()`` has a row per version.

    Raises:
        InputError: Services and data do not fit each other, or the limits allow no example.
        RunError: A service gave no answer many times in a row; earlier answers are in the journal.
        AlreadyExistsError: ``out`` exists without a journal, or with that of another evaluation.
    """
    if data is None:
        raise ArgumentError("data", "live services need labelled examples to answer")
    from slotool.artifacts.bundle import refuse_existing
    from slotool.elastic.model import identities
    from slotool.journal import Journal
    from slotool.profiling.live_answers import LiveAnswers, limits_of, opened_services

    reporter = reporter_of(progress)
    limits, currency = limits_of(endpoints, prices, budget, max_requests, rate, concurrency)
    target = Path(out)
    path = target.with_name(f"{target.name}.journal")
    if force or not path.exists():
        refuse_existing(target, force)
    with ExitStack() as stack:
        meaning = {"task": task, "output": output, "scores": scores, "confidence": confidence}
        family, examples, about = opened_services(endpoints, data, split, limit, meaning, inputs, images, stack)
        note_order_of_classes(family, reporter)
        journal = stack.enter_context(Journal(path, {**about, "endpoints": dict(endpoints), **meaning}, force))
        answers = LiveAnswers(family, examples, journal, limits)
        text = f"asking {', '.join(endpoints)}"
        with reporter.progress(text, total=len(examples) * len(endpoints)) as steps:
            steps.advance(answers.answered)
            answers.ask(steps.advance)
        provenance = {"kind": "endpoints", "endpoints": dict(endpoints), "models": identities(family), **about}
        outcomes = answers.table(provenance | ({"currency": currency} if currency else {}))
        outcomes.save(target)
        if answers.answered == len(examples) * len(endpoints):
            journal.remove()
    return EndpointEvaluation(
        outcomes, target, len(examples), answers.requests, answers.spent, answers.is_limited, answers.failures
    )


def note_order_of_classes(family: Family, reporter: Reporter) -> None:
    """State the order in which scores are taken as those of named classes, if no version names its own."""
    if not family.names_classes and not all(name.isdigit() for name in family.labels):
        reporter.note(
            f"the models name no classes: their scores are taken in the order {name_list(family.labels, 6)}; for "
            "another order, label the examples by numbers of classes, from 0 on"
        )


@result
class EndpointEvaluation(Result):
    """Table ``outcomes`` of the examples that all services received, of ``asked_for`` in all.

    ``requests`` and ``spent``: number and price of all calls. ``is_limited``: True if limits ended the run.
    ``failures``: reason of the first missing answer, by version.
    """

    outcomes: OutcomeTable = unlisted()
    out: Path = output("outcomes")
    asked_for: int = listed("examples_asked_for")
    requests: int
    spent: float
    is_limited: bool = listed("limited")
    failures: dict[str, str]

    schema = "evaluate-endpoints"
    rows_key = "versions"
    columns = (
        Column("version"),
        Column("error", form=".4f"),
        Column("confidence", form=".3f"),
        Column("median_latency_s", "median latency", duration),
    )

    @property
    def missing(self) -> int:
        """Number of missing answers in the table."""
        return int(self.outcomes.provenance["missing_answers"])

    @property
    def currency(self) -> str:
        """Currency of ``spent``, or an empty text."""
        return str(self.outcomes.provenance.get("currency", ""))

    def findings(self) -> dict[str, Any]:
        return {
            **super().findings(),
            **{name: self.outcomes.provenance[name] for name in ("data", "split")},
            "examples": len(self.outcomes.examples),
            "currency": self.currency,
            "missing_answers": self.missing,
        }

    def records(self) -> list[dict[str, Any]]:
        rows = self.outcomes.rows.groupby("version", sort=False)
        means = rows[["error", "confidence", "cost"]].mean()
        means["median_latency_s"] = rows["latency_s"].median()
        records: Any = means.reset_index().to_dict("records")
        return list(records)

    @property
    def title(self) -> str:
        spent = f" for {self.spent:g} {self.currency}".rstrip() if self.spent else ""
        return f"{len(self.outcomes.examples):,} of {self.asked_for:,} examples, {self.requests:,} requests{spent}"

    @property
    def notes(self) -> list[str]:
        notes = [f"version {name}: answers are missing, the first as {why}" for name, why in self.failures.items()]
        if self.is_limited:
            notes.append("the limits ended it; the same command with larger ones goes on from here")
        elif self.failures:
            notes.append("the same command asks again for what is missing")
        return notes
