"""Of ``slotool.plan``, of one model or several: what tables, artifacts and devices have to be."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from slotool.api.progress import Reporter
from slotool.errors import ArgumentError, InputError

if TYPE_CHECKING:
    from slotool.planning.worker import WorkerType
    from slotool.rules import RuleSet
    from slotool.tables import OutcomeTable

# Of traffic that is drawn.
DURATION_S = 60.0


def why_not_here(worker: WorkerType) -> str:
    """Why this machine cannot serve on the worker's device; empty where it can."""
    from slotool import devices
    from slotool.planning.service_text import is_gpu

    try:
        if is_gpu(worker):
            devices.required(worker.device)
    except ArgumentError as error:
        return error.problem
    return ""


def require_any_here(workers: Sequence[WorkerType], reporter: Reporter) -> None:
    """Warns of workers that could not be verified on this machine. Raises ``ArgumentError`` when none could: at once,
    and not when the plan is made."""
    missing = {worker.name: why for worker in workers if (why := why_not_here(worker))}
    if len(missing) == len(workers):
        raise ArgumentError("verify_s", f"no plan could be served here: {next(iter(missing.values()))}; leave it out")
    for name, why in missing.items():
        reporter.warn(f"a plan with {name} will not be verified: {why}")


def of_shares(outcomes: OutcomeTable, rules: RuleSet | None, reporter: Reporter) -> OutcomeTable:
    """``outcomes`` with errors of at most 1, so that an accuracy is 1 − error: larger ones as shares of the greatest
    that the rules allow. Raises ``InputError`` for larger ones without rules, and for rules of other models."""
    if rules is not None and (changed := rules.changed_words(outcomes.models)):
        raise InputError(f"{outcomes.source}: the rules were {changed}")
    errors = outcomes.matrix("error")
    if (worst := float(errors.max(initial=0.0))) <= 1:
        return outcomes
    if rules is None:
        raise InputError(
            f"{outcomes.source}: error {worst:g} is above 1, so that no accuracy follows from it; plan with rules, or "
            "give errors from 0 to 1"
        )
    rules.require_errors(outcomes)
    reporter.note(f"accuracy is 1 − error / {rules.max_error:g}, the greatest error that the rules were made for")
    return outcomes.with_errors(errors / rules.max_error)


def require_points(artifact: Path, workers: Sequence[WorkerType]) -> None:
    """A server knows the latency of every point that a policy may choose: what is left out cannot be served."""
    from slotool.artifacts.bundle import MANIFEST
    from slotool.elastic import load_served

    if not (artifact / MANIFEST).is_file():  # the server says what it is
        return
    points = load_served(str(artifact), mapped=True).points
    for worker in workers:
        known = {point.key for point, _ in worker.profile.samples_us}
        if lacking := [point.key for point in points if point.key not in known]:
            raise ArgumentError(
                "latency",
                f"{worker.source} has no latencies of {', '.join(lacking)}, so that {artifact} could not be served by "
                f"it: slotool profile points {artifact}",
            )
