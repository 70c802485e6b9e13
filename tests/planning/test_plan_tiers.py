"""``slotool plan --rules``: the least fleet for requests of tolerance tiers, and what is said of it."""

from __future__ import annotations

import tomllib
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import slotool as api
from slotool.artifacts.bundle import shipped_artifact
from slotool.errors import ArgumentError, InputError, PromiseBroken, SlotoolWarning
from slotool.planning.fleet import Pool, WorkerType
from slotool.planning.model_on_workers import Demand
from slotool.planning.planner import Planner
from slotool.planning.promise import Promise
from slotool.planning.tiers import TierMix, Tiers, read_versions
from slotool.rules import Conc, Rule, RuleSet, from_point, generate_rules
from slotool.scheduling import ControlSpace, ToleranceTiers
from slotool.tables import LatencyTable, OperatingPoint, OutcomeTable
from slotool.testing.rules import family_outcomes
from slotool.workloads import ArrivalTable, Bursty, Poisson
from tests.conftest import Slotool

CALL_S = {"small": 1e-3, "medium": 3e-3, "large": 1e-2}
DATASETS = Path(__file__).parents[2] / "datasets"


@pytest.fixture(scope="module")
def outcomes() -> OutcomeTable:
    return family_outcomes(2_000)


@pytest.fixture(scope="module")
def rules(outcomes: OutcomeTable) -> RuleSet:
    """Tiers from the best version alone to the cheapest one."""
    tolerances = (0.0, 0.02, 0.04, 0.2)
    return api.gen_rules(outcomes, tolerances=tolerances, tolerance_kind="absolute", confidence=0.95).rules


def latencies(slower: float = 1.0, names: tuple[str, ...] = tuple(CALL_S)) -> LatencyTable:
    random = np.random.default_rng(4)
    return LatencyTable.of(
        {"subject": "family", "point": f"version={name}", "batch_size": 1,
         "samples_s": list(slower * CALL_S[name] * random.lognormal(0, 0.1, 40))}
        for name in names
    )  # fmt: skip


def traffic(times_s: np.ndarray) -> ArrivalTable:
    return ArrivalTable(pd.DataFrame({"arrival_s": times_s}))


def test_the_load_of_each_version_is_that_of_the_replayed_rules(rules: RuleSet, outcomes: OutcomeTable) -> None:
    """So few requests that none waits: by example, the versions that its tier's ensemble asks."""
    rule = rules.rule_for(0.02, "cost")
    policy = from_point(rule.point)
    found = api.plan(
        latencies(), outcomes=outcomes, rules=rules, tolerance=0.02, objective="cost", deadline_ms=200,
        arrivals=traffic(np.arange(5_000) * 0.1),
    )  # fmt: skip
    row = found.rows[0]
    taken = policy.depths(outcomes)
    assert len(policy.versions) > 1
    for at, version in enumerate(policy.versions):
        share = float((taken > at).mean())
        assert row["version_calls"][version] == pytest.approx(
            share, abs=4 * np.sqrt(share * (1 - share) / 5_000) + 1e-9
        )
    accuracy = 1 - float(policy.replay(outcomes).error.mean())
    assert row["accuracy"] == pytest.approx(accuracy, abs=4 * np.sqrt(accuracy * (1 - accuracy) / 5_000))
    assert row["tiers"] == [
        {
            "tolerance": 0.02, "share": 1.0, "objective": "cost", "tier": 0.02, "at_once": False, "rule": rule.id,
            "routing": policy.words,
            "bound": rule.bound, "above": "the best version", "certified": rule.certified, "note": rule.note,
            "confidence": 0.95,
            "tolerance_kind": "absolute", "max_error": 1.0,
        }
    ]  # fmt: skip
    assert (row["replicas"], row["other_tier"], row["mean_batch"]) == (1, 0.0, 1.0)


