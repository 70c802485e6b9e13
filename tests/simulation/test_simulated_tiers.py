"""Tolerance tiers on a virtual clock, held against the ``Dispatcher`` of a server and against the replay of rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotool.errors import InputError
from slotool.rules import OSFA, Conc, Rule, RuleSet, Seq
from slotool.rules.policies.cascades import Cascade, Step
from slotool.rules.policies.routing import RoutingPolicy
from slotool.scheduling import ControlSpace, ToleranceTiers
from slotool.simulation import Scenario, ServiceTimes
from slotool.simulation.service import Overhead
from slotool.simulation.tiers import TieredService, TierRequests, TierResult
from slotool.tables import OperatingPoint, OutcomeTable
from tests.simulation.plain_tiers import simulate_plainly

VERSIONS = {"small": 100.0, "medium": 300.0, "large": 1_000.0}
EXAMPLES = 50
# A call of so many takes so many times what one of a single example does.
SIZES = {1: 1.0, 2: 1.3, 4: 1.8, 8: 2.5}


# Of calls that workers which have rested take longer for.
RESTED = [
    Overhead(call_us=50.0, slower=0.5, busy_part=0.2, memory_us=memory_us, saturation=0.8, turnaround_us=20.0)
    for memory_us in (300.0, 5_000.0)
]


def outcomes() -> OutcomeTable:
    random = np.random.default_rng(3)
    rows = [
        {"example": str(i), "version": version, "error": float(random.random() < wrong), "latency_s": 1e-6 * taken_us,
         "confidence": float(random.random())}
        for i in range(EXAMPLES)
        for (version, taken_us), wrong in zip(VERSIONS.items(), (0.3, 0.2, 0.1), strict=True)
    ]  # fmt: skip
    return OutcomeTable.of(rows)


TABLE = outcomes()


def rules(policies: dict[float, RoutingPolicy]) -> RuleSet:
    """A tier of each tolerance."""
    found = [
        Rule(f"r{number}", "cost", tolerance, policy.point, 0.0, tolerance, 1e-3, 1e-3)
        for number, (tolerance, policy) in enumerate(policies.items())
    ]
    return RuleSet("certified", 0.95, "relative", "large", 0.1, EXAMPLES, "", tuple(found))


def space() -> ControlSpace:
    points = [OperatingPoint.of(version=version) for version in VERSIONS]
    return ControlSpace(
        points, {(p, s): 1.2 * share * VERSIONS[str(p.get("version"))] for p in points for s, share in SIZES.items()}
    )


def cascade(first: float, second: float) -> Cascade:
    steps = Step("small", first), Step("medium", second), Step("large")
    return Cascade(steps)


def samples(spread: float) -> dict[tuple[str, int], np.ndarray]:
    random = np.random.default_rng(1)
    return {
        (version, size): share * taken_us * random.lognormal(0, spread, 20)
        for version, taken_us in VERSIONS.items()
        for size, share in SIZES.items()
    }


def asked(count: int, tiers: int, seed: int = 0) -> TierRequests:
    random = np.random.default_rng(seed)
    return TierRequests(random.integers(EXAMPLES, size=count), random.integers(tiers, size=count))


@settings(max_examples=60, deadline=None)
@given(
    workers=st.integers(1, 4),
    gap_us=st.sampled_from([50.0, 200.0, 400.0, 900.0, 5_000.0]),
    deadline_us=st.sampled_from([500.0, 1_500.0, 3_000.0, 20_000.0]),
    threshold=st.floats(0, 1),
    cancels=st.booleans(),
    overhead=st.sampled_from([Overhead(), Overhead(call_us=50.0, slower=0.2, turnaround_us=20.0), *RESTED]),
    seed=st.integers(0, 50),
)
def test_the_compiled_loop_does_what_a_servers_dispatcher_does(
    workers: int, gap_us: float, deadline_us: float, threshold: float, cancels: bool, overhead: Overhead, seed: int
) -> None:
    # Which of two workers that a cancelled call frees at one instant is the next is not said: they may differ in rest.
    cancels = cancels and not overhead.memory_us
    policies: dict[float, RoutingPolicy] = {
        0.0: OSFA("large"),
        0.1: Seq("medium", "large", threshold),
        0.2: Conc("small", "large", threshold),
        0.3: cascade(threshold, 0.6),
        0.4: Conc("large", "small", threshold),
        0.5: OSFA("small"),
    }
    tiers = [(tolerance, "cost") for tolerance in policies]
    random = np.random.default_rng(seed)
    arrival_us = np.cumsum(np.round(random.exponential(gap_us, 120)))
    scenario = Scenario(arrival_us, arrival_us + deadline_us, np.full(workers, np.inf))
    service = TieredService(rules(policies), space(), samples(0.3), TABLE, tiers, cancels=cancels)
    own, requests = samples(0.3), asked(len(scenario), len(tiers), seed)
    found = service.simulate(scenario, requests, seed=seed, overhead=overhead)
    names = service.ensembles.versions
    values = [own[version, size] for version in names for size in SIZES]
    times = ServiceTimes(np.concatenate(values), np.cumsum([0, *map(len, values)]), seed)
    plain = simulate_plainly(
        ToleranceTiers(rules(policies), space()), TABLE, names, scenario, requests, tiers, times, cancels,
        np.array(list(SIZES)), overhead,
    )  # fmt: skip
    assert found.status.tolist() == plain.status.tolist()
    np.testing.assert_allclose(found.done_us, plain.done_us)
    keys = [service.ensembles.points[row].key if row >= 0 else "" for row in found.row]
    assert keys == plain.point
    assert found.version_calls.tolist() == plain.version_calls.tolist()
    assert found.busy_us == pytest.approx(plain.busy_us)
    assert found.batch.tolist() == plain.batch.tolist()


@pytest.mark.parametrize(
    "policy",
    [
        OSFA("medium"),
        Seq("small", "large", 0.4),
        Seq("large", "small", 0.9),
        cascade(0.7, 0.5),
        Conc("small", "large", 0.6),
    ],
    ids=lambda policy: policy.kind,
)
def test_without_queues_a_request_takes_what_the_replay_says(policy: RoutingPolicy) -> None:
    """Arrivals far apart: latencies are those of the table's replay, and calls are its counts."""
    service = TieredService(rules({0.1: policy}), space(), samples(0.0), TABLE, [(0.1, "cost")])
    arrival_us = 1e5 * np.arange(400.0)
    scenario = Scenario(arrival_us, arrival_us + 5e4, np.full(2, np.inf))
    requests = asked(400, 1)
    found = service.simulate(scenario, requests)
    replayed = policy.replay(TABLE)
    np.testing.assert_allclose(found.done_us - arrival_us, 1e6 * replayed.response_time_s[requests.example])
    assert (found.status == 1).all()
    assert found.other_tier == 0
    np.testing.assert_array_equal(found.right, 1 - replayed.error[requests.example])
    # From costs, which are machine time: what each version cost is what it was called.
    each = dict(zip(found.versions, found.version_calls.tolist(), strict=True))
    total_us = sum(VERSIONS[version] * calls for version, calls in each.items())
    if policy.kind == "conc":
        assert set(each.values()) == {400}
    else:
        assert total_us == pytest.approx(1e6 * replayed.cost[requests.example].sum())
        assert each[policy.versions[0]] == 400


