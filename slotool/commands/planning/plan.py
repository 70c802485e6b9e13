"""``slotool.plan``: the cheapest workers and policy that keep a promise under given traffic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.inputs import tolerance_shares
from slotool.commands.outputs import writes
from slotool.commands.planning.planned import Plan
from slotool.commands.values import above, at_least, between
from slotool.commands.values import tolerance as tolerance_in
from slotool.devices import devices_of
from slotool.errors import ArgumentError
from slotool.planning.demands import (
    PlannedModel,
    demands_of,
    models_by_name,
    of_model,
    require_served,
)
from slotool.progress import Reporter, Reporting, reporter_of
from slotool.sources import FilePath, loaded, name_of

if TYPE_CHECKING:
    import numpy as np

    from slotool.data import DataSource
    from slotool.planning.planner import Fleets, Planner
    from slotool.rules import RuleSet
    from slotool.tables import LatencyTable, OutcomeTable
    from slotool.workloads import ArrivalTable

# One tolerance of all requests, or the share of the requests by tolerance.
Tolerance = float | Mapping[float, float] | None
# Objective of a plan without rules.
ENERGY = "energy"
# Why a plan of several models has no tolerance tiers.
NO_RULES = (
    "how requests of tolerance tiers, each of which may call two versions, share workers with other models is not "
    "simulated; plan a model with rules by itself"
)


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
    policies: str | Sequence[str] | None = None,
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
    verify_s: Annotated[float, above(0)] | None = None,
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
        models: Models that share workers as in ``slotool serve``, instead of one model. Each is a mapping with
            ``latency`` and optionally ``name``, ``artifact``, ``outcomes``, ``subject``, ``deadline_ms``,
            ``attainment``, ``min_accuracy``, ``arrivals`` or ``rate``, ``policies``, ``interference`` and ``data``;
            from ``deadline_ms`` on, the arguments of this call are the defaults. The promise of each model holds with
            ``confidence``. The plan also states the cost of a fleet for each model.
        deadline_ms: Deadline of every request; None: required. Models may state theirs.
        attainment: Minimum share of requests in time.
        min_accuracy: Minimum mean accuracy of requests answered in time.
        confidence: Confidence with which both hold.
        arrivals: File of ``generate_arrivals``. In Python also a table, or instants in ascending seconds, float64 [n].
        rate: Poisson arrivals per second instead, for a minute.
        outcomes: Accuracy of the points, needed for several; None: column accuracy of the table.
        subject: Id or name of the network, as profiled; None: the only one.
        device: Only rows of this device; None: the only one.
        policies: Policies to try; None: slackfit, maxacc, fixed. If these need more workers than the rate alone,
            value-iteration is tried too, which takes seconds to compile once. ``"fixed"`` stands for each point that
            is accurate enough.
        rules: Rules of ``gen_rules``, in place of policies. They answer requests of a tolerance. Requests are simulated
            as examples of ``outcomes``, which is then required: each calls the versions that its example needs, on one
            worker in turn or on two at once, as a server does.
        tolerance: Tolerance, or shares: 0=0.2,0.05=0.8; None: strictest. That is the strictest tier that
            ``max_workers`` can serve; there is a fleet for each tier.
        objective: Saving: response-time or cost of rules, or energy; None: price. With ``energy`` and without rules
            the fleet of fewest joules a request is chosen, by the column ``energy_j`` of the latency table.
        prices: Price of a worker: '2 threads=0.08'; None: its threads. The unit is any; other types cost their threads.
        reserve_ms: Part of each deadline for network and front end.
        max_workers: Maximum number of workers, of all models together.
        quantile: Quantile of latencies that policies plan with.
        interference: Co-located latencies; None: none. Calls take longer while other workers of the same machine
            compute. This is a latency table, or its file, with measured or predicted rows co-located with copies of
            the subject on cores of their own; or the ratio for one busy worker.
        machine_cores: Cores that workers share; None: this one's. Workers fill one machine after another.
        artifact: Artifact for ``out`` to serve.
        out: Service file to write, for serve --config.
        verify_s: Serve the busiest part of this length here, and compare. It needs ``out``.
        data: Data set of the requests to verify with. Its test examples are sent, or all if ``outcomes`` are of all.

    Returns:
        Fleets (``rows``, ``frame()``), the cheapest that keeps the promise first; none if a call takes longer than the
        deadline. ``judge()`` raises an error if no fleet keeps the promise, or the verified one did not.

        Each worker type (a number of threads of a latency table) is tried under each policy, with the fewest workers
        that keep the promise. ``rows`` hold lower bounds of attainment, from consecutive blocks of the traffic, and of
        accuracy, from the examples of ``outcomes``. The chosen fleet is confirmed with latencies drawn again. The
        promise is for traffic like the given one. The confidence is that of each fleet by itself, regardless of the
        choice among several.

    Raises:
        InputError: The traffic is too short to show the promise, no such policy, or the latency table lacks a version
            of the rules or has no call of one example of it.
        TableError: A table cannot be read.
        RunError: The server to verify did not start.
    """
    from slotool.planning.explanation import note_sharing, why_nothing_fits
    from slotool.planning.planner import Planner
    from slotool.planning.tiers import Tiers
    from slotool.planning.verified_plan import require_any_here
    from slotool.rules import RuleSet

    out = None if out is None else Path(out)
    if verify_s is not None and out is None:
        raise ArgumentError("out", "it is needed to verify the plan: what is served is the service file")
    of_all: dict[str, Any] = {
        "deadline_ms": deadline_ms, "attainment": attainment, "min_accuracy": min_accuracy, "arrivals": arrivals,
        "rate": rate, "policies": policies, "data": data, "interference": interference,
    }  # fmt: skip
    of_one = {"latency": latency, "artifact": artifact, "outcomes": outcomes, "subject": subject}
    if least_energy := objective == ENERGY:
        _refuse({"models": models, "rules": rules}, "the objective energy is that of one model, without rules")
    of_rules = {"rules": rules, "tolerance": tolerance, "objective": None if least_energy else objective}
    entries = _entries(models, of_all, of_one, of_rules)
    for name, entry in entries.items():
        with of_model(name):
            entry.require()
            if out is not None:
                entry.require_files(rules)
    if all(entry.interference is None for entry in entries.values()):
        _refuse({"machine_cores": machine_cores}, "it has no effect without interference")
    reporter = reporter_of(progress)
    tiers = None
    if rules is not None:
        tiers = Tiers.of(loaded(RuleSet, rules), tolerance_shares(tolerance), objective, artifact)
    demands = demands_of(
        entries, None if tiers is None else (rules, tiers), prices or {}, confidence, machine_cores, seed, reporter,
        quantile=quantile, devices=devices_of(device),
    )  # fmt: skip
    if out is not None and (tiers is None or verify_s is not None):
        require_served(demands, with_data=verify_s is not None)
    if verify_s is not None:
        require_any_here(list(demands[0].workers.values()), reporter)
    planner = Planner(
        demands, reserve_us=reserve_ms * 1e3, max_workers=max_workers, seed=seed, least_energy=least_energy
    )
    facts = {
        **_promises(entries, planner), "confidence": confidence, "reserve_ms": reserve_ms, "seed": seed,
        "verify_s": verify_s, "requests": planner.requests,
    }  # fmt: skip
    if models is None:
        facts |= {
            "device": device,
            "rules": None if rules is None else name_of(rules),
            "best_version": None if tiers is None else tiers.rules.best_version,
            "cancels": None if tiers is None else tiers.cancels,
            "strictest": tiers is not None and tiers.strictest,
            "objective": objective,
        }
    if cause := why_nothing_fits(planner, reporter):
        return Plan([], facts, cause)
    with reporter.progress(f"fleets for {planner.requests:,} requests") as steps:
        fleets = planner.search(steps.advance)
    result = Plan.of(fleets, planner, facts)
    if result.holds:
        note_sharing(planner, fleets, reporter)
    return result if out is None or not result.holds else _served(result, planner, fleets, out, verify_s, reporter)