@pytest.mark.parametrize(("price", "burstiness"), [(1.4, 6.0), (1.8, 1.0), (2.6, 6.0)])
def test_the_plan_is_the_cheapest_of_all_fleets(
    tmp_path: Path, rules: RuleSet, outcomes: OutcomeTable, price: float, burstiness: float
) -> None:
    """Both kinds of workers, both objectives, all sizes."""
    files = {"slow": tmp_path / "slow.parquet", "fast": tmp_path / "fast.parquet"}
    prices = {"slow, 1 thread": 1.0, "fast, 1 thread": price}
    for (name, file), slower in zip(files.items(), (1.0, 0.5), strict=True):
        assert name in str(file)
        latencies(slower).save(file)
    times_s = Bursty(200.0, 600.0, burstiness).times(3.0, seed=11)
    found = api.plan(
        list(files.values()), outcomes=outcomes, rules=rules, tolerance=0.04, arrivals=traffic(times_s), deadline_ms=60,
        prices=prices, max_workers=40, progress=None,
    )  # fmt: skip
    mixes = [TierMix(((0.04, 1.0),), objective) for objective in ("response-time", "cost")]
    kinds = [
        WorkerType(name, read_versions(LatencyTable.load(file), outcomes, rules), 1, each)
        for (name, each), file in zip(prices.items(), files.values(), strict=True)
    ]
    workers = {kind.name: kind for kind in kinds}
    demand = Demand("", times_s, Promise(60e3, 0.99), workers, [], outcomes, tiers=Tiers(rules, mixes))
    planner = Planner([demand], reserve_us=2e3)
    pools = [{"": Pool(kind, str(mix), 1)} for kind in kinds for mix in mixes]
    fleets = [planner.served(pool, replicas, 1) for pool in pools for replicas in range(1, 21)]
    costs = [fleet.cost for fleet in fleets if not fleet.misses(planner.promises)]
    assert found.holds
    assert min(costs) <= found.rows[0]["cost"] <= 1.05 * min(costs)


def test_without_a_tolerance_the_plan_is_for_the_strictest_tier_that_the_workers_hold(
    rules: RuleSet, outcomes: OutcomeTable
) -> None:
    common = {
        "outcomes": outcomes, "rules": rules, "objective": "cost", "arrivals": traffic(Poisson(150.0).times(20.0, 1)),
        "deadline_ms": 100, "max_workers": 1, "progress": None,
    }  # fmt: skip
    tolerances = sorted({rule.tolerance for rule in rules.rules})
    alone = {tolerance: api.plan(latencies(), tolerance=tolerance, **common) for tolerance in tolerances}
    holding = [tolerance for tolerance, found in alone.items() if found.holds]
    assert 0 < len(holding) < len(tolerances), "some tiers take more than one worker, and some do not"
    found = api.plan(latencies(), **common)
    assert found.rows[0]["tiers"][0]["tolerance"] == min(holding)
    assert len(found.rows) == len(tolerances)
    assert "a stricter tier does not: 1 worker of 1 thread under tier" in found.explanation
    with pytest.raises(
        PromiseBroken, match="no fleet keeps the promise; closest: 1 worker of 1 thread under tier 0 of"
    ):
        alone[0.0].judge()


def test_requests_of_several_tiers_share_the_workers(rules: RuleSet, outcomes: OutcomeTable) -> None:
    def calls(tolerance: object) -> float:
        found = api.plan(
            latencies(), outcomes=outcomes, rules=rules, tolerance=tolerance, objective="cost", rate=50.0,
            deadline_ms=200, progress=None,
        )  # fmt: skip
        return float(found.rows[0]["version_calls"].get("large", 0.0))

    strict, loose, both = calls(0.0), calls(0.2), calls({0.0: 0.25, 0.2: 0.75})
    assert (strict, loose) == (1.0, 0.0)
    assert both == pytest.approx(0.25, abs=0.04)


@pytest.mark.long
def test_the_service_file_names_the_rules_and_a_server_keeps_the_promise(slotool: Slotool, tmp_path: Path) -> None:
    table = DATASETS / "digits-supernet-outcomes.parquet"
    made = slotool("gen-rules", table, "-o", tmp_path / "rules.json", "--tolerances", "0.05", "--tolerance-kind",
                   "absolute", "--confidence", "0.9")  # fmt: skip
    assert made.exit_code == 0, made.stderr
    traffic(Poisson(60.0).times(10.0, seed=0)).save(tmp_path / "arrivals.parquet")
    done = slotool(
        "plan", DATASETS / "digits-supernet-latency.parquet", "--outcomes", table, "--rules", tmp_path / "rules.json",
        "--tolerance", "0.05", "--objective", "cost", "--arrivals", tmp_path / "arrivals.parquet", "--deadline-ms", 200,
        "--attainment", 0.5, "--artifact", shipped_artifact("supernet").path, "-o", tmp_path / "service.toml",
        "--verify", "2s", "--data", "digits", "--json",
    )  # fmt: skip
    assert done.exit_code == 0, done.stderr
    service = tomllib.loads((tmp_path / "service.toml").read_text())
    assert "policy" not in service
    assert (tmp_path / service["models"][0]["rules"]).resolve() == (tmp_path / "rules.json").resolve()
    assert "# Requests are to ask for tolerance 0.05 and objective cost." in (tmp_path / "service.toml").read_text()
    assert [row["what"] for row in done.document["verified"]] == ["planned", "with the front end", "served"]
    assert done.document["kept"] is True
    said = slotool(
        "plan", DATASETS / "digits-supernet-latency.parquet", "--outcomes", table, "--rules", tmp_path / "rules.json",
        "--tolerance", "0=0.5,0.05=0.5", "--rate", 100, "--deadline-ms", 50,
    )  # fmt: skip
    assert "calls per second:" in said.stdout
    assert "tier 0.05 (50% of the requests):" in " ".join(said.stdout.split())