def test_calls_of_busy_workers_are_shorter_than_those_of_workers_that_rested() -> None:
    service = TieredService(rules({0.1: OSFA("medium")}), space(), samples(0.0), TABLE, [(0.1, "cost")])
    overhead = Overhead(call_us=100.0, slower=0.5, busy_part=0.0, memory_us=3_000.0, saturation=0.4)

    def took_us(gap_us: float, tells_apart: Overhead) -> float:
        arrival_us = gap_us * np.arange(400.0)
        scenario = Scenario(arrival_us, arrival_us + 1e6, np.full(2, np.inf))
        found = service.simulate(scenario, asked(400, 1), overhead=tells_apart)
        assert (found.batch == 1).all()
        return float(np.mean(found.done_us - found.started_us))

    each_us = [took_us(gap_us, overhead) for gap_us in (1e5, 1e3, 500.0, 320.0)]
    assert each_us == sorted(each_us, reverse=True)
    # Far apart as ones that rested, which is all that counts without a memory; close together as the table has it.
    assert each_us[0] == pytest.approx(took_us(1e5, overhead._replace(memory_us=0.0))) == pytest.approx(550.0)
    assert each_us[-1] == pytest.approx(VERSIONS["medium"], rel=0.02)


def test_a_conc_ensemble_takes_turns_on_a_single_worker() -> None:
    conc, seq = (
        TieredService(rules({0.1: kind("small", "large", 0.6)}), space(), samples(0.0), TABLE, [(0.1, "cost")])
        for kind in (Conc, Seq)
    )
    scenario = Scenario.of(0.01 * np.arange(100.0), 0.1)
    each = [service.simulate(scenario, asked(100, 1)).done_us for service in (conc, seq)]
    np.testing.assert_allclose(*each)


@pytest.mark.parametrize(
    "policy", [OSFA("medium"), Seq("small", "large", 0.4), Conc("small", "large", 0.6)], ids=lambda policy: policy.kind
)
@pytest.mark.parametrize("workers", [1, 3])
def test_beyond_capacity_as_many_are_in_time_as_at_it(policy: RoutingPolicy, workers: int) -> None:
    """The most urgent request has hardly any time left then: it must not make the calls of all others small."""
    service = TieredService(rules({0.1: policy}), space(), samples(0.1), TABLE, [(0.1, "cost")])
    capacity_per_us = workers / service.worker_us(0)

    def goodput(load: float) -> float:
        """In time, as a share of what calls of the best size could do."""
        arrival_us = np.cumsum(np.random.default_rng(1).exponential(1 / (load * capacity_per_us), 4_000))
        scenario = Scenario(arrival_us, arrival_us + 15_000.0, np.full(workers, np.inf))
        return load * float((service.simulate(scenario, asked(4_000, 1)).status == 1).mean())

    peak = max(goodput(load) for load in (0.6, 0.7, 0.8, 0.9, 1.0))
    assert min(goodput(load) for load in (1.2, 1.5, 3.0)) > 0.9 * peak


