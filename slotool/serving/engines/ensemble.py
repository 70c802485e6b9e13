"""Runs of a model at an operating point: one of its versions, or an ensemble of them."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator, Sequence
from contextvars import Context, copy_context
from dataclasses import dataclass
from functools import partial

import numpy as np

from slotool.data.columns import Columns, Inputs, concatenate
from slotool.devices import is_cuda
from slotool.elastic import ElasticModel
from slotool.elastic.bare_model import OPEN_SIZES, trial_shape
from slotool.elastic.model import version_name
from slotool.errors import InputError
from slotool.models.signature import FREE, require_rows, try_two
from slotool.printable import reason
from slotool.rules.policies.cascades import Cascade
from slotool.rules.policies.points import from_point
from slotool.rules.policies.routing import Conc, consults_second
from slotool.serving.events import warn
from slotool.serving.request import Outputs, combined, gathered
from slotool.tables import OperatingPoint
from slotool.transfers import CAPTURED_SIZES

# Warm-up of batches: a slow model is ready little later, and its first batches would be slower still.
BATCHES_WARMED_S = 1.0
# Values of a larger made-up input, so that a call of it is short: an image of 512 x 512 pixels has fewer.
MAX_MADE_UP_VALUES = 2**20


@dataclass(frozen=True, slots=True)
class EnsemblePlan:
    """Points of the model behind a decision's point; ``second`` is None when one alone answers.

    ``concurrent``: both versions begin at the same time. ``first`` and then ``later`` are a cascade's versions in
    order.
    """

    first: OperatingPoint
    second: OperatingPoint | None = None
    threshold: float = 0.0
    concurrent: bool = False
    cascade: Cascade | None = None
    later: tuple[OperatingPoint, ...] = ()

    @property
    def points(self) -> tuple[OperatingPoint, ...]:
        """All points, in the order in which they are asked."""
        return (self.first, *(() if self.second is None else (self.second,)), *self.later)

    def consults(self, first: Outputs) -> np.ndarray:
        """Select examples for the second version: bool [n]. Raises ``InputError`` if the first has no confidence."""
        if first.confidence is None:
            raise InputError(
                f"version {version_name(self.first)} states no confidence: no second version can be consulted"
            )
        unsure: np.ndarray = consults_second(first.confidence, self.threshold)
        return unsure


class CascadeRun:
    """Batch of ``examples`` on its way through a cascade, whose versions the caller asks, here or elsewhere.

    ``next_rows`` and ``record`` (or ``missing``) alternate until no rows are left. The cascade decides whether an
    answer is enough and which one to send, as it does when tables are replayed.
    """

    def __init__(self, cascade: Cascade, examples: int):
        self.cascade = cascade
        # By version: its examples and answers.
        self.answered: dict[str, tuple[np.ndarray, Outputs | None]] = {}
        self._rows, self._picked = np.arange(examples), np.full(examples, -1)

    @property
    def step(self) -> int:
        """Index of the next version to ask."""
        return len(self.answered)

    @property
    def next_rows(self) -> np.ndarray | None:
        """Examples for the next version: int [any], all at first; None when no version need be asked."""
        return self._rows if len(self._rows) and self.step < len(self.cascade.steps) else None

    def record(self, answers: Outputs) -> None:
        """Record answers to ``next_rows``. Raises ``InputError`` for answers without a confidence."""
        if answers.confidence is None:
            version = self.cascade.steps[self.step].version
            raise InputError(f"version {version} states no confidence: no second version can be consulted")
        self._take(answers, answers.confidence)

    def missing(self) -> None:
        """Record that the next version gives no answer: other versions' answers are sent."""
        self._take(None, np.full(len(self._rows), np.nan))

    @property
    def unanswered(self) -> bool:
        """True if all versions were asked and some example has no answer to send."""
        return self.next_rows is None and bool((self._picked < 0).any())

    def answers(self) -> Outputs:
        """Return the batch of answers to send. Raises ``RunError`` when the versions' outputs make no batch."""
        parts = list(self.answered.values())
        _, answers = parts[int(self._picked[0])]
        return answers if len(self._picked) == 1 and answers is not None else gathered(parts, self._picked)

    def _take(self, answers: Outputs | None, confidence: np.ndarray) -> None:
        rows, step = self._rows, self.cascade.steps[self.step]
        if answers is not None:
            self._picked[rows] = self.step
        self.answered[step.version] = rows, answers
        self._rows = rows[:0] if step.at_least is None else rows[~step.accepts(confidence)]


