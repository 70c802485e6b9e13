"""Plan of a campaign: settings, the rows it will write, those it has already, and how long the rest may take."""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations, combinations_with_replacement
from typing import Any

from slotool.errors import AlreadyExistsError, InputError
from slotool.machine import machine_id, usable_memory
from slotool.process import cores_by_preference
from slotool.profiling.backends import backend_class
from slotool.profiling.out_of_memory import OUT_OF_MEMORY
from slotool.profiling.rows import Key, Row, by_key
from slotool.profiling.subjects import Subject
from slotool.timing.timer import StoppingRule

# Rough rates of one CPU core, and of a device, for predicting a campaign's time only.
FLOPS_PER_SECOND = 3e10
BYTES_PER_SECOND = 1e10
DEVICE_FLOPS_PER_SECOND = 1e13
DEVICE_BYTES_PER_SECOND = 1e12
SECONDS_PER_OPERATOR = 1e-5
# Building and sending a subject, journal; starting a worker.
SECONDS_PER_ITEM = {"torch": 0.005, "keras": 0.3, "onnx": 0.02, "onnx-int8": 0.5, "torch-compile": 20.0}
SECONDS_PER_START = {"torch": 2.0, "keras": 6.0, "onnx": 1.0, "onnx-int8": 3.0}
WARM_UP_CALLS = 2
# What ran out of memory is tried again when so many times the memory is there: free memory is never twice the same.
GROWN_LIMIT = 1.1
PLACEMENTS = ("shared", "split")
# How co-runners share a device: a process each, or streams of one process.
PROCESSES, STREAMS = SHARINGS = ("processes", "streams")
# On a device an item takes more than its weights and outputs: kernels want space to work in, and the area that weights
# lie in grows by a quarter more than is needed; each process beyond the first has a context of its own.
DEVICE_SLACK = 1.3
CONTEXT_BYTES = 512 << 20