def test_beyond_capacity_calls_of_mixed_tiers_stay_large() -> None:
    """Batches save most of the time here, and requests that a call passes have hardly any time left either."""
    each_us = {(v, n): us * (1 + n / 16) for v, us in VERSIONS.items() for n in (1, 2, 4, 8, 16, 32, 64)}
    points = {version: OperatingPoint.of(version=version) for version in VERSIONS}
    own_space = ControlSpace(list(points.values()), {(points[v], n): us for (v, n), us in each_us.items()})
    tiers = [(tolerance, "cost") for tolerance in (0.1, 0.2)]
    own_rules = rules({0.1: OSFA("medium"), 0.2: OSFA("small")})
    service = TieredService(own_rules, own_space, {at: np.array([us]) for at, us in each_us.items()}, TABLE, tiers)
    capacity_per_us = 2 / (service.worker_us(0) + service.worker_us(1))

    def goodput(load: float) -> float:
        arrival_us = np.cumsum(np.random.default_rng(1).exponential(1 / (load * capacity_per_us), 20_000))
        found = service.simulate(Scenario(arrival_us, arrival_us + 15_000.0, np.full(1, np.inf)), asked(20_000, 2))
        return load * float((found.status == 1).mean())

    slightly, more, most = (goodput(load) for load in (1.2, 1.5, 3.0))
    assert slightly > 0.98 * goodput(0.9)
    assert more > 0.98 * slightly
    assert most > 0.98 * more


@pytest.mark.parametrize("workers", [1, 3])
def test_beyond_capacity_no_call_of_a_slow_version_alone_takes_the_time_of_others(workers: int) -> None:
    """Of a version 30 times as slow, in whose batches nothing is saved, a tier asks rarely. A request too late for the
    tier's worst case would get that version alone."""
    each_us = {
        (v, n): (3_000.0 * n if v == "large" else 100.0 * s) for v in ("small", "large") for n, s in SIZES.items()
    }
    points = {version: OperatingPoint.of(version=version) for version in ("small", "large")}
    slow = ControlSpace(list(points.values()), {(points[v], n): 1.05 * us for (v, n), us in each_us.items()})
    own_rules = rules({0.1: Seq("small", "large", 0.1)})
    service = TieredService(own_rules, slow, {at: np.array([us]) for at, us in each_us.items()}, TABLE, [(0.1, "cost")])
    capacity_per_us = workers / service.worker_us(0)
    requests = asked(4_000, 1)

    def run(load: float) -> TierResult:
        arrival_us = np.cumsum(np.random.default_rng(1).exponential(1 / (load * capacity_per_us), 4_000))
        return service.simulate(Scenario(arrival_us, arrival_us + 40_000.0, np.full(workers, np.inf)), requests)

    assert (run(0.6).status == 1).mean() > 0.99
    for load in (1.5, 2.0):
        found = run(load)
        assert load * (found.status == 1).mean() > 0.85
        assert found.other_tier < 0.01 * len(found.status)


def test_a_request_whose_tier_could_be_late_gets_a_stricter_one() -> None:
    policies = {0.0: OSFA("large"), 0.3: Seq("medium", "large", 0.5)}
    service = TieredService(rules(policies), space(), samples(0.0), TABLE, [(0.3, "cost")])
    # 1,560 µs are needed in the worst case, 1,200 by the best version alone.
    found = service.simulate(Scenario.of(0.01 * np.arange(10.0), 1.3e-3), asked(10, 1))
    assert found.version_calls.tolist() == [0 if version == "medium" else 10 for version in found.versions]
    assert found.other_tier == 10
    assert service.fastest_us(0) == pytest.approx(1_200)


def test_what_is_not_simulated_is_refused() -> None:
    service = TieredService(rules({0.1: OSFA("small")}), space(), samples(0.0), TABLE, [(0.1, "cost")])
    scenario = Scenario(np.array([1.0, 2.0]), np.array([1e4, 2e4]), np.array([5e3]))
    with pytest.raises(InputError, match="workers that live"):
        service.simulate(scenario, asked(2, 1))
    with pytest.raises(InputError, match="does not know version 'large'"):
        TieredService(rules({0.1: OSFA("small")}), space(), {("small", 1): np.ones(1)}, TABLE, [(0.1, "cost")])
