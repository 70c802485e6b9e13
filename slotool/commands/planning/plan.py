"""``slotool.plan``: the cheapest workers and policy that keep a promise under given traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.inputs import FilePath, devices_of, loaded, name_of
from slotool.commands.outputs import writes
from slotool.commands.planning.plan_demands import demands_of, why_none
from slotool.commands.planning.plan_fleets import PlannedFleets
from slotool.commands.planning.plan_interference import named_interference
from slotool.commands.planning.plan_models import (
    NO_RULES,
    PlannedModel,
    models_by_name,
    only_model,
    require_files,
    require_points,
)  # fmt: skip
from slotool.commands.planning.plan_tiers import Tolerance, mixes, require_alike
from slotool.commands.planning.planned import Plan
from slotool.commands.progress import Reporting, reporter_of
from slotool.commands.values import at_least, between
from slotool.commands.values import tolerance as tolerance_in
from slotool.errors import ArgumentError, InputError

if TYPE_CHECKING:
    import numpy as np

    from slotool.data import DataSource
    from slotool.planning.planner import Planner
    from slotool.planning.tiers import Tiers
    from slotool.rules import RuleSet
    from slotool.tables import LatencyTable, OutcomeTable
    from slotool.workloads import ArrivalTable

# Tried where nobody names any.
POLICIES = ("hindsight", "slackfit", "maxacc", "fixed")


@command_line(
    arguments=("latency",),
    names={"prices": "--price"},
    values={"tolerance": tolerance_in, "data": str},
    metavars={"prices": "TYPE=PRICE"},
    panels={
        "Promise": ("attainment", "min_accuracy", "confidence", "tolerance", "objective"),
        "Traffic": ("arrivals", "rate"),
        "Fleet": (
            *("outcomes", "subject", "device", "policies", "rules", "prices", "reserve_ms", "max_workers", "quantile"),
            *("interference", "machine_cores"),
        ),
        "Result": ("artifact", "out", "verify_s"),
    },
    hidden=("models",),
)
@writes("out")
def plan(
    latency: FilePath | LatencyTable | Sequence[FilePath] | None = None,
    *,
    models: Sequence[Mapping[str, Any]] | None = None,
    deadline_ms: Annotated[float, at_least(0.001)] | None = None,
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
    reserve_ms: Annotated[float, at_least(0)] = 2.0,
    max_workers: Annotated[int, at_least(1)] = 1_000,
    quantile: Annotated[float, between(0, 1)] = 0.95,
    interference: FilePath | LatencyTable | float | None = None,
    machine_cores: Annotated[int, at_least(1)] | None = None,
    artifact: FilePath | None = None,
    out: FilePath | None = None,
    verify_s: float | None = None,
    data: str | DataSource = "auto",
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> Plan:
    """Find the cheapest workers and policy that keep a promise. Exit 1 if none.

    Example: slotool plan latency.parquet --rate 200 --deadline-ms 50

    Sources: superserve, sections 4 and 6; Model-Switching, section 4.

    Args:
        latency: Latency table, one per kind of worker; or --config: [[models]].
        models: Models that share workers, in place of one, as ``slotool serve`` shares them. Each is a mapping with
            ``latency`` and what else is its own: ``name``, ``artifact``, ``outcomes``, ``subject``, ``deadline_ms``,
            ``attainment``, ``min_accuracy``, ``arrivals`` or ``rate``, ``policies``, ``interference``, ``data``. From
            ``deadline_ms`` on a model that leaves one out has what is given here for all. The promise of each model is
            to hold with ``confidence``, and the plan says what a fleet for each model costs.
        deadline_ms: Deadline of every request; None: required. Models may state theirs.
        attainment: Minimum share of requests in time.
        min_accuracy: Minimum mean accuracy of these.
        confidence: Confidence with which both hold.
        arrivals: File of ``generate_arrivals``. In Python also a table, or instants in ascending seconds, float64 [n].
        rate: Poisson arrivals per second instead, for a minute.
        outcomes: Accuracy of the points; None: column accuracy of the table.
        subject: Subject of the rows; None: the only one.
        device: Only rows of this device; None: the only one.
        policies: Policies to try. ``"fixed"`` stands for each point that is accurate enough.
        rules: Rules of ``gen_rules``, in place of policies. Requests of a tolerance are answered by them. Requests
            are simulated as examples of ``outcomes``, which then is needed: each calls the versions that its example
            takes, on one worker in turn or on two at once, as a server does.
        tolerance: Tolerance, or shares: 0=0.2,0.05=0.8; None: strictest. That is the strictest tier that
            ``max_workers`` hold; there is a fleet for each.
        objective: Saving: response-time or cost; None: either.
        prices: Price of a worker: '2 threads=0.08'; None: its threads. The unit is any; types left out cost theirs.
        reserve_ms: Part of each deadline for network and front end.
        max_workers: Maximum workers, of all models together.
        quantile: Quantile of latencies that policies plan with.
        interference: Co-located latencies; None: none. Calls take longer while other workers of the same machine
            compute: this is a latency table with rows co-located with copies of the subject on cores of their own,
            measured or predicted, or its file, or one ratio for a call next to one busy worker; None: each worker
            counts as if it were alone.
        machine_cores: Cores that workers share; None: this one's. They fill machine after machine.
        artifact: Artifact for ``out`` to serve.
        out: Service file to write, for serve --config.
        verify_s: Serve the busiest so long here, and compare. It needs ``out``.
        data: Data set of the requests to verify by. Its test examples are sent, or all where ``outcomes`` are of all.
        seed: Same seed, same result.
        force: Replace ``out`` if it exists.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.commands.progress``.

    Returns:
        Fleets (``rows``, ``frame()``), the cheapest that holds first, none where not even a worker without a queue
        could be in time; ``judge()`` raises an error when none holds, or when what was served to verify it did not.

        Each worker type (a number of threads of a latency table) is tried under each policy with the fewest workers
        that keep the promise. ``rows`` hold lower bounds of attainment and of accuracy: attainment's from consecutive
        blocks of the traffic, accuracy's from the examples of ``outcomes``. The fleet found is confirmed with latencies
        that are drawn anew. The promise is for traffic like the one given, and the confidence is that of each fleet by
        itself: it does not count that the cheapest of several was chosen.

    Raises:
        ArgumentError: An argument has a value that it cannot have.
        InputError: The traffic is too short to show the promise, no such policy, or the latency table lacks a version
            of the rules or has no call of one example of it.
        TableError: A table cannot be read.
        AlreadyExistsError: ``out`` exists.
        RunError: The server to verify did not start.
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.commands.planning.plan_verified import require_any_here
    from slotool.planning.planner import Planner

    out = None if out is None else Path(out)
    _require_file_to_verify(verify_s, out)
    shared = {
        "deadline_ms": deadline_ms, "attainment": attainment, "min_accuracy": min_accuracy, "arrivals": arrivals,
        "rate": rate, "policies": policies, "data": data, "interference": interference,
    }  # fmt: skip
    own = {"latency": latency, "artifact": artifact, "outcomes": outcomes, "subject": subject}
    if models is None:
        require_alike(outcomes, rules, tolerance, objective)
        entries = {"": only_model({**shared, **own})}
    else:
        _refuse_with_models(own, {"rules": rules, "tolerance": tolerance, "objective": objective})
        entries = models_by_name(models, shared)
    reporter = reporter_of(progress)
    if out is not None:
        require_files(entries, rules)
        refuse_existing(out, force)
    if machine_cores is not None and all(entry.interference is None for entry in entries.values()):
        raise ArgumentError("machine_cores", "it has no effect without interference")
    tiers = None if rules is None else _tiers(rules, tolerance, objective, artifact)
    demands = demands_of(
        entries, tiers, prices or {}, confidence, machine_cores, seed, reporter,
        quantile=quantile, devices=devices_of(device),
    )  # fmt: skip
    if out is not None and tiers is None:
        require_points(entries, demands)
    if verify_s is not None:
        require_any_here(list(demands[0].workers.values()), reporter)
    planner = Planner(demands, reserve_us=reserve_ms * 1e3, max_workers=max_workers, seed=seed)
    if not planner.worker_types:
        raise InputError(f"no worker serves all of the models, as their latency tables {why_none(demands)}")
    facts = _facts(planner, entries, confidence, reserve_ms, seed, verify_s)
    if models is None:
        facts |= _facts_of_one(tiers, rules, device, tolerance)
    search = PlannedFleets(planner, entries, reporter)
    found = search.plan(facts)
    if not found.holds:
        return found
    search.note_sharing()
    return found if out is None else search.served(found, out, rules, verify_s)