@pytest.mark.parametrize(
    ("other", "error", "says"),
    [
        ({"rules": None}, ArgumentError, "tolerance: it says which tiers of rules"),
        ({"outcomes": None}, ArgumentError, "outcomes: with rules this table is needed"),
        ({"tolerance": {0.0: 0.5, 0.02: 0.4}}, ArgumentError, "shares like 0=0.2,0.05=0.8 that add up to 1"),
        ({"tolerance": -1.0}, ArgumentError, "tolerance: '-1=1' is neither"),
        ({"tolerance": float("nan")}, ArgumentError, "tolerance: 'nan=1' is neither"),
        ({"tolerance": float("inf")}, ArgumentError, "tolerance: 'inf=1' is neither"),
        ({"tolerance": {float("nan"): 0.5, 0.0: 0.5}}, ArgumentError, "tolerance: 'nan=0.5,0=0.5' is neither"),
        ({"tolerance": {0.0: float("nan"), 0.1: 1.0}}, ArgumentError, "tolerance: '0=nan,0.1=1' is neither"),
        ({"objective": "speed"}, InputError, "no rules for objective 'speed'; there are rules for"),
    ],
)
def test_what_cannot_be_planned_is_one_sentence(
    rules: RuleSet, outcomes: OutcomeTable, other: dict[str, object], error: type[Exception], says: str
) -> None:
    asked = {"outcomes": outcomes, "rules": rules, "tolerance": 0.0, "rate": 100.0, "deadline_ms": 50.0}
    with pytest.raises(error, match=says):
        api.plan(latencies(), **{**asked, **other})


def test_a_deadline_that_no_ensemble_fits_into_is_kept_by_no_fleet(rules: RuleSet, outcomes: OutcomeTable) -> None:
    asked = {"outcomes": outcomes, "rules": rules, "tolerance": 0.0, "rate": 100.0, "deadline_ms": 3.0}
    found = api.plan(latencies(), **asked, progress=None)
    with pytest.raises(PromiseBroken, match="no request could begin: its ensemble may take"):
        found.judge()
    assert not found.rows


def test_a_tolerance_beyond_all_tiers_gets_the_widest_as_in_serve(rules: RuleSet, outcomes: OutcomeTable) -> None:
    common = {"outcomes": outcomes, "rules": rules, "objective": "cost", "rate": 50.0, "deadline_ms": 100}
    with pytest.warns(SlotoolWarning, match=r"tolerance 0.9 is wider than every tier: .*, the widest answers, 0.2"):
        far = api.plan(latencies(), tolerance=0.9, **common)
    widest = api.plan(latencies(), tolerance=0.2, progress=None, **common)
    assert far.rows[0]["version_calls"] == widest.rows[0]["version_calls"]
    assert "tolerance 0.9, answered by tier 0.2:" in repr(far)
    space = ControlSpace([OperatingPoint.of(version=name) for name in CALL_S])
    (served, _), *_ = ToleranceTiers(rules, space).choices(1.0, "cost")
    assert rules.rule_for(0.2, "cost").point == served


def test_an_accuracy_that_a_tier_does_not_have_takes_no_more_workers(rules: RuleSet, outcomes: OutcomeTable) -> None:
    common = {"outcomes": outcomes, "rules": rules, "tolerance": 0.2, "objective": "cost", "rate": 50.0}
    enough = api.plan(latencies(), deadline_ms=100, progress=None, **common).rows[0]
    found = api.plan(
        latencies(), deadline_ms=100, min_accuracy=enough["accuracy"] + 0.01, progress=None, **common
    )  # fmt: skip
    assert not found.holds
    assert found.rows[0]["replicas"] == enough["replicas"]
    assert "more workers would not change that" in found.explanation
    beyond = api.plan(latencies(), deadline_ms=100, min_accuracy=0.9999, progress=None, **common)
    assert "nothing reaches an accuracy of 0.9999; the best, large alone, has" in beyond.explanation