def _entries(
    models: Sequence[Mapping[str, Any]] | None,
    of_all: Mapping[str, Any],
    of_one: Mapping[str, Any],
    of_rules: Mapping[str, Any],
) -> dict[str, PlannedModel]:
    """Return models by name, a single one under "". Raises ``ArgumentError`` for arguments that exclude each other."""
    if models is not None:
        _refuse(of_one, "each of the models states its own; leave it out")
        _refuse(of_rules, f"it has no effect with models: {NO_RULES}")
        return models_by_name(models, of_all)
    if of_rules["rules"] is None:
        _refuse(of_rules, "it says which tiers of rules requests ask for: give rules too")
    else:
        _refuse({"policies": of_all["policies"]}, "it has no effect with --rules; leave it out")
        if of_one["outcomes"] is None:
            raise ArgumentError("outcomes", "with rules this table is needed: requests are simulated as its examples")
    return {"": PlannedModel(**of_all, **of_one)}


def _refuse(arguments: Mapping[str, Any], why: str) -> None:
    """Raise ``ArgumentError`` for the first argument that is given."""
    for name, value in arguments.items():
        if value is not None:
            raise ArgumentError(name, why)


def _promises(entries: Mapping[str, PlannedModel], planner: Planner) -> dict[str, Any]:
    """Return the facts of a single model, or those of several as a list, ``promises``."""
    promises = []
    for name, entry in entries.items():
        interference, traffic = entry.interference, planner.models[name]
        ratio = f"{interference:g} times" if isinstance(interference, int | float) else None
        promises.append(
            {
                **({"model": name} if name else {}),
                "subject": next(iter(planner.demands[name].workers.values())).profile.subject,
                "deadline_ms": entry.deadline_ms,
                "attainment": entry.attainment,
                "min_accuracy": entry.min_accuracy,
                "interference": None if interference is None else ratio or name_of(interference),
                "arrivals": f"{entry.rate:g} requests/s" if entry.arrivals is None else name_of(entry.arrivals),
                "requests": traffic.requests,
                "rate_per_s": traffic.rate_per_s,
            }
        )
    return promises[0] if "" in entries else {"promises": promises}


def _served(
    plan: Plan, planner: Planner, fleets: Fleets, out: Path, verify_s: float | None, reporter: Reporter
) -> Plan:
    """Write the service file of ``plan``, or one for each model, and verify it on this machine if requested."""
    from slotool.planning.service_files import write_services
    from slotool.planning.verified_plan import verified_plan

    best, (paths, lacking) = fleets.best, write_services(planner, fleets, out, reporter)
    if lacking:
        return replace(plan, kept=False, verdict=lacking)
    if best is None:
        apart = "" if verify_s is None else "not verified: models apart are verified one by one, by a plan for each"
        return replace(plan, out=paths[0], others=paths[1:], verdict=apart)
    plan = replace(plan, out=out)
    if verify_s is None:
        return plan
    verified, is_kept, verdict = verified_plan(out, planner, best.fleet, verify_s, reporter)
    return replace(plan, verified=verified, kept=is_kept, verdict=verdict)
