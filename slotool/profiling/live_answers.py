"""Answers of live services to labelled examples, with a budget, a journal and a rate limit."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from slotool.data import DataSource
from slotool.data.dataset import first_examples
from slotool.data.options import DataOptions, ImageOptions
from slotool.elastic.evaluation import true_answers
from slotool.elastic.family import Family
from slotool.elastic.labelled_data import labelled_data
from slotool.elastic.model import version_name
from slotool.elastic.versions import common_signature, open_versions, some_inputs
from slotool.errors import ArgumentError, InputError, RunError, SlotoolError
from slotool.journal import Journal
from slotool.models import Classification
from slotool.models.signature import FREE
from slotool.models.tasks import make_task, scores_held
from slotool.printable import reason
from slotool.tables import OperatingPoint, OutcomeTable
from slotool.tables.importing import less_sure, prices_of
from slotool.tables.outcomes import ANSWER

# Calls of one service without an answer, in a row, after which the run ends.
MAX_FAILURES = 10
# Number of answers that tell logits from probabilities: one row of probabilities may be one of logits.
LOOKED_AT = 8
MISSING_ERROR = 1.0
# Label of an answer that is no class.
NO_CLASS = "none of the classes"


@dataclass(frozen=True)
class CallLimits:
    """Limits of calls: ``prices`` of a call by version, empty if unknown; ``budget``: maximum price of all.

    ``requests``: maximum number. ``rate``: calls of one service per second. ``concurrency``: calls at the same time.
    """

    prices: Mapping[str, float]
    budget: float = math.inf
    requests: float = math.inf
    rate: float = math.inf
    concurrency: int = 1

    def allow(self, requests: int, spent: float) -> bool:
        """True if this number of calls, and their price, keep the limits."""
        return requests <= self.requests and spent <= self.budget * (1 + 1e-9)

    def price(self, versions: list[str]) -> float:
        """Return the price of calls of these versions."""
        return math.fsum(self.prices.get(version, 0.0) for version in versions)


class LiveAnswers:
    """Client that sends examples of ``split`` without an answer in ``journal`` to all versions of ``family``.

    Each answer is added to the journal at once. Failed calls are added too: they count, and are repeated by the next
    run. An example begins only if the limits allow all of its calls.
    """

    def __init__(self, family: Family, split: Any, journal: Journal, limits: CallLimits):
        self._family, self._split, self._journal, self._limits = family, split, journal, limits
        self._truth = true_answers(family, split.y)
        self._versions = {version_name(point): point for point in family.points}
        # Number of all calls, and their price.
        self.requests = len(journal.rows)
        self.spent = limits.price([str(row["version"]) for row in journal.rows])
        self._in_a_row = dict.fromkeys(self._versions, 0)
        self._scores: dict[str, list[np.ndarray]] = {version: [] for version in self._versions}
        self._free_s = dict.fromkeys(self._versions, 0.0)
        # True if limits ended the run.
        self.is_limited = False

    @property
    def rows(self) -> dict[tuple[int, str], Mapping[str, Any]]:
        """Rows of the last call of each example and version."""
        return {(int(row["example"]), str(row["version"])): row for row in self._journal.rows}

    @property
    def failures(self) -> dict[str, str]:
        """Reason of the first missing answer of each version."""
        reasons: dict[str, str] = {}
        for (_, version), row in self.rows.items():
            if row["status"] != "ok":
                reasons.setdefault(version, str(row["reason"]))
        return reasons

    @property
    def answered(self) -> int:
        """Number of answers."""
        return sum(row["status"] == "ok" for row in self.rows.values())

    def ask(self, advance: Callable[[], None]) -> None:
        """Send all calls without an answer, until the limits end it (``is_limited``); ``advance``: after each call.

        Raises ``RunError`` if a service gives no answer ``MAX_FAILURES`` times in a row.
        """
        pending: set[Future[dict[str, Any]]] = set()
        with ThreadPoolExecutor(self._limits.concurrency, thread_name_prefix="slotool-ask") as pool:
            try:
                for example, version in self._due():
                    self._pause(version)
                    pending.add(pool.submit(self._call, example, version))
                    if len(pending) == self._limits.concurrency:
                        pending = self._keep(pending, advance)
                while pending:
                    pending = self._keep(pending, advance)
            finally:
                # After an interruption too: calls that were sent are paid for.
                answers = [call.result() for call in pending]
                if answers:
                    self._journal.append(*answers)

    def table(self, provenance: Mapping[str, Any]) -> OutcomeTable:
        """Return the table of examples that every version received. Raises ``InputError`` if there is none."""
        rows = self.rows
        whole = [i for i in range(len(self._split)) if all((i, version) in rows for version in self._versions)]
        if not whole:
            all_of_one = self._limits.price([*self._versions])
            price = f", which cost {all_of_one:g}" if self._limits.prices else ""
            raise InputError(
                f"the limits leave no example that every version was asked for: one takes {len(self._versions)} "
                f"requests{price}; raise --budget or --max-requests"
            )
        parts = [self._part(version, [rows[i, version] for i in whole]) for version in self._versions]
        table = pd.concat(parts, ignore_index=True)
        missing = table["confidence"].isna().to_numpy()
        table["confidence"] = less_sure(table["confidence"].to_numpy(dtype=np.float64), missing)
        return OutcomeTable(table, {**provenance, "missing_answers": int(missing.sum()), "examples": len(whole)})

    def _part(self, version: str, rows: list[Mapping[str, Any]]) -> pd.DataFrame:
        """Return the rows of one version; missing answers have no confidence."""
        columns: dict[str, Any] = {"example": [str(row["example"]) for row in rows], "version": version}
        columns["error"] = [float(row.get("error", MISSING_ERROR)) for row in rows]
        columns["confidence"] = [float(row.get("confidence", np.nan)) for row in rows]
        columns["latency_s"] = [float(row["latency_s"]) for row in rows]
        if self._limits.prices:
            columns["cost"] = self._limits.prices[version]
        if isinstance(self._family.task, Classification):
            columns[ANSWER] = [str(row.get(ANSWER, "")) for row in rows]
        return pd.DataFrame(columns)

    def _due(self) -> Iterator[tuple[int, str]]:
        """Yield the calls to make; all calls of an example count when its first one begins."""
        rows = self.rows
        answered = {key for key, row in rows.items() if row["status"] == "ok"}
        # Calls that failed before come last, as they may fail again.
        for failed_before in (False, True):
            for example in range(len(self._split)):
                calls = [v for v in self._versions if (example, v) not in answered]
                calls = [v for v in calls if ((example, v) in rows) is failed_before]
                requests, spent = self.requests + len(calls), self.spent + self._limits.price(calls)
                if not self._limits.allow(requests, spent):
                    self.is_limited = True
                    return
                self.requests, self.spent = requests, spent
                yield from ((example, version) for version in calls)

    def _pause(self, version: str) -> None:
        """Wait until the service may be called again."""
        now_s = time.monotonic()
        begin_s = max(now_s, self._free_s[version])
        self._free_s[version] = begin_s + 1 / self._limits.rate
        time.sleep(begin_s - now_s)

    def _call(self, example: int, version: str) -> dict[str, Any]:
        """Call a version; return the journal's row."""
        point = self._versions[version]
        row: dict[str, Any] = {"example": example, "version": version, "status": "ok"}
        began_s = time.perf_counter()
        try:
            outputs = self._family.respond(self._split.x[example : example + 1], point)
        except SlotoolError as error:
            took_s = time.perf_counter() - began_s
            return {**row, "status": "failed", "latency_s": took_s, "reason": reason(error)}
        row["latency_s"] = time.perf_counter() - began_s
        try:
            return {**row, **self._judged(outputs, example, point)}
        except (InputError, IndexError) as error:
            return {**row, "status": "failed", "reason": f"its answer cannot be used: {reason(error)}"}

    def _judged(self, outputs: Mapping[str, np.ndarray], example: int, point: OperatingPoint) -> dict[str, Any]:
        """Return error, confidence and, for classification, the label. Raises ``InputError`` for an unusable answer."""
        family = self._family
        _require_shapes(family, outputs)
        # An overflow appears in the confidence.
        with np.errstate(invalid="ignore", over="ignore"):
            error = float(family.errors(outputs, self._truth[example : example + 1])[0])
            confidences = family.confidences_of(outputs)
        sure = 1.0 if confidences is None else float(confidences[0])
        if not (math.isfinite(sure) and math.isfinite(error)):
            raise InputError(f"confidence {sure} and error {error} are no numbers")
        if not isinstance(family.task, Classification):
            return {"error": error, "confidence": sure}
        self._scores[version_name(point)].append(outputs[family.task.output])
        label = int(family.answers(outputs)[0])
        return {"error": error, "confidence": sure, ANSWER: NO_CLASS if label < 0 else family.labels[label]}

    def _keep(self, pending: set[Future[dict[str, Any]]], advance: Callable[[], None]) -> set[Future[dict[str, Any]]]:
        """Add finished calls, at least one, to the journal; return the others."""
        done, others = wait(pending, return_when=FIRST_COMPLETED)
        answers = [call.result() for call in done]
        self._journal.append(*answers)
        pending.difference_update(done)
        for row in answers:
            advance()
            version = str(row["version"])
            self._in_a_row[version] = 0 if row["status"] == "ok" else self._in_a_row[version] + 1
            self._require_logits(version)
            if self._in_a_row[version] >= MAX_FAILURES:
                raise RunError(
                    f"version {version} gave no answer {MAX_FAILURES} times in a row, at last: {row['reason']}; "
                    "what was answered is kept, and the same command goes on from there"
                )
        return others

    def _require_logits(self, version: str) -> None:
        """Raise ``InputError`` if ``LOOKED_AT`` answers of a version are probabilities and are read as logits."""
        task, scores = self._family.task, self._scores[version]
        if not isinstance(task, Classification) or task.scores != "logits" or len(scores) < LOOKED_AT:
            return
        if scores_held(task, {task.output: np.concatenate(scores[:LOOKED_AT])}) != "logits":
            raise InputError(
                f"output {task.output} of version {version} is read as logits and holds probabilities: {LOOKED_AT} "
                "answers lie in [0, 1] and sum to 1; give --scores probabilities, and --force to begin again"
            )
        self._scores[version] = scores[:0]


