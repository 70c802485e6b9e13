"""What a campaign is to do: settings, the rows it will write, those it has already, and how long the rest may take."""

from __future__ import annotations

import os
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import psutil

from slotool.errors import AlreadyExistsError, InputError
from slotool.machine import machine_facts, machine_id
from slotool.profiling.subjects import Subject
from slotool.profiling.timer import StoppingRule

Row = Mapping[str, Any]
Key = tuple[str, str, int]

# Rough rates of one CPU core, for predicting a campaign's time only.
FLOPS_PER_SECOND = 3e10
BYTES_PER_SECOND = 1e10
SECONDS_PER_OPERATOR = 1e-5
# Building and sending a subject, journal; starting a worker.
SECONDS_PER_ITEM = {"torch": 0.005, "keras": 0.3}
SECONDS_PER_START = {"torch": 2.0, "keras": 6.0}
WARM_UP_CALLS = 4


@dataclass(frozen=True)
class Settings:
    """How to measure. ``timeout_s`` and ``memory_limit_bytes`` bound one item (default: half of available memory)."""

    backend: str = "torch"
    device: str = "cpu"
    threads: int = 1
    batch_sizes: tuple[int, ...] = (1,)
    rule: StoppingRule = field(default_factory=StoppingRule)
    timeout_s: float = 60.0
    memory_limit_bytes: int = field(default_factory=lambda: available_memory() // 2)
    seed: int = 0

    def configuration(self) -> dict[str, Any]:
        """What the numbers depend on: rows of one table share it, and a resumed campaign must have the same."""
        return {
            "backend": self.backend,
            "device": self.device,
            "threads": self.threads,
            "batch": list(self.batch_sizes),
            "runs": self.rule.runs,
            "precision": self.rule.precision,
            "max_seconds_per_item": self.rule.max_seconds,
            "machine": machine_id(),
        }

    def affinity(self) -> list[int]:
        """The cores a worker is bound to: as many as it has threads, the last ones given, as the first ones serve
        the system's interrupts. Raises ``InputError`` when fewer are given."""
        given = sorted(os.sched_getaffinity(0))
        if self.threads > len(given):
            raise InputError(f"{self.threads} threads, but only {len(given)} cores are given to this process")
        return given[-self.threads :]

    def backend_of(self, subject: Subject) -> str:
        return "elastic" if subject.elastic else self.backend


@dataclass(frozen=True)
class Item:
    """One row to be: a subject at a batch size."""

    subject: Subject
    batch_size: int

    @property
    def key(self) -> Key:
        return self.subject.name, self.subject.point, self.batch_size


@dataclass(frozen=True)
class Plan:
    """``todo``: items to measure, in order. ``resumed``: how many of the items asked for are finished.

    ``rows``: every finished row of this output, also of subjects that are no longer among the inputs.
    """

    todo: Sequence[Item]
    resumed: int
    rows: Sequence[Row]


def make_plan(subjects: Iterable[Subject], settings: Settings, finished: Iterable[Row]) -> Plan:
    """Items in an order shuffled by the seed, so that drift of the machine does not go with size.

    Raises ``InputError`` when there is no subject; ``AlreadyExistsError`` when one has changed since it was measured.
    """
    rows = {key_of(row): row for row in finished}
    items = [Item(subject, batch) for subject in subjects for batch in settings.batch_sizes]
    if not items:
        raise InputError("there is nothing to measure: the inputs hold no graph and no model")
    for item in items:
        content = rows.get(item.key, {}).get("content", item.subject.content)
        if content != item.subject.content:
            raise AlreadyExistsError(f"{item.subject.name} has changed since it was measured")
    random.Random(settings.seed).shuffle(items)
    # One worker serves one backend, so the items of each stay together.
    items.sort(key=lambda item: settings.backend_of(item.subject))
    todo = [item for item in items if item.key not in rows]
    return Plan(todo, len(items) - len(todo), list(rows.values()))


def key_of(row: Row) -> Key:
    return str(row["subject"]), str(row["point"]), int(row["batch_size"])


def predicted_seconds(items: Sequence[Item], settings: Settings) -> float:
    """A rough prediction of a campaign's time: roofline of assumed rates, start of workers, the fewest runs."""
    backends = {settings.backend_of(item.subject) for item in items}
    fits = [item for item in items if item.subject.memory_bytes(item.batch_size) <= settings.memory_limit_bytes]
    seconds = sum(SECONDS_PER_START.get(backend, SECONDS_PER_START["torch"]) for backend in backends)
    for item in fits:
        call_s = _call_seconds(item, settings.threads)
        overhead_s = SECONDS_PER_ITEM.get(settings.backend_of(item.subject), SECONDS_PER_ITEM["torch"])
        seconds += overhead_s + min(call_s * (settings.rule.runs + WARM_UP_CALLS), settings.timeout_s)
    return seconds


def _call_seconds(item: Item, threads: int) -> float:
    subject = item.subject
    compute_s = item.batch_size * subject.flops / (threads * FLOPS_PER_SECOND)
    return max(compute_s, subject.weight_bytes / BYTES_PER_SECOND) + subject.operators * SECONDS_PER_OPERATOR


def available_memory() -> int:
    """Bytes that can be taken now without swapping, within the container's limit."""
    available = psutil.virtual_memory().available
    limit = machine_facts()["memory_limit_bytes"]
    return available if limit is None else min(available, limit)
