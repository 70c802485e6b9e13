"""``slotool plan`` of several models: workers that they share, as the server shares them, beside a fleet for each."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import slotool as api
from slotool.artifacts.bundle import shipped_artifact
from slotool.errors import ArgumentError, InputError, PromiseBroken
from slotool.planning import front_end
from slotool.planning.model_on_workers import Demand
from slotool.planning.planner import Planner, sampled_together
from slotool.planning.promise import Promise
from slotool.planning.worker_types import Named, worker_types
from slotool.serving.operations.service_file import ServiceFile
from slotool.serving.operations.sources import Sources
from slotool.tables import LatencyTable
from slotool.workloads import ArrivalTable, Poisson
from tests.conftest import Slotool

DATASETS = Path(__file__).parents[2] / "datasets"
LATENCY, OUTCOMES = (DATASETS / f"digits-supernet-{what}.parquet" for what in ("latency", "outcomes"))
# What the shipped table needs repaired is said; here it is known.
pytestmark = pytest.mark.filterwarnings("ignore::slotool.errors.SlotoolWarning")


def table(one_ms: float, subject: str = "net", threads: tuple[int, ...] = (1,), seed: int = 0) -> LatencyTable:
    """Two points, the accurate one three times as slow; calls of four take twice as long as those of one."""
    generator = np.random.default_rng(seed)
    rows = [
        {
            "subject": subject,
            "point": f"version={point}",
            "batch_size": size,
            "threads": count,
            "samples_s": list(1e-3 * one_ms * slower * (0.67 + 0.33 * size) / count * generator.lognormal(0, 0.1, 20)),
        }
        for point, slower in (("small", 1.0), ("large", 3.0))
        for size in (1, 2, 4)
        for count in threads
    ]
    made = LatencyTable.of(rows).rows
    return LatencyTable(made.assign(accuracy=np.where(made["point"] == "version=large", 0.9, 0.8)))


def model(name: str, one_ms: float, rate: float, deadline_ms: float, **other: Any) -> dict[str, Any]:
    found = {"name": name, "latency": table(one_ms), "rate": rate, "deadline_ms": deadline_ms}
    return {**found, "policies": "slackfit,maxacc", **other}


def planned(*models: dict[str, Any], **settings: Any) -> Any:
    return api.plan(models=models, progress=None, attainment=0.95, max_workers=40, **settings)


def fleets(plan: Any) -> dict[str, Any]:
    """By kind; of shared fleets the cheapest."""
    found: dict[str, Any] = {}
    for row in plan.rows:
        found.setdefault(row["kind"], row)
    return found


@pytest.mark.parametrize(
    ("other_ms", "rate", "deadline_ms"),
    [
        pytest.param(1.0, 150.0, 30.0, id="models that are alike"),
        pytest.param(8.0, 90.0, 150.0, id="one whose calls take longer, within their time"),
        pytest.param(60.0, 10.0, 400.0, id="one whose calls take longer than the other may wait"),
        pytest.param(0.4, 900.0, 15.0, id="many short calls"),
    ],
)
def test_models_together_need_no_more_than_apart(other_ms: float, rate: float, deadline_ms: float) -> None:
    found = planned(model("first", 2.0, 200.0, 40.0), model("other", other_ms, rate, deadline_ms))
    both = fleets(found)
    assert found.holds
    assert found.rows[0]["cost"] <= both["apart"]["cost"] == sum(each["replicas"] for each in both["apart"]["models"])
    alone = [
        api.plan(
            table(one_ms), rate=own, deadline_ms=own_ms, attainment=0.95, policies="slackfit,maxacc", progress=None
        ).rows[0]["cost"]
        for one_ms, own, own_ms in ((2.0, 200.0, 40.0),)
    ]
    assert both["apart"]["models"][0]["replicas"] == alone[0], "apart is what a plan of the model by itself says"
    for each in found.rows[0]["models"]:
        assert each["attainment_at_least"] >= 0.95, each["model"]
    assert found.explanation.startswith("apart ")
    assert "together" in found.explanation


def test_calls_that_are_longer_than_another_models_deadline_are_served_apart(tmp_path: Path) -> None:
    """Whatever the policies, all workers are soon at calls of 60 ms and more, and the other model may wait for 6."""
    files = {}
    for name, one_ms in (("quick", 1.0), ("slow", 60.0)):
        table(one_ms).save(files.setdefault(name, tmp_path / f"{name}.parquet"))
        (tmp_path / name).mkdir()
    models = [
        model("quick", 1.0, 200.0, 8.0, latency=files["quick"], artifact=tmp_path / "quick"),
        model("slow", 60.0, 12.0, 400.0, latency=files["slow"], artifact=tmp_path / "slow"),
    ]
    found = planned(*models, out=tmp_path / "service.toml")
    assert found.holds
    assert found.rows[0]["kind"] == "apart"
    assert "sharing does not pay" in found.explanation
    assert [path.name for path in (found.out, *found.others)] == ["service-quick.toml", "service-slow.toml"]
    for path, row in zip((found.out, *found.others), found.rows[0]["models"], strict=True):
        assert tomllib.loads(path.read_text())["replicas"] == row["replicas"]


def demand(each: dict[str, Any], arrival_s: np.ndarray) -> Demand:
    types, _ = worker_types([Named(each["latency"], None)], None, None)
    promise = Promise(each["deadline_ms"] * 1e3, 0.95)
    return Demand(each["name"], arrival_s, promise, {own.name: own for own in types}, ["slackfit", "maxacc"])


def test_the_limit_counts_workers_of_all_models_and_a_fleet_has_one_verdict() -> None:
    models = [{**model(name, 2.0, 300.0, 40.0), "policies": "slackfit"} for name in ("first", "other")]
    best = fleets(planned(*models))["shared"]
    limited = api.plan(models=models, attainment=0.95, max_workers=best["replicas"] - 1)
    assert not limited.holds
    assert limited.explanation.startswith("no plan within the limit, ")
    same = fleets(limited)["shared"]
    assert same["replicas"] == best["fewer"]["replicas"]
    shown = [[each["attainment"] for each in of["models"]] for of in (same, best["fewer"])]
    assert shown[0] == shown[1], "as the fleet with a worker less, and as the only one allowed"
    assert best["fewer"]["misses"] == {each["model"]: each["misses"] for each in same["models"] if each["misses"]}


def test_sharing_that_saves_nothing_is_called_so() -> None:
    found = planned(model("first", 2.0, 300.0, 40.0), model("other", 2.0, 300.0, 40.0))
    assert [row["cost"] for row in found.rows] == [2.0, 2.0]
    assert found.rows[0]["kind"] == "shared"
    assert "sharing saves nothing" in found.explanation


def test_a_model_of_too_few_requests_is_refused() -> None:
    for rate, arrivals in ((0.001, 0), (0.5, r"\d+")):
        with pytest.raises(InputError, match=rf"^rare: {arrivals} arrivals cannot show an attainment of 0.95"):
            planned(model("first", 2.0, 200.0, 40.0), model("rare", 2.0, rate, 40.0))


def test_workers_are_the_same_by_device_and_machine_whatever_the_order_of_tables(tmp_path: Path) -> None:
    def on(one_ms: float, device: str, machine: str, name: str) -> Path:
        made = LatencyTable(table(one_ms).rows.assign(device=device, machine=machine))
        made.save(tmp_path / f"{name}.parquet")
        return tmp_path / f"{name}.parquet"

    cpu, gpu = on(4.0, "cpu", "a", "cpu"), on(1.0, "cuda:0", "b", "gpu")
    others = on(6.0, "cpu", "a", "cpu-other"), on(2.0, "cuda:0", "b", "gpu-other")
    costs = []
    for second in (others, others[::-1]):
        first = model("first", 4.0, 150.0, 40.0, latency=[cpu, gpu])
        rows = planned(first, model("other", 4.0, 60.0, 60.0, latency=list(second))).rows
        costs.append({row["worker"]: row["replicas"] for row in rows if row["kind"] == "shared"})
    assert costs[0] == costs[1]
    assert set(costs[0]) == {"cpu, 1 thread", "gpu, 1 thread"}
    with pytest.raises(InputError, match=r"none in common \(first: threads 1 on cpu; other: threads 1 on cuda:0\)"):
        planned(model("first", 4.0, 150.0, 40.0, latency=cpu), model("other", 4.0, 60.0, 60.0, latency=others[1]))


def test_the_smallest_shared_fleet_is_found() -> None:
    """Among all numbers of workers and all pairs of policies, each simulated with latencies drawn anew."""
    models = [model("first", 2.0, 600.0, 30.0), model("other", 6.0, 150.0, 90.0)]
    found = planned(*models)
    shared = fleets(found)["shared"]
    assert shared["holds"]
    assert shared["replicas"] < fleets(found)["apart"]["replicas"]
    demands = []
    for at, each in enumerate(models):
        demands.append(demand(each, Poisson(each["rate"]).times(60.0, seed=at)))
    search = Planner(demands, reserve_us=2e3)
    pools = {name: each[0].fleet.pool for name in search.models if (each := search.apart(name))}
    least = next(replicas for replicas in range(1, 10) if not search.served(pools, replicas, 1).misses(search.promises))
    assert shared["replicas"] <= least
    assert set(shared["fewer"]["misses"]) <= {"first", "other"}


def test_workers_of_several_kinds_are_shared_by_all(tmp_path: Path) -> None:
    """Of one and two threads; a model that knows only one of them rules the other out."""
    both = {"latency": table(4.0, threads=(1, 2))}
    models = model("first", 4.0, 150.0, 30.0, **both), model("other", 4.0, 60.0, 60.0, **both)
    found = planned(*models, prices={"1 thread": 3.0, "2 threads": 2.0})
    assert {row["worker"] for row in found.rows if row["kind"] == "shared"} == {"1 thread", "2 threads"}
    assert found.rows[0]["worker"] == "2 threads"
    assert found.rows[0]["cost"] == 2.0 * found.rows[0]["replicas"]
    only = planned(models[0], model("other", 4.0, 60.0, 60.0))
    assert {row["worker"] for row in only.rows if row["kind"] == "shared"} == {"1 thread"}
    with pytest.raises(InputError, match=r"none in common \(first: threads 2 on \w+; other: threads 1 on \w+\)"):
        planned({**models[0], "latency": table(4.0, threads=(2,))}, model("other", 4.0, 60.0, 60.0))


def test_long_traffic_is_sampled_alike_for_all_models() -> None:
    arrivals = {"many": Poisson(5_000.0).times(200.0, seed=0), "few": Poisson(40.0).times(200.0, seed=1)}
    assert all(each.counted.all() for each in sampled_together(arrivals, 2_000_000, 0.1).values())
    arrivals["few"] = Poisson(500.0).times(200.0, seed=1)
    found = sampled_together(arrivals, 100_000, 0.02)
    assert 15_000 < len(found["few"].arrival_s) < 25_000, "of a model that gets few requests enough are kept"
    assert len(found["many"].arrival_s) == pytest.approx(10 * len(found["few"].arrival_s), rel=0.1)
    for traffic in found.values():
        assert (np.diff(traffic.arrival_s) >= 0).all()
        assert 0.5 < traffic.counted.mean() < 1


def test_arrivals_of_different_length_are_planned_as_far_as_all_go() -> None:
    long, short = (
        ArrivalTable(pd.DataFrame({"arrival_s": Poisson(100.0).times(span_s, seed=3)})) for span_s in (30.0, 10.0)
    )
    models = model("first", 2.0, 0, 40.0), model("other", 2.0, 0, 40.0)
    given = [{**each, "rate": None, "arrivals": own} for each, own in zip(models, (long, short), strict=True)]
    with pytest.warns(match=r"first: of 30 s of arrivals the first \S+ s count"):
        found = api.plan(models=given, attainment=0.9)
    counts = [promise["requests"] for promise in found.facts["promises"]]
    assert counts[0] == pytest.approx(counts[1], rel=0.2)


def test_a_model_that_no_fleet_serves_as_promised_is_named() -> None:
    found = planned(model("first", 2.0, 100.0, 40.0), model("other", 2.0, 100.0, 40.0, min_accuracy=0.95))
    assert not found.holds
    with pytest.raises(PromiseBroken, match=r"^other: no fleet keeps the promise: nothing reaches an accuracy of 0.95"):
        found.judge()
    with pytest.raises(InputError, match="other: no fleet keeps the promise: of 3 ms left for computing"):
        planned(model("first", 2.0, 100.0, 40.0), model("other", 20.0, 10.0, 5.0))


@pytest.mark.parametrize(
    ("changed", "settings", "problem"),
    [
        ({"rates": 5}, {}, r"models\[1\]: there is no key 'rates'; there are .*; did you mean 'rate'"),
        ({"latency": 3}, {}, r"other: latency: a latency table or its file is expected, or several"),
        ({"deadline_ms": -1.0}, {}, r"other: deadline-ms: -1 is not above 0"),
        ({"arrivals": "there.parquet"}, {}, r"other: arrivals: give either arrivals or a rate"),
        ({"name": "first"}, {}, r"'first' is the name of another model"),
        ({"attainment": 1.0}, {}, r"other: attainment: 1 is not above 0 and below 1"),
        ({}, {"latency": LATENCY}, "each of the models states its own"),
        ({}, {"out": "service.toml"}, "first: artifact: is needed for out"),
    ],
)
def test_what_is_wrong_with_a_model_is_said(changed: dict[str, Any], settings: dict[str, Any], problem: str) -> None:
    models = model("first", 2.0, 100.0, 40.0), {**model("other", 2.0, 100.0, 40.0), **changed}
    with pytest.raises((ArgumentError, InputError), match=problem):
        planned(*models, **settings)


FILE = """
attainment = 0.9
policies = "slackfit"