def _require_file_to_verify(verify_s: float | None, out: Path | None) -> None:
    if verify_s is not None and not verify_s > 0:
        raise ArgumentError("verify_s", "a time above 0 is expected, such as 20 s")
    if verify_s is not None and out is None:
        raise ArgumentError("out", "it is needed to verify the plan: what is served is the service file")


def _refuse_with_models(own: Mapping[str, Any], of_rules: Mapping[str, Any]) -> None:
    """Raise ``ArgumentError`` for what each of several models states for itself, and what is not planned of several."""
    for name, value in own.items():
        if value is not None:
            raise ArgumentError(name, "each of the models states its own; leave it out")
    for name, value in of_rules.items():
        if value is not None:
            raise ArgumentError(name, f"it has no effect with models: {NO_RULES}")


def _tiers(rules: FilePath | RuleSet, tolerance: Tolerance, objective: str | None, artifact: FilePath | None) -> Tiers:
    from slotool.elastic import ElasticModel, load_served
    from slotool.planning.tiers import Tiers
    from slotool.rules import RuleSet

    rule_set = loaded(RuleSet, rules)
    cancels = None
    if artifact is not None:
        # A call of a library's own model cannot be ended between two operators.
        model = load_served(str(artifact), mapped=True)
        cancels = type(model).set_cancellation_check is not ElasticModel.set_cancellation_check
    return Tiers(rule_set, mixes(rule_set, tolerance, objective), tolerance is None, cancels)