@dataclass(frozen=True)
class Settings:
    """Settings of a campaign.

    ``timeout_s`` and ``memory_limit_bytes`` bound one item (default: half of available memory). ``rule`` is kept over
    all ``rounds`` of an item. Between two rounds of an item all other items are measured, so a slow minute of the
    machine spoils one round at most. ``placement`` assigns cores to
    co-runners: ``shared`` gives all of them the same ``threads`` cores, ``split`` gives each ``threads`` cores of its
    own. ``sharing``: co-runners have a process each, or on a device a stream each in one process. ``solo_runs``: solo
    samples of a co-runner, once before and once after each combination. ``precision``: number format; None for the
    usual one of each backend.

    ``device_name``, ``device_limit_bytes``, ``colocation`` and ``device_busy_percent`` are what ``device_probe.probed``
    found of a device: its model, the memory that an item may take there, how co-runners share it, and how busy others
    kept it.
    """

    backend: str = "torch"
    device: str = "cpu"
    threads: int = 1
    batch_sizes: tuple[int, ...] = (1,)
    rule: StoppingRule = field(default_factory=StoppingRule)
    timeout_s: float = 60.0
    memory_limit_bytes: int = field(default_factory=lambda: usable_memory() // 2)
    seed: int = 0
    rounds: int = 1
    placement: str | None = None
    solo_runs: int = 5
    sharing: str = PROCESSES
    precision: str | None = None
    device_name: str = ""
    device_limit_bytes: int | None = None
    colocation: str = ""
    device_busy_percent: float = 0.0

    @property
    def kind(self) -> str:
        """``colocated`` when co-runners have a placement, else ``solo``."""
        return "colocated" if self.placement else "solo"

    def configuration(self) -> dict[str, Any]:
        """Return what the numbers depend on: rows of one table share it, and a resumed campaign must have the same."""
        shared = {
            "kind": self.kind,
            "backend": self.backend,
            "device": self.device,
            "threads": self.threads,
            "batch": list(self.batch_sizes),
            "runs": self.rule.runs,
            "precision": self.rule.precision,
            "max_seconds_per_item": self.rule.max_seconds,
            "rounds": self.rounds,
            "cache": "warm",
            "machine": machine_id(),
        }
        shared |= {"device_name": self.device_name} if self.device_name else {}
        precision, usual = self.precision_of(self.backend), backend_class(self.backend).precisions[0]
        shared |= {"number_format": precision} if precision != usual else {}
        if not self.placement:
            return shared
        shared |= {"placement": self.placement, "solo_runs": self.solo_runs}
        return shared | ({"colocation": self.colocation} if self.colocation else {})

    @property
    def on_streams(self) -> bool:
        """True if co-runners are streams of one process."""
        return self.placement is not None and self.sharing == STREAMS

    @property
    def limit_bytes(self) -> int:
        """Bytes that one item may take: of the device's memory, where that is known, else of the host's."""
        return self.memory_limit_bytes if self.device_limit_bytes is None else self.device_limit_bytes

    def needed_bytes(self, item: Item) -> int:
        """An upper estimate of what an item takes, of the memory that ``limit_bytes`` is of."""
        if self.device_limit_bytes is None:
            return item.memory_bytes
        contexts = 1 if self.on_streams else len(item.members)
        return int(DEVICE_SLACK * item.memory_bytes) + (contexts - 1) * CONTEXT_BYTES

    def fits(self, item: Item) -> bool:
        """True if an item keeps the memory limit."""
        return self.needed_bytes(item) <= self.limit_bytes

    @property
    def round_rule(self) -> StoppingRule:
        """One round's share of ``rule``."""
        rule = self.rule
        return replace(rule, runs=math.ceil(rule.runs / self.rounds), max_seconds=rule.max_seconds / self.rounds)

    def cores_of(self, members: int = 1) -> list[list[int]]:
        """The cores each of so many co-runners is bound to: distinct physical cores first, the last ones given, as
        the first ones serve the system's interrupts. Raises ``InputError`` when there are too few."""
        given = cores_by_preference()
        needed = self.threads * (members if self.placement == "split" else 1)
        if needed > len(given):
            each = f"{members} × {self.threads}" if needed != self.threads else str(self.threads)
            raise InputError(f"{each} threads, but only {len(given)} cores are given to this process")
        if self.placement != "split":
            return [sorted(given[: self.threads])] * members
        return [sorted(given[i * self.threads : (i + 1) * self.threads]) for i in range(members)]

    def backend_of(self, subject: Subject) -> str:
        return subject.backend or self.backend

    def precision_of(self, backend: str) -> str:
        """Return the number format of a backend's rows. Raises ``InputError`` for one that it does not offer."""
        return backend_class(backend).required_precision(self.precision, self.device)


@dataclass(frozen=True)
class Item:
    """Subjects that are measured in one go and finished as one: co-located subjects at a batch size, a row each.

    ``background`` subjects run at the same time and get no row.
    """

    subjects: tuple[Subject, ...]
    batch_size: int
    background: tuple[Subject, ...] = ()

    @property
    def members(self) -> tuple[Subject, ...]:
        return (*self.subjects, *self.background)

    @property
    def keys(self) -> list[Key]:
        """One per subject, in order."""
        labels = [member.label for member in self.members]
        others = ["+".join(sorted(labels[:i] + labels[i + 1 :])) for i in range(len(self.subjects))]
        return [
            (subject.name, subject.point, self.batch_size, co_runners)
            for subject, co_runners in zip(self.subjects, others, strict=True)
        ]

    @property
    def memory_bytes(self) -> int:
        return sum(member.memory_bytes(self.batch_size) for member in self.members)


@dataclass(frozen=True)
class Plan:
    """``todo``: items to measure, in order. ``resumed``: how many of the items asked for are finished.

    ``items``: all that were asked for. ``rows``: every finished row of this output, also of subjects that are no
    longer among the inputs.
    """

    todo: Sequence[Item]
    resumed: int
    items: Sequence[Item]
    rows: Sequence[Row]


def solo_items(subjects: Iterable[Subject], settings: Settings) -> list[Item]:
    """Every subject at every batch size."""
    return [Item((subject,), batch) for subject in subjects for batch in settings.batch_sizes]


def combinations_of(
    subjects: Sequence[Subject],
    sizes: Sequence[int],
    settings: Settings,
    *,
    limit: int | None = None,
    with_itself: bool = False,
) -> list[Item]:
    """Every combination of so many different subjects, each at every batch size.

    ``limit``: only so many of each size, drawn by the seed. ``with_itself``: also with copies of a subject. Raises
    ``InputError`` for a size below 2 or above the number of subjects.
    """
    items: list[Item] = []
    chance = random.Random(settings.seed)
    for size in sizes:
        if size < 2 or (size > len(subjects) and not with_itself):
            raise InputError(f"{size} of {len(subjects)} subjects cannot be co-located; name at least {max(size, 2)}")
        found = list((combinations_with_replacement if with_itself else combinations)(subjects, size))
        if limit is not None and limit < len(found):
            found = sorted(chance.sample(found, limit), key=found.index)
        items += [Item(members, batch) for members in found for batch in settings.batch_sizes]
    return items


def points_with_copies(points: Sequence[Subject], copies: Sequence[int], settings: Settings) -> list[Item]:
    """Each operating point of one model, co-located with each number of copies of its most expensive point."""
    full = points[-1]
    return [
        Item((point,), batch, background=(full,) * count)
        for count in copies
        for point in points
        for batch in settings.batch_sizes
    ]


def make_plan(
    items: Sequence[Item],
    settings: Settings,
    finished: Iterable[Row],
    *,
    budgeted: bool = False,
    in_order: bool = False,
) -> Plan:
    """Every item once per round, each round in an order of its own shuffled by the seed, so that drift of the
    machine does not go with size; or ``in_order``, as they are.

    When time is ``budgeted`` the campaign may end after any item, so cheap ones tend to come first: see
    ``worth_first``. Raises ``InputError`` when there is no item; ``AlreadyExistsError`` when a subject has changed
    since it was measured.
    """
    rows = by_key(finished, settings.rule)
    if not items:
        raise InputError("there is nothing to measure: the inputs hold no graph and no model")
    for item in items:
        for key, subject in zip(item.keys, item.subjects, strict=True):
            if rows.get(key, {}).get("content", subject.content) != subject.content:
                raise AlreadyExistsError(f"{subject.name} has changed since it was measured")
    left = [_rounds_left(item, rows, settings) for item in items]
    chance = random.Random(settings.seed)
    todo: list[Item] = []
    for number in range(settings.rounds, 0, -1):
        due = [item for item, rounds in zip(items, left, strict=True) if rounds >= number]
        if in_order:
            todo += due
        else:
            todo += worth_first(due, settings, chance) if budgeted else chance.sample(due, len(due))
    return Plan(todo, left.count(0), items, list(rows.values()))


def _rounds_left(item: Item, rows: Mapping[Key, Row], settings: Settings) -> int:
    found = [rows.get(key) for key in item.keys]
    made = [0 if row is None or _may_do_now(row, item, settings) else _rounds_made(row, settings) for row in found]
    return max(0, settings.rounds - min(made))


def _rounds_made(row: Row, settings: Settings) -> int:
    """A row without samples is not tried again."""
    return int(row["rounds"]) if row["status"] == "ok" else settings.rounds


def _may_do_now(row: Row, item: Item, settings: Settings) -> bool:
    """True if a row has no samples for a limit that has grown since."""
    if row["status"] == "skipped":
        return settings.fits(item)
    if row["status"] == OUT_OF_MEMORY:
        return settings.limit_bytes > GROWN_LIMIT * (row.get("limit_bytes") or math.inf)
    return row["status"] == "timeout" and settings.timeout_s > (row.get("limit_s") or math.inf)


def worth_first(items: Sequence[Item], settings: Settings, chance: random.Random) -> list[Item]:
    """A random order in which an item that costs c seconds comes early in proportion to 1/√c.

    However early one stops, the items measured until then are about the sample that tells most for its cost
    (Neyman's allocation for strata of unequal cost and like relative spread): no size is left out, large ones are
    rarer. Exponential keys over weights draw such an order without replacement (Efraimidis & Spirakis).
    """
    keys = {id(item): chance.expovariate(1.0) * math.sqrt(item_seconds(item, settings)) for item in items}
    return sorted(items, key=lambda item: keys[id(item)])


def predicted_seconds(items: Sequence[Item], settings: Settings) -> float:
    """A rough prediction of a campaign's time: roofline of assumed rates, start of workers, the fewest runs."""
    fits = [item for item in items if settings.fits(item)]
    members = [member for item in items for member in item.members]
    # A worker per backend, or, with co-runners, one per subject.
    started = {member.label if settings.placement else settings.backend_of(member): member for member in members}
    starts = [settings.backend_of(member) for member in started.values()]
    seconds = sum(SECONDS_PER_START.get(backend, SECONDS_PER_START["torch"]) for backend in starts)
    return seconds + sum(item_seconds(item, settings) for item in fits)


def item_seconds(item: Item, settings: Settings) -> float:
    """A rough prediction for one item that fits."""
    calls_s = [_call_seconds(member, item.batch_size, settings) for member in item.members]
    if settings.placement:
        # On shared cores all slow each other down; the slowest decides how long they are co-located.
        colocated_s = (settings.round_rule.runs + 2) * (
            sum(calls_s) if settings.placement == "shared" else max(calls_s)
        )
        return min(colocated_s + 2 * (settings.solo_runs + 2) * sum(calls_s), settings.timeout_s)
    overhead_s = SECONDS_PER_ITEM.get(settings.backend_of(item.subjects[0]), SECONDS_PER_ITEM["torch"])
    return overhead_s + min(calls_s[0] * (settings.round_rule.runs + WARM_UP_CALLS), settings.timeout_s)


def _call_seconds(subject: Subject, batch_size: int, settings: Settings) -> float:
    flops_per_s, bytes_per_s = settings.threads * FLOPS_PER_SECOND, BYTES_PER_SECOND
    if settings.device != "cpu":
        flops_per_s, bytes_per_s = DEVICE_FLOPS_PER_SECOND, DEVICE_BYTES_PER_SECOND
    compute_s = batch_size * subject.flops / flops_per_s
    return max(compute_s, subject.weight_bytes / bytes_per_s) + subject.operators * SECONDS_PER_OPERATOR