def test_the_queue_holds_what_the_tiers_ensemble_can_answer(rules: RuleSet, outcomes: OutcomeTable) -> None:
    def queue(tolerance: float) -> int:
        found = api.plan(
            latencies(), outcomes=outcomes, rules=rules, tolerance=tolerance, objective="cost", rate=50.0,
            deadline_ms=200, progress=None,
        )  # fmt: skip
        assert found.rows[0]["replicas"] == 1
        return int(found.rows[0]["max_queue"])

    # The best version answers the strictest tier: 200 ms hold twenty calls of about 10 ms.
    assert queue(0.0) == pytest.approx(20, abs=1)
    policy = from_point(rules.rule_for(0.2, "cost").point)
    mean_s = np.cumsum([CALL_S[name] for name in policy.versions])[policy.depths(outcomes) - 1].mean()
    assert queue(0.2) == pytest.approx(0.2 / mean_s, rel=0.05)


def test_a_plan_says_whether_versions_asked_at_once_are_cancelled(outcomes: OutcomeTable) -> None:
    conc = Conc("small", "large", 0.95)
    rule = Rule("r", "response-time", 0.1, conc.point, 0.0, 0.1, 1e-3, 1e-3)
    rules = RuleSet("certified", 0.95, "relative", "large", 0.1, len(outcomes.examples), "", (rule,))
    common = {"outcomes": outcomes, "rules": rules, "tolerance": 0.1, "rate": 300.0, "deadline_ms": 100}
    unknown = api.plan(latencies(), progress=None, **common)
    assert "the second counts as running to its end" in " ".join(repr(unknown).split())
    cancelled = api.plan(latencies(), artifact=shipped_artifact("family").path, progress=None, **common)
    assert "the second is cancelled where the first is sure enough" in " ".join(repr(cancelled).split())
    busy = [row["replicas"] * row["utilisation"] for row in (cancelled.rows[0], unknown.rows[0])]
    assert busy[0] < 0.99 * busy[1]


def test_latencies_of_batches_only_do_not_say_how_long_a_request_takes(rules: RuleSet, outcomes: OutcomeTable) -> None:
    table = latencies()
    four = LatencyTable(table.rows.assign(batch_size=4))
    with pytest.raises(InputError, match=r"version=small begin with batches of 4; .* measure batch size 1"):
        api.plan(four, outcomes=outcomes, rules=rules, tolerance=0.0, rate=100.0, deadline_ms=50.0)


def test_a_latency_table_without_a_version_of_the_rules_is_refused(rules: RuleSet, outcomes: OutcomeTable) -> None:
    table = latencies(names=("small", "medium"))
    with pytest.raises(InputError, match="no version 'large' of the rules; it has small, medium"):
        api.plan(table, outcomes=outcomes, rules=rules, tolerance=0.0, rate=100.0, deadline_ms=50.0)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (("--tolerance", "0.1=x"), "is neither a tolerance from 0 on nor shares"),
        (("--tolerance", "0=0.5,0=0.5"), "is neither a tolerance from 0 on nor shares"),
        (("--policies", "slackfit"), "it has no effect with --rules"),
    ],
)
def test_options_that_cannot_be_meant_are_refused(slotool: Slotool, given: tuple[str, str], says: str) -> None:
    done = slotool("plan", "latency.parquet", "--rules", "rules.json", "--deadline-ms", 50, *given)
    assert done.exit_code == 2
    assert says in " ".join(done.stderr.split())


def test_errors_above_1_keep_their_unit_and_a_percentage_is_refused(rules: RuleSet, outcomes: OutcomeTable) -> None:
    words = outcomes.with_errors(outcomes.matrix("error") * 20)
    in_words = generate_rules(words, [1.0, 2.0], ["cost"], 0.95, tolerance_kind="absolute", max_error=20.0)
    common = {"outcomes": words, "rate": 50.0, "deadline_ms": 300, "progress": None}
    found = api.plan(latencies(), rules=in_words, tolerance=2.0, **common)
    tier = in_words.rule_for(2.0, "cost")
    assert tier.certified
    assert f"at most {tier.bound:g} of error worse than" in repr(found)
    assert 0.8 < found.rows[0]["accuracy"] < 1.0
    with pytest.raises(InputError, match=r"error 20 is above 1, so that no accuracy"):
        api.plan(latencies(), **common)
    with pytest.raises(ArgumentError, match=r"tolerance: tolerance 5: .* for 5 % give 0\.05"):
        api.plan(latencies(), rules=rules, tolerance=5.0, **{**common, "outcomes": outcomes})
