"""Plan of a campaign: settings, items to measure, finished rows, and predicted time."""

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
# Seconds to build and send a subject and to write the journal; and to start a worker.
SECONDS_PER_ITEM = {"torch": 0.005, "keras": 0.3, "onnx": 0.02, "onnx-int8": 0.5, "torch-compile": 20.0}
SECONDS_PER_START = {"torch": 2.0, "keras": 6.0, "onnx": 1.0, "onnx-int8": 3.0}
WARM_UP_CALLS = 2
# Minimum co-located time: long enough to contain several time slices of the scheduler, which are some milliseconds. And
# minimum solo time, in which caches and clock of the core become what they are in co-located calls.
MIN_COLOCATED_S, MIN_SOLO_S = 0.5, 0.05
# Growth of free memory, which always varies, from which items that ran out of memory are tried again.
GROWN_LIMIT = 1.1
PLACEMENTS = ("shared", "split")
# Ways in which co-runners share a device: a process each, or streams of one process.
PROCESSES, STREAMS = SHARINGS = ("processes", "streams")
# On a device an item takes more than its weights and outputs: kernels need work space, the buffer of weights is up to a
# quarter larger, and each process beyond the first has a context.
DEVICE_SLACK = 1.3
CONTEXT_BYTES = 512 << 20


@dataclass(frozen=True)
class Settings:
    """Settings of a campaign.

    ``timeout_s`` and ``memory_limit_bytes`` bound one item (default: half of available memory). ``rule`` holds for all
    ``rounds`` of an item together. Between two rounds of an item all other items are measured, so a slow minute of the
    machine spoils at most one round. ``placement`` of co-runners: ``shared`` gives all of them the same ``threads``
    cores, ``split`` gives each its own. ``sharing``: co-runners have a process each, or on a device a stream each in
    one process. ``solo_runs``: solo samples of a co-runner, before and again after each combination. ``precision``:
    number format; None for the usual one of each backend.

    ``campaign.probed`` sets ``device_name``, ``device_limit_bytes`` (memory for an item), ``colocation`` (the way in
    which co-runners share the device) and ``device_busy_percent`` (its use by others).
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
        """Kind of the campaign: ``colocated`` if co-runners have a placement, else ``solo``."""
        return "colocated" if self.placement else "solo"

    def configuration(self) -> dict[str, Any]:
        """Return the settings that numbers depend on, which all rows of a table share."""
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
        """Bytes that one item may take, of the device's memory if known, else of the host's."""
        return self.memory_limit_bytes if self.device_limit_bytes is None else self.device_limit_bytes

    def needed_bytes(self, item: Item) -> int:
        """Return an upper estimate of the memory of an item, to compare with ``limit_bytes``."""
        if self.device_limit_bytes is None:
            return item.memory_bytes
        contexts = 1 if self.on_streams else len(item.members)
        return int(DEVICE_SLACK * item.memory_bytes) + (contexts - 1) * CONTEXT_BYTES

    def fits(self, item: Item) -> bool:
        return self.needed_bytes(item) <= self.limit_bytes

    @property
    def round_rule(self) -> StoppingRule:
        """One round's share of ``rule``."""
        rule = self.rule
        return replace(rule, runs=math.ceil(rule.runs / self.rounds), max_seconds=rule.max_seconds / self.rounds)

    def cores_of(self, members: int = 1) -> list[list[int]]:
        """Return the cores of each of ``members`` co-runners. Raises ``InputError`` if there are too few.

        Distinct physical cores come first, from the last one down, as the first ones serve interrupts.
        """
        cores = cores_by_preference()
        needed = self.threads * (members if self.placement == "split" else 1)
        if needed > len(cores):
            each = f"{members} × {self.threads}" if needed != self.threads else str(self.threads)
            raise InputError(f"{each} threads, but only {len(cores)} cores are given to this process")
        if self.placement != "split":
            return [sorted(cores[: self.threads])] * members
        return [sorted(cores[i * self.threads : (i + 1) * self.threads]) for i in range(members)]

    def backend_of(self, subject: Subject) -> str:
        return subject.backend or self.backend

    def precision_of(self, backend: str) -> str:
        """Return the number format of a backend's rows. Raises ``InputError`` for one that it does not offer."""
        return backend_class(backend).required_precision(self.precision, self.device)


@dataclass(frozen=True)
class Item:
    """Subjects that are measured together at a batch size, a row each; ``background`` subjects get no row."""

    subjects: tuple[Subject, ...]
    batch_size: int
    background: tuple[Subject, ...] = ()

    @property
    def members(self) -> tuple[Subject, ...]:
        return (*self.subjects, *self.background)

    @property
    def keys(self) -> list[Key]:
        """Keys of the rows, one for each subject, in order."""
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
    """Plan of a campaign: ``todo``, items to measure, in order; ``resumed``: number of finished items.

    ``items``: all items of this call. ``rows``: all finished rows of the output, also of subjects that are no longer
    among the inputs.
    """

    todo: Sequence[Item]
    resumed: int
    items: Sequence[Item]
    rows: Sequence[Row]


def solo_items(subjects: Iterable[Subject], settings: Settings) -> list[Item]:
    """Return an item for every subject and batch size."""
    return [Item((subject,), batch) for subject in subjects for batch in settings.batch_sizes]