class PointRunner:
    """Runner of a model at its points, and at ensembles of its versions (``Rule.point``).

    ``points`` names the ensembles; further ones are resolved at their first call. Raises ``InputError`` for a point
    that is neither, or an ensemble of unknown versions.
    """

    def __init__(self, model: ElasticModel, points: Iterable[OperatingPoint]):
        self.model = model
        self._versions = _versions_of(model)
        self._plans: dict[OperatingPoint, EnsemblePlan] = {}
        self._quiet = _quiet_context()
        self.add([*model.points, *points])

    def add(self, points: Iterable[OperatingPoint]) -> None:
        """Answer at these points too. Raises ``InputError`` as the constructor does; then none is added."""
        self._plans |= {point: _plan(self.model, self._versions, point) for point in points}

    def run(self, x: Inputs, point: OperatingPoint) -> Outputs:
        """Return the model's outputs for ``x``; one version runs after the other.

        The second version sees only the examples whose first answer is not sure enough (tolerance-tiers, §IV-C). Not to
        be called from two threads at once.
        """
        plan = self._plans.get(point)
        if plan is None:
            self.add([point])
            plan = self._plans[point]
        return self._quiet.run(self._run, x, plan)

    def _run(self, x: Inputs, plan: EnsemblePlan) -> Outputs:
        if plan.cascade is not None:
            return self._run_cascade(x, plan, plan.cascade)
        first = _computed(self.model, x, plan.first)
        if plan.second is None:
            return first
        unsure = plan.consults(first)
        return combined(first, unsure, _computed(self.model, x[unsure], plan.second)) if unsure.any() else first

    def _run_cascade(self, x: Inputs, plan: EnsemblePlan, cascade: Cascade) -> Outputs:
        run = CascadeRun(cascade, len(x))
        while (rows := run.next_rows) is not None:
            run.record(_computed(self.model, x if len(rows) == len(x) else x[rows], plan.points[run.step]))
        return run.answers()

    def warm(self, batch_sizes: Sequence[int] = (), *, warns: bool = True) -> None:
        """Run every point once with one example and once with two, and estimate accuracy once.

        Then run every batch size at each point, the largest first, for at most ``BATCHES_WARMED_S``: a first larger
        call allocates memory, and may take several times as long; GPUs capture it. A model with open sizes or text
        inputs and without examples may fail on all made-up examples: a warning says that its first call is not warm,
        if this runner of a server's several ``warns``.
        """
        failures: list[Exception] = []
        for x in warm_up_examples(self.model):
            try:
                return self._quiet.run(self._warm_with, x, batch_sizes)
            except Exception as error:
                failures.append(error)
        if self.model.examples is not None or not _takes_any_size_or_text(self.model):
            raise failures[0]
        if warns:
            warn(
                f"{self.model.name} fails on every example made up to warm it: its first calls are slow, and an input "
                f"on which it fails counts as its own failure ({reason(failures[-1])})"
            )

    def _warm_with(self, x: Inputs, batch_sizes: Sequence[int]) -> None:
        model = self.model
        if model.estimates_each:
            model.expected_accuracy(x)
        points = dict.fromkeys(point for plan in self._plans.values() for point in plan.points)
        calls = [partial(_computed, model, point=point) for point in points if point not in model.remote_points]
        for call in calls:
            call(x)
            if model.max_batch:
                try_two(call, x)
        captured = CAPTURED_SIZES if is_cuda(model.device) and model.max_batch else ()
        until_s = time.monotonic() + BATCHES_WARMED_S
        for size in sorted({size for size in (*batch_sizes, *captured) if size > 1}, reverse=True):
            batch = concatenate([x] * size)
            for call in calls:
                if time.monotonic() > until_s:
                    return
                call(batch)


def compute(model: ElasticModel, x: Inputs, point: OperatingPoint, within_s: float = math.inf) -> Outputs:
    """Return the outputs of ``model`` at one of its points, within ``within_s`` seconds at a remote one."""
    return _quiet_context().run(_computed, model, x, point, within_s)


def _quiet_context() -> Context:
    """Return a context without NumPy's overflow and NaN warnings: huge inputs overflow, and NaN is answered.

    Entering it costs a tenth of ``numpy.errstate``.
    """
    context = copy_context()
    context.run(np.seterr, over="ignore", invalid="ignore")
    return context


def _computed(model: ElasticModel, x: Inputs, point: OperatingPoint, within_s: float = math.inf) -> Outputs:
    if model.remote_points and point in model.remote_points:
        tensors = model.respond_within(x, point, within_s)
    else:  # the front end, or the model's example, made the model's columns
        tensors = model.run(x.arrays if isinstance(x, Columns) else model.inputs(x), point)
    require_rows(tensors, len(x))
    return Outputs(tensors, model, model.confidences_of(tensors))


def warm_up_examples(model: ElasticModel) -> Iterator[Inputs]:
    """Yield the model's first example, else zeros (text: "0") with open sizes of 1 and then of ``OPEN_SIZES``."""
    if model.examples is not None:
        yield model.examples[:1]
        return
    specs = model.signature.inputs
    for size in (1, *OPEN_SIZES) if any(FREE in spec.shape[1:] for spec in specs) else (1,):
        shapes = [trial_shape(spec, size) for spec in specs]
        if size == 1 or max(map(math.prod, shapes)) <= MAX_MADE_UP_VALUES:
            filled = zip(specs, shapes, strict=True)
            yield Columns(
                {
                    spec.name: np.full(shape, b"0" if spec.datatype == "BYTES" else 0, spec.dtype)
                    for spec, shape in filled
                }
            )


def ensemble_plan(model: ElasticModel, point: OperatingPoint) -> EnsemblePlan:
    """Return the plan for answers at ``point``. Raises ``InputError`` as ``PointRunner`` does."""
    return _plan(model, _versions_of(model), point)


def _takes_any_size_or_text(model: ElasticModel) -> bool:
    return any(FREE in spec.shape[1:] or spec.datatype == "BYTES" for spec in model.signature.inputs)


def _versions_of(model: ElasticModel) -> dict[str, OperatingPoint]:
    return {version_name(point): point for point in model.points}


def _plan(model: ElasticModel, versions: dict[str, OperatingPoint], point: OperatingPoint) -> EnsemblePlan:
    if point in model.points:
        return EnsemblePlan(point)
    policy = from_point(point)
    missing = [version for version in policy.versions if version not in versions]
    if missing:
        raise InputError(f"{model.name} has no version {missing[0]!r}; it has {', '.join(versions)}")
    first, *second = (versions[version] for version in policy.versions)
    if isinstance(policy, Cascade):
        return EnsemblePlan(first, cascade=policy, later=tuple(second))
    if not second:
        return EnsemblePlan(first)
    return EnsemblePlan(first, second[0], float(point.get("threshold") or 0.0), isinstance(policy, Conc))