def _facts(
    planner: Planner,
    entries: Mapping[str, PlannedModel],
    confidence: float,
    reserve_ms: float,
    seed: int,
    verify_s: float | None,
) -> dict[str, Any]:
    """Facts of the plan; of several models a list of their ``promises``."""
    promises = [
        {
            "model": name,
            "subject": next(iter(planner.demands[name].workers.values())).profile.subject,
            "deadline_ms": entry.deadline_ms,
            "attainment": entry.attainment,
            "min_accuracy": entry.min_accuracy,
            "interference": named_interference(entry.interference),
            "arrivals": f"{entry.rate:g} requests/s" if entry.arrivals is None else name_of(entry.arrivals),
            "requests": len(planner.demands[name].arrival_s),
            "rate_per_s": planner.alone[name].rate_per_s,
        }
        for name, entry in entries.items()
    ]
    of_models: dict[str, Any] = {"promises": promises}
    if "" in entries:
        of_models = {key: value for key, value in promises[0].items() if key != "model"}
    plan = {"confidence": confidence, "reserve_ms": reserve_ms, "seed": seed, "verify_s": verify_s}
    return {**of_models, **plan, "requests": planner.requests}


def _facts_of_one(
    tiers: Tiers | None, rules: FilePath | RuleSet | None, device: str | None, tolerance: Tolerance
) -> dict[str, Any]:
    return {
        "device": device,
        "rules": None if rules is None else name_of(rules),
        "best_version": None if tiers is None else tiers.rules.best_version,
        "cancels": None if tiers is None else tiers.cancels,
        "strictest": rules is not None and tolerance is None,
    }