[[models]]
name = "digits"
artifact = "supernet"
latency = "latency.parquet"
outcomes = "outcomes.parquet"
rate = 900
deadline-ms = 30
min-accuracy = 0.9

[[models]]
name = "others"
artifact = "supernet"
latency = "latency.parquet"
outcomes = "outcomes.parquet"
rate = 300
deadline-ms = 90
"""


@pytest.fixture
def plan_file(tmp_path: Path) -> Path:
    """With paths relative to it."""
    places = {"supernet": shipped_artifact("supernet").path, "latency.parquet": LATENCY, "outcomes.parquet": OUTCOMES}
    for name, place in places.items():
        (tmp_path / name).symlink_to(place)
    (tmp_path / "plan.toml").write_text(FILE)
    return tmp_path / "plan.toml"


def test_the_command_writes_a_service_file_that_serve_reads(slotool: Slotool, plan_file: Path) -> None:
    service = plan_file.with_name("service.toml")
    found = slotool("plan", "--config", plan_file, "-o", service)
    assert found.exit_code == 0, found.stderr
    said = " ".join(found.stdout.split())
    assert "2 models on 1 worker of 1 thread that they share, confidence 0.95" in said
    assert "apart 1 + 1 workers of 1 thread (cost 2), together 1 of 1 thread (cost 1)" in said
    models = tomllib.loads(service.read_text())["models"]
    assert [(each["name"], each["deadline-ms"], each["policy"]) for each in models] == [
        ("digits", 30.0, "slackfit"), ("others", 90.0, "slackfit"),
    ]  # fmt: skip
    sources = ServiceFile(service, {}, Sources((), mapped=True)).read()
    assert sources.workers == (1, 1)
    document = slotool("plan", "--config", plan_file, "--rate", 100, "--json").document
    assert document["schema"] == "slotool/plan-models"
    assert [each["arrivals"] for each in document["promises"]] == ["100 requests/s"] * 2, "the command line goes first"
    assert document["promises"][0]["attainment"] == 0.9


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--tolerance", "0.05"), "--tolerance: it has no effect with models: how requests of tolerance tiers"),
        (("--outcomes", "outcomes.parquet"), "--outcomes: each of the models states its own"),
    ],
)
def test_options_without_effect_on_models_are_refused(
    slotool: Slotool, plan_file: Path, options: tuple[str, ...], problem: str
) -> None:
    found = slotool("plan", "--config", plan_file, *options)
    assert found.exit_code == 2
    assert problem in " ".join(found.stderr.split())


@pytest.mark.parametrize(
    ("text", "there"), [("models = []", "there is none"), (FILE.rpartition("[[models]]")[0], "there is one")]
)
def test_fewer_than_two_models_are_refused(slotool: Slotool, plan_file: Path, text: str, there: str) -> None:
    plan_file.write_text(text)
    found = slotool("plan", "--config", plan_file)
    assert found.exit_code == 2
    assert f"two models at least are expected, and {there}" in " ".join(found.stderr.split())


def test_a_plan_of_one_subject_still_needs_its_table_and_deadline(slotool: Slotool) -> None:
    for given, option in ((("--deadline-ms", 5), "latency"), ((LATENCY,), "--deadline-ms")):
        found = slotool("plan", *given, "--rate", 5)
        assert found.exit_code == 2
        assert option in found.stderr


@pytest.mark.long
def test_models_that_share_workers_are_verified_by_one_server(plan_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in (("PROBE_S", 0.4), ("BURSTS", 3), ("BURSTS_S", 0.4), ("BUSY_S", 0.3)):
        monkeypatch.setattr(front_end, name, value)
    models = [
        {**each, "latency": str(LATENCY), "outcomes": str(OUTCOMES), "rate": 50.0, "deadline-ms": 500.0,
         "artifact": shipped_artifact("supernet").path, "data": "digits"}
        for each in tomllib.loads(FILE)["models"]
    ]  # fmt: skip
    found = api.plan(
        models=models, attainment=0.3, policies="slackfit", out=plan_file.with_name("service.toml"), verify_s=0.5,
        progress=None,
    )  # fmt: skip
    assert [(row["model"], row["what"]) for row in found.verified] == [
        (name, what) for name in ("digits", "others") for what in ("planned", "with the front end", "served")
    ]
    sent = {row["model"]: row["requests"] for row in found.verified if row["what"] == "served"}
    assert all(0 < count < 60 for count in sent.values())
    assert "digits: " in (found.verdict or "")
    assert "served" in repr(found)
    with pytest.raises(PromiseBroken, match=r"^digits: [^\n]+; others: [^\n]+$"):
        replace(found, kept=False).judge()