def combinations_of(
    subjects: Sequence[Subject],
    sizes: Sequence[int],
    settings: Settings,
    *,
    limit: int | None = None,
    with_itself: bool = False,
) -> list[Item]:
    """Return an item for every combination of subjects of these sizes, and every batch size.

    ``limit``: number of combinations of each size, drawn by the seed. ``with_itself``: also with copies of a subject.
    Raises ``InputError`` for a size below 2 or above the number of subjects.
    """
    items: list[Item] = []
    chance = random.Random(settings.seed)
    for size in sizes:
        if size < 2 or (size > len(subjects) and not with_itself):
            raise InputError(f"{size} of {len(subjects)} subjects cannot be co-located; name at least {max(size, 2)}")
        chosen = list((combinations_with_replacement if with_itself else combinations)(subjects, size))
        if limit is not None and limit < len(chosen):
            chosen = sorted(chance.sample(chosen, limit), key=chosen.index)
        items += [Item(members, batch) for members in chosen for batch in settings.batch_sizes]
    return items


def points_with_copies(points: Sequence[Subject], copies: Sequence[int], settings: Settings) -> list[Item]:
    """Return items of each operating point of a model, beside each number of copies of its most expensive point."""
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
    """Plan every item once per round, each round shuffled by the seed, so that drift does not depend on size.

    ``in_order``: keep the order of ``items``. ``budgeted``: the campaign may end after any item, so cheap ones tend to
    come first (``worth_first``). Raises ``InputError`` if there is no item; ``AlreadyExistsError`` if a subject has
    changed since it was measured.
    """
    rows = by_key(finished, settings.rule)
    if not items:
        raise InputError("there is nothing to measure: the inputs hold no graph and no model")
    for item in items:
        for key, subject in zip(item.keys, item.subjects, strict=True):
            if rows.get(key, {}).get("content", subject.content) != subject.content:
                raise AlreadyExistsError(f"{subject.name} has changed since it was measured")
    rounds_left = [_rounds_left(item, rows, settings) for item in items]
    chance = random.Random(settings.seed)
    todo: list[Item] = []
    for number in range(settings.rounds, 0, -1):
        due = [item for item, rounds in zip(items, rounds_left, strict=True) if rounds >= number]
        if in_order:
            todo += due
        else:
            todo += worth_first(due, settings, chance) if budgeted else chance.sample(due, len(due))
    return Plan(todo, rounds_left.count(0), items, list(rows.values()))


def _rounds_left(item: Item, rows: Mapping[Key, Row], settings: Settings) -> int:
    finished = [rows.get(key) for key in item.keys]
    rounds = [0 if row is None or _may_do_now(row, item, settings) else _rounds_made(row, settings) for row in finished]
    return max(0, settings.rounds - min(rounds))


def _rounds_made(row: Row, settings: Settings) -> int:
    """Return the finished rounds of a row; one without samples is not tried again."""
    return int(row["rounds"]) if row["status"] == "ok" else settings.rounds


def _may_do_now(row: Row, item: Item, settings: Settings) -> bool:
    """True if a row has no samples because of a limit that is larger now."""
    if row["status"] == "skipped":
        return settings.fits(item)
    if row["status"] == OUT_OF_MEMORY:
        return settings.limit_bytes > GROWN_LIMIT * (row.get("limit_bytes") or math.inf)
    return row["status"] == "timeout" and settings.timeout_s > (row.get("limit_s") or math.inf)


def worth_first(items: Sequence[Item], settings: Settings, chance: random.Random) -> list[Item]:
    """Return a random order in which an item that costs c seconds comes early in proportion to 1/√c.

    At every stop, the items measured so far are close to the most informative sample for its cost (Neyman's allocation
    for strata of unequal cost and equal relative spread): no size is left out, large ones are rarer. Exponential keys
    over weights draw such an order without replacement (Efraimidis & Spirakis).
    """
    keys = {id(item): chance.expovariate(1.0) * math.sqrt(item_seconds(item, settings)) for item in items}
    return sorted(items, key=lambda item: keys[id(item)])


def predicted_seconds(items: Sequence[Item], settings: Settings) -> float:
    """Predict a campaign's time roughly: roofline of assumed rates, start of workers, the fewest runs."""
    fits = [item for item in items if settings.fits(item)]
    members = [member for item in items for member in item.members]
    # One worker per backend, with co-runners one per subject.
    started = {member.label if settings.placement else settings.backend_of(member): member for member in members}
    starts = [settings.backend_of(member) for member in started.values()]
    seconds = sum(SECONDS_PER_START.get(backend, SECONDS_PER_START["torch"]) for backend in starts)
    return seconds + sum(item_seconds(item, settings) for item in fits)


def item_seconds(item: Item, settings: Settings) -> float:
    """Predict the time of one item that fits, roughly."""
    calls_s = [_call_seconds(member, item.batch_size, settings) for member in item.members]
    if settings.placement:
        # On shared cores all slow each other down; the slowest one determines the co-located time.
        rule, slowest_s = settings.round_rule, sum(calls_s) if settings.placement == "shared" else max(calls_s)
        colocated_s = min(max((rule.runs + 2) * slowest_s, MIN_COLOCATED_S), rule.max_seconds)
        solo_s = sum(max((settings.solo_runs + 2) * call_s, MIN_SOLO_S) for call_s in calls_s)
        return min(colocated_s + 2 * solo_s, settings.timeout_s)
    overhead_s = SECONDS_PER_ITEM.get(settings.backend_of(item.subjects[0]), SECONDS_PER_ITEM["torch"])
    return overhead_s + min(calls_s[0] * (settings.round_rule.runs + WARM_UP_CALLS), settings.timeout_s)


def _call_seconds(subject: Subject, batch_size: int, settings: Settings) -> float:
    flops_per_s, bytes_per_s = settings.threads * FLOPS_PER_SECOND, BYTES_PER_SECOND
    if settings.device != "cpu":
        flops_per_s, bytes_per_s = DEVICE_FLOPS_PER_SECOND, DEVICE_BYTES_PER_SECOND
    compute_s = batch_size * subject.flops / flops_per_s
    return max(compute_s, subject.weight_bytes / bytes_per_s) + subject.operators * SECONDS_PER_OPERATOR
