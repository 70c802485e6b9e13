"""``slotool.plan``: the cheapest workers and policy that keep a promise under given traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.api.inputs import FilePath
from slotool.api.outputs import writes
from slotool.api.plan_models import NO_FRONT_END, NO_RULES
from slotool.api.plan_single import single_plan
from slotool.api.plan_tiers import Tolerance
from slotool.api.planned import Plan
from slotool.api.progress import Reporting, reporter_of
from slotool.errors import ArgumentError

if TYPE_CHECKING:
    import numpy as np

    from slotool.data import DataSource
    from slotool.rules import RuleSet
    from slotool.tables import LatencyTable, OutcomeTable
    from slotool.workloads import ArrivalTable

# Of arguments that have no effect with models: why, where that is not of rules.
_WHY_NOT = {"front_end_ms": NO_FRONT_END}
# Tried where nobody names any.
POLICIES = ("hindsight", "slackfit", "maxacc", "fixed")


@writes("out", folders=("plots",))
def plan(
    latency: FilePath | LatencyTable | Sequence[FilePath] | None = None,
    *,
    models: Sequence[Mapping[str, Any]] | None = None,
    deadline_ms: float | None = None,
    attainment: float = 0.99,
    min_accuracy: float = 0.0,
    confidence: float = 0.95,
    arrivals: FilePath | ArrivalTable | np.ndarray | None = None,
    rate: float | None = None,
    outcomes: FilePath | OutcomeTable | None = None,
    subject: str | None = None,
    device: str | None = None,
    policies: str | Sequence[str] = POLICIES,
    rules: FilePath | RuleSet | None = None,
    tolerance: Tolerance = None,
    objective: str | None = None,
    prices: Mapping[str, float] | None = None,
    reserve_ms: float = 2.0,
    max_workers: int = 1_000,
    quantile: float = 0.95,
    interference: FilePath | LatencyTable | float | None = None,
    machine_cores: int | None = None,
    front_end_ms: float = 0.0,
    explain: bool = False,
    artifact: FilePath | None = None,
    out: FilePath | None = None,
    plots: FilePath | None = None,
    verify_s: float | None = None,
    data: str | DataSource = "auto",
    seed: int = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> Plan:
    """Find the cheapest workers and policy whose simulated service keeps a promise with a stated confidence.

    Each worker type (a number of threads of a latency table) is tried under each policy with the least workers that do.
    What holds is a lower bound of attainment and of accuracy: attainment's from consecutive blocks of the traffic,
    accuracy's from the examples of ``outcomes``. The fleet found is confirmed with latencies that are drawn anew.
    The promise is for traffic like the one given, and the confidence that of each fleet by itself: it does not count
    that the cheapest of several was chosen. Sources: superserve, sections 4 and 6; Model-Switching, section 4.

    Args:
        latency: Latency table of points × batch sizes, or its file, or several files, one per kind of worker.
        models: Instead: several models that share workers, as ``slotool serve`` shares them. Each is a mapping with
            ``latency`` and what else is its own: ``name``, ``artifact``, ``outcomes``, ``subject``, ``deadline_ms``,
            ``attainment``, ``min_accuracy``, ``arrivals`` or ``rate``, ``policies``, ``interference``, ``data``. From
            ``deadline_ms`` on a model that leaves one out has what is given here for all. The promise of each model is
            to hold with ``confidence``, and the plan, a ``SharedPlan``, says what a fleet for each model costs.
        deadline_ms: Deadline of every request, milliseconds; needed unless ``models`` state theirs.
        attainment: Least share of requests answered within it.
        min_accuracy: Least mean accuracy of these answers; 0: any.
        confidence: With which attainment and accuracy are to hold together.
        arrivals: Arrival table to plan for, or its file, or instants in ascending seconds, float64 [n].
        rate: Poisson arrivals of so many requests per second for a minute, instead.
        outcomes: Outcome table with the accuracy of the points; None: column ``accuracy`` of the latency table.
        subject: Subject of the latency table; None: its only one.
        device: Device of the rows that count, such as ``"cuda:0"``; None: the only one of each latency table.
        policies: Scheduling policies to try; ``"fixed"`` stands for each point that is accurate enough.
        rules: Rule set by which requests of a tolerance are answered, or its file, in place of ``policies``. Requests
            are simulated as examples of ``outcomes``, which then is needed: each calls the versions that its example
            takes, on one worker in turn or on two at once, as a server does.
        tolerance: Of every request, or the share of the requests by tolerance; None: the plan is for the strictest tier
            that ``max_workers`` hold, and there is a fleet for each.
        objective: What requests save, ``"response-time"`` or ``"cost"``; None: whichever takes the cheaper fleet.
        prices: Price of a worker by type, in any unit; None, and for types left out: its threads.
        reserve_ms: Kept of each deadline for the network and the front end.
        max_workers: Of a fleet; of ``models``, of all their workers, be they shared or apart.
        quantile: Quantile of the latencies that policies plan with.
        interference: How much longer calls take while other workers of the same machine compute: a latency table with
            rows co-located with copies of the subject on cores of their own, measured or predicted, or its file, or a
            predictor of co-located latencies (a folder; it needs ``artifact``), or one ratio for a call next to one
            busy worker; None: each worker counts as if it were alone.
        machine_cores: Cores of each machine, which workers fill one after the other; None: as many as this one has.
        front_end_ms: CPU time that the server itself spends on a request, besides its workers', as ``verify_s`` finds
            it: where workers take every core of the machine, calls take longer by its part of their time.
        explain: Also explain what one worker fewer misses of the promise, by how much and when (``Plan.reasons``).
        artifact: What is to be served; ``out`` needs it.
        out: Write a service file for ``slotool serve --config`` here.
        plots: Folder for plots (PNG) of attainment and accuracy by cost.
        verify_s: Serve the plan on this machine, send it so many seconds of the traffic, the busiest, and compare;
            needs ``out``.
        data: Data set whose test examples are then sent, a name or file, or with how to read it; all its examples where
            ``outcomes`` are of all of them.
        seed: Of drawn arrivals and latencies.
        force: Replace ``out`` if it exists.
        progress: Who hears how far it is; see ``slotool.api.progress``.

    Returns:
        Fleets (``rows``, ``frame()``), the cheapest that holds first, none where not even a worker without a queue
        could be in time; ``judge()`` raises an error when none holds, or when what was served to verify it did not.

    Raises:
        ArgumentError: An argument has a value that it cannot have.
        InputError: The traffic is too short to show the promise, no such policy, or the latency table lacks a version
            of the rules or has no call of one example of it.
        TableError: A table cannot be read.
        AlreadyExistsError: ``out`` exists.
        RunError: The server to verify did not start.
    """
    out = None if out is None else Path(out)
    if verify_s is not None and not verify_s > 0:
        raise ArgumentError("verify_s", "a time above 0 is expected, such as 20 s")
    if verify_s is not None and out is None:
        raise ArgumentError("out", "it is needed to verify the plan: what is served is the service file")
    of_model: dict[str, Any] = {
        "deadline_ms": deadline_ms, "attainment": attainment, "min_accuracy": min_accuracy,
        "arrivals": arrivals, "rate": rate, "policies": policies, "data": data,
        "interference": interference,
    }  # fmt: skip
    of_each: dict[str, Any] = {"latency": latency, "artifact": artifact, "outcomes": outcomes, "subject": subject}
    of_all: dict[str, Any] = {
        "confidence": confidence, "device": device, "prices": prices or {}, "reserve_ms": reserve_ms,
        "max_workers": max_workers, "quantile": quantile, "machine_cores": machine_cores, "explain": explain,
        "out": out, "plots": None if plots is None else Path(plots), "verify_s": verify_s, "seed": seed,
        "force": force, "reporter": reporter_of(progress),
    }  # fmt: skip
    if models is not None:
        unplanned = {
            "rules": rules, "tolerance": tolerance, "objective": objective, "front_end_ms": front_end_ms or None,
        }  # fmt: skip
        return _of_models(models, of_model, of_each=of_each, unplanned=unplanned, **of_all)
    return single_plan(
        **of_model,
        **of_each,
        **of_all,
        rules=rules,
        tolerance=tolerance,
        objective=objective,
        front_end_ms=front_end_ms,
    )


def _of_models(
    models: Sequence[Mapping[str, Any]],
    left_out: Mapping[str, Any],
    *,
    of_each: Mapping[str, Any],
    unplanned: Mapping[str, Any],
    **settings: Any,
) -> Plan:
    """Of several models. Raises ``ArgumentError`` for what ``of_each`` of them states for itself, and what is not
    planned of several."""
    from slotool.api.plan_shared import shared_plan

    for name, value in of_each.items():
        if value is not None:
            raise ArgumentError(name, "each of the models states its own; leave it out")
    for name, value in unplanned.items():
        if value is not None:
            raise ArgumentError(name, f"it has no effect with models: {_WHY_NOT.get(name, NO_RULES)}")
    return shared_plan(models, left_out=left_out, **settings)