def _require_shapes(family: Family, outputs: Mapping[str, np.ndarray]) -> None:
    """Raise ``InputError`` for an output whose shape does not fit one example, or the number of classes."""
    task = family.task
    for spec in family.signature.outputs:
        if spec.name not in outputs:
            continue
        expected = [1, *spec.shape[1:]]
        if isinstance(task, Classification) and task.scores != "labels" and spec.name == task.output:
            expected = [1, family.classes]
        shape = list(outputs[spec.name].shape)
        if len(shape) != len(expected) or any(
            size not in (FREE, length) for size, length in zip(expected, shape, strict=True)
        ):
            raise InputError(f"output {spec.name} has shape {shape}, expected {expected} for one example")


def opened_services(
    endpoints: Mapping[str, str],
    data: str | DataSource,
    split: str,
    limit: int | None,
    meaning: Mapping[str, str | None],
    inputs: Mapping[str, str] | None,
    images: ImageOptions | None,
    stack: ExitStack,
) -> tuple[Family, Any, dict[str, Any]]:
    """Return the services as one family, the examples to send, and facts that identify this evaluation."""
    opened = open_versions(dict(endpoints), 1)
    for _, model in opened:
        stack.callback(model.close)
    signature = common_signature([(version.name, model) for version, model in opened])
    task = make_task(
        signature,
        str(meaning["task"]),
        output=meaning["output"],
        scores=meaning["scores"],
        confidence_output=meaning["confidence"],
    )
    options: DataOptions
    dataset, options, _ = labelled_data(opened, task, data, inputs, images)
    examples = first_examples(dataset.examples(split), limit)
    if not len(examples):
        raise InputError(f"{dataset.name} has no example in {split}")
    family = Family("endpoints", opened, task, dataset.labels, some_inputs(examples.x), reading=options)
    return family, examples, {"data": dataset.name, "split": split, "asked_for": len(examples)}


def limits_of(
    endpoints: Mapping[str, str],
    prices: str | Path | Mapping[str, float] | None,
    budget: float | None,
    max_requests: int | None,
    rate: float | None,
    concurrency: int,
) -> tuple[CallLimits, str]:
    """Return the limits of calls to services, and the currency or "". Raises ``ArgumentError`` for invalid limits."""
    if not endpoints:
        raise ArgumentError("endpoints", "services by name are expected, one at least")
    for name, url in endpoints.items():
        if "://" not in url:
            raise ArgumentError(
                "endpoints", f"{name}: {url!r} is no URL; expected http://host/v2/models/NAME or grpc://host/NAME"
            )
    by_call, currency = prices_of(prices)
    if by_call and (unpriced := [name for name in endpoints if name not in by_call]):
        raise ArgumentError("prices", f"version {unpriced[0]!r} has none; there are prices of {', '.join(by_call)}")
    if budget is not None and not by_call:
        raise ArgumentError("budget", "needs prices, without which nobody knows what a call costs")
    charged = {name: by_call[name] for name in endpoints if by_call}
    return CallLimits(charged, budget or math.inf, max_requests or math.inf, rate or math.inf, concurrency), currency
