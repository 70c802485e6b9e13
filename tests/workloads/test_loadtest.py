"""``slotool loadtest`` end to end, against a real HTTP server."""

from __future__ import annotations

import os
import signal
import tempfile
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from slotool.commands.serving.load_tested import LoadTest
from slotool.data import load_dataset
from slotool.elastic.family import Family
from slotool.elastic.network import Network
from slotool.elastic.training import family_graphs
from slotool.errors import InputError, PromiseBroken
from slotool.graphs.torch_module import GraphModule
from slotool.scheduling import ControlSpace, by_demand
from slotool.serving import ServedModel
from slotool.serving.access import Clients
from slotool.workloads import Poisson, RequestLog
from slotool.workloads.client import open_loop as client
from slotool.workloads.client.channels import TargetServer, ask_first_model
from slotool.workloads.client.endpoint import Terms
from slotool.workloads.client.many_processes import ManyProcesses
from slotool.workloads.client.open_loop import LoadPlan, LocalRun
from tests.serving.live_server import LiveServer, live_server

WARM_UP = 5


def test_real_examples_are_sent_and_every_figure_agrees_with_the_log(slotool: Any, server: Any, tmp_path: Path) -> None:
    out = tmp_path / "requests.parquet"
    run = slotool(
        "loadtest", server.url, "-o", out, "--data", "digits", "--rate", 100, "--duration", 1, "--deadline-ms", 500,
        "--min-accuracy", 0.9, "--target", 0.5, "--json",
    )  # fmt: skip
    assert run.exit_code == 0, run.stderr
    log, document = RequestLog.load(out), run.document
    assert document["requests"] == len(log) == len(Poisson(100).times(1, 0)) == len(server.seen) - WARM_UP
    assert document["subject"] == "first", "without --model it is the first the server lists"
    assert {seen["model"] for seen in server.seen} == {"first"}
    assert all(seen["parameters"] == {"timeout": 500_000, "min_accuracy": 0.9} for seen in server.seen)
    assert set(log.rows["point"]) == {"k=0.5"}
    assert np.allclose(log.rows["compute_s"], 250e-6)
    test = load_dataset("digits").test
    assert (test.y[log.rows["example"]] == log.rows["label"]).all()
    assert 0.6 < document["accuracy_of_answered"] < 1.0, "the server's nearest-mean classifier, on real digits"
    assert document["effective_accuracy"] == pytest.approx((log.correct & log.in_time).mean())
    assert log.provenance["seed"] == 0
    due = log.rows["intended_s"]
    drawn = (len(log) - 1) / (due.max() - due.min())
    assert (document["rate_per_s"], document["drawn_rate_per_s"]) == (100, pytest.approx(drawn))
    assert drawn != pytest.approx(100)


def test_slotools_own_index_lists_models_too(slotool: Any, server: Any, tmp_path: Path) -> None:
    server.lists_by_index = False
    run = slotool(
        "loadtest", server.url, "-o", tmp_path / "r", "--data", "digits", "--rate", 60, "--duration", 0.2, "--json"
    )
    assert run.document["subject"] == "leading"


def test_compute_carries_the_terms_in_headers(slotool: Any, server: Any, tmp_path: Path) -> None:
    run = slotool(
        "loadtest", server.url, "-o", tmp_path / "r.parquet", "--model", "second", "--data", "digits", "--rate", 60,
        "--duration", 0.5, "--endpoint", "compute", "--tolerance", 0.05, "--objective", "cost", "--deadline-ms", 250,
    )  # fmt: skip
    assert run.exit_code == 0, run.stderr
    wanted = {"Model": "second", "Tolerance": "0.05", "Objective": "cost", "Deadline-Ms": "250"}
    assert all(wanted.items() <= seen.items() for seen in server.seen)
    assert "version=small" in run.stdout
    assert "effective accuracy" in run.stdout


def test_a_share_of_the_requests_is_more_important(slotool: Any, server: Any, tmp_path: Path) -> None:
    arguments = ("--data", "digits", "--rate", 100, "--duration", 0.5, "--deadline-ms", 500)
    arguments += ("--priority", "1=0.3,4=0.2")
    for endpoint in ("infer", "compute"):
        server.seen.clear()
        out = tmp_path / f"{endpoint}.parquet"
        run = slotool("loadtest", server.url, "-o", out, "--model", "m", "--endpoint", endpoint, *arguments, "--json")
        assert run.exit_code == 0, run.stderr
        asked = [seen["parameters"] if endpoint == "infer" else seen for seen in server.seen[WARM_UP:]]
        name = "priority" if endpoint == "infer" else "Priority"
        sent = [int(each.get(name, 0)) for each in asked]
        log = RequestLog.load(out)
        assert sorted(sent) == sorted(log.rows["priority"]), "what was sent is what the log says"
        told = {row["priority"]: row for row in run.document["priorities"]}
        assert list(told) == [1, 4, 0]
        for priority, row in told.items():
            there = (log.rows["priority"] == priority).to_numpy()
            assert row["requests"] == there.sum()
            assert row["deadline_meet_rate"] == pytest.approx(log.in_time[there].mean())
    plan = LoadPlan.draw(Poisson(5_000), 1.0, load_dataset("digits").test, seed=0, shares={1: 0.3, 4: 0.2})
    assert np.allclose(np.bincount(plan.priorities, minlength=5) / len(plan), [0.5, 0.3, 0, 0, 0.2], atol=0.03)


@pytest.mark.parametrize("processes", [1, 2])
def test_requests_share_several_tolerances(slotool: Any, server: Any, tmp_path: Path, processes: int) -> None:
    arguments = ("--data", "digits", "--rate", 100, "--duration", 0.5, "--deadline-ms", 5_000, "--processes", processes)
    arguments += ("--tolerance", "0=0.25,0.05=0.75", "--objective", "cost", "--target", 0.01)
    for endpoint in ("infer", "compute"):
        server.seen.clear()
        out = tmp_path / f"{endpoint}.parquet"
        run = slotool("loadtest", server.url, "-o", out, "--model", "m", "--endpoint", endpoint, *arguments, "--json")
        assert run.exit_code == 0, run.stderr
        asked = [seen["parameters"] if endpoint == "infer" else seen for seen in server.seen]
        name = "tolerance" if endpoint == "infer" else "Tolerance"
        log = RequestLog.load(out)
        assert {float(each[name]) for each in asked} == {0.0, 0.05}
        strict = int((log.rows["tolerance"] == 0.0).sum())
        assert 0 < strict < len(log) - strict
        assert [row["tolerance"] for row in run.document["by_tolerance"]] == [0.0, 0.05]
        assert [row["requests"] for row in run.document["by_tolerance"]] == [strict, len(log) - strict]
        assert run.document["tolerances"] == "0=0.25,0.05=0.75"
    plan = LoadPlan.draw(Poisson(5_000), 1.0, load_dataset("digits").test, 0, tolerances={0.0: 0.25, 0.05: 0.75})
    assert plan.tolerances is not None
    assert (plan.tolerances == 0.05).mean() == pytest.approx(0.75, abs=0.03)


def test_the_target_holds_for_every_tolerance() -> None:
    """Nine of ten in time, but of the strict tier only four of five."""
    row = {"label": 1, "answer": 1, "status": 200, "deadline_s": 0.1, "sent_s": 0.0, "intended_s": 0.0}
    rows = [{**row, "tolerance": 0.05, "done_s": 0.01}] * 5 + [{**row, "tolerance": 0.0, "done_s": 0.01}] * 4
    log = RequestLog.of([*rows, {**row, "tolerance": 0.0, "done_s": 0.3}], {"subject": "m"})
    LoadTest(log, 10, 0.8).judge()
    with pytest.raises(PromiseBroken, match=r"80.00% of the requests of tolerance 0 met their deadline of 100 ms"):
        LoadTest(log, 10, 0.9).judge()


@pytest.mark.parametrize(("delay", "sent"), [(0.0, "1.0/s sent"), (1.0, "0.5/s sent")])
def test_the_drawn_rate_stands_beside_the_sent_one(delay: float, sent: str) -> None:
    row = {"label": 1, "answer": 1, "status": 200}
    due_s = [float(at) for at in range(4)]
    rows = [{**row, "intended_s": at, "sent_s": at * (1 + delay), "done_s": at * (1 + delay) + 0.1} for at in due_s]
    shown = repr(LoadTest(RequestLog.of(rows, {"subject": "m"}), 4))
    assert "1.0/s drawn" in shown
    assert sent in shown


def test_a_missed_slo_is_a_verdict_after_the_results(slotool: Any, server: Any, tmp_path: Path) -> None:
    server.stalls, server.stall_s = range(WARM_UP, 10_000), 0.06
    out = tmp_path / "r.parquet"
    run = slotool(
        "loadtest", server.url, "-o", out, "--data", "digits", "--rate", 60, "--duration", 0.5, "--deadline-ms", 20,
        "--target", 0.99,
    )  # fmt: skip
    assert run.exit_code == 1
    assert "0.00% of the requests met their deadline of 20 ms, the target is 99.00%" in run.stderr
    assert "met the deadline" in run.stdout
    assert len(RequestLog.load(out)) > 0


def test_a_client_too_late_to_judge_the_server_is_a_failed_run(slotool: Any, server: Any, tmp_path: Path) -> None:
    arguments = ("--data", "digits", "--rate", 300, "--duration", 0.3, "--deadline-ms", 0.001)
    run = slotool("loadtest", server.url, "-o", tmp_path / "r.parquet", *arguments)
    assert run.exit_code == 3
    assert "late or more, beyond their deadline of 1 µs: nothing can be judged" in run.stderr


def test_a_client_that_is_hopelessly_late_stops_sending(
    slotool: Any, server: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "MAX_SEND_DELAY_S", 0.1)
    out = tmp_path / "r.parquet"
    run = slotool("loadtest", server.url, "-o", out, "--data", "digits", "--rate", 1e5, "--duration", 0.1)
    assert run.exit_code == 3
    assert "late and stopped after" in run.stderr
    assert len(RequestLog.load(out)) < len(Poisson(1e5).times(0.1, 0))


def test_a_server_that_dies_midway_is_still_reported(slotool: Any, server: Any, tmp_path: Path) -> None:
    server.dies_after = WARM_UP + 20
    out = tmp_path / "r.parquet"
    run = slotool("loadtest", server.url, "-o", out, "--data", "digits", "--rate", 100, "--duration", 1, "--json")
    assert run.exit_code == 0, run.stderr
    log = RequestLog.load(out)
    assert len(log) == len(Poisson(100).times(1, 0)), "requests the dead server never saw are counted too"
    dead = log.rows["status"] == 0
    assert dead.sum() >= len(log) - 21
    assert (log.rows["error"][dead] != "").all()
    assert run.document["deadline_meet_rate"] == pytest.approx(1 - dead.mean())
    assert {s["status"] for s in run.document["statuses"]} == {0, 200}


def test_rejections_are_counted_by_status_with_their_reason(slotool: Any, server: Any, tmp_path: Path) -> None:
    server.status = lambda number: 503 if number % 2 else 200
    out = tmp_path / "r.parquet"
    run = slotool("loadtest", server.url, "-o", out, "--data", "digits", "--rate", 60, "--duration", 0.5)
    assert run.exit_code == 0, run.stderr
    assert "rejected with 503" in run.stdout
    assert "60/s" in run.stdout
    log = RequestLog.load(out)
    assert set(log.rows["status"]) == {200, 503}
    assert not log.answered[log.rows["status"] == 503].any()


def test_a_body_that_breaks_the_protocol_is_no_answer(slotool: Any, server: Any, tmp_path: Path) -> None:
    server.broken_body = True
    run = slotool(
        "loadtest", server.url, "-o", tmp_path / "r", "--data", "digits", "--rate", 60, "--duration", 0.3, "--json"
    )
    assert run.exit_code == 3, run.stderr
    assert "none of" in run.stderr
    assert run.document["answered"] == 0
    assert "not JSON" in run.document["statuses"][0]["error"]


def test_a_server_may_answer_in_json_alone(slotool: Any, server: Any, tmp_path: Path) -> None:
    out = tmp_path / "r.parquet"
    arguments = ("-o", out, "--data", "digits", "--rate", 60, "--duration", 0.3, "--force", "--json")
    binary = slotool("loadtest", server.url, *arguments).document
    server.binary = False
    plain = slotool("loadtest", server.url, *arguments).document
    assert binary["answered"] == plain["answered"] == plain["requests"]
    assert binary["accuracy_of_answered"] == plain["accuracy_of_answered"]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["http://127.0.0.1:9"], 3, "no server answers at http://127.0.0.1:9 (connection refused)"),
        (["http://example.com:8000"], 2, "example.com is not this machine"),
        (["http://10.1.2.3", "--model", "m"], 2, "10.1.2.3 is not this machine"),
        (["ftp://127.0.0.1"], 2, "is not a server's address"),
        (["http://127.0.0.1:9", "--target", "0.9"], 2, "give --deadline-ms too"),
        (
            ["http://127.0.0.1:9", "--arrivals", "a.parquet", "--duration", "2min"],
            2,
            "it has no effect with --arrivals",
        ),
        (["http://127.0.0.1:9", "--objective", "cost"], 2, "give --tolerance too"),
        (["http://127.0.0.1:9", "--tolerance", "0.1", "--min-accuracy", "0.9"], 2, "contradicts"),
        (["http://127.0.0.1:9", "--priority", "1=0.7,2=0.7"], 2, "add up to 1"),
        (["http://127.0.0.1:9", "--priority", "0"], 2, "a priority from 1 on"),
        (["http://127.0.0.1:9", "--tolerance", "0=0.2,0.05=0.7"], 2, "shares like 0=0.2,0.05=0.8 that add up to 1"),
        (["http://127.0.0.1:9", "--tolerance", "-0.1"], 2, "a tolerance from 0 on"),
        (["http://127.0.0.1:9", "--endpoint", "grpc"], 2, "neither infer nor compute"),
        (["127.0.0.1:9", "--protocol", "udp"], 2, "neither http nor grpc"),
        (["127.0.0.1:9", "--protocol", "grpc", "--endpoint", "compute"], 2, "Open Inference Protocol only"),
        (["127.0.0.1:9", "--protocol", "grpc"], 3, "no server answers at grpc://127.0.0.1:9 over gRPC"),
        (["127.0.0.1:9", "--protocol", "grpc", "--model", "m"], 3, "no server answers at grpc://127.0.0.1:9"),
        (["grpc://127.0.0.1:9"], 2, "is an address of gRPC: give --protocol grpc too"),
        (["127.0.0.1:9", "--processes", "2", "--model", "m"], 3, "no server answers at http://127.0.0.1:9"),
        (
            ["http://127.0.0.1:9", "--processes", "9", "--model", "m", "--rate", "5", "--duration", "0.5"],
            2,
            "cannot be sent by 9 processes",
        ),
        (["http://127.0.0.1:9", "--rate", "1e9"], 2, "are more than 5,000,000 requests"),
        (["http://127.0.0.1:9", "--rate", "0.001", "--duration", "0.001"], 2, "nothing arrives"),
        (["http://127.0.0.1:9", "--data", "nothing"], 2, "no data set called 'nothing'"),
    ],
)
def test_bad_input_is_one_sentence(
    slotool: Any, tmp_path: Path, arguments: list[str], code: int, sentence: str
) -> None:
    out = tmp_path / "r.parquet"
    run = slotool("loadtest", *(["--data", "digits"] if "--data" not in arguments else []), "-o", out, *arguments)
    assert run.exit_code == code, run.stderr
    assert sentence in " ".join(run.stderr.replace("│", " ").split())
    assert not out.exists()


def test_a_service_of_another_protocol_is_said_to_be_one(slotool: Any, tmp_path: Path) -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), BaseHTTPRequestHandler) as other:
        answering = threading.Thread(target=other.serve_forever)
        answering.start()
        address = f"http://127.0.0.1:{other.server_port}"
        run = slotool("loadtest", address, "-o", tmp_path / "r.parquet", "--data", "digits", "--duration", 0.3)
        other.shutdown()
        answering.join()
    assert run.exit_code == 2, run.stderr
    assert f"{address} is no server of the Open Inference Protocol" in run.stderr


@pytest.mark.parametrize("more", [[], ["--model", "m"]], ids=["no model", "a model"])
def test_a_port_of_http_asked_over_grpc_names_the_option_of_the_other(
    slotool: Any, server: Any, tmp_path: Path, more: list[str]
) -> None:
    arguments = ("--protocol", "grpc", *more, "-o", tmp_path / "r.parquet", "--data", "digits", "--duration", 0.3)
    run = slotool("loadtest", server.url, *arguments)
    assert run.exit_code == 3
    assert "this port speaks HTTP, not gRPC; name the port that the server's --grpc-port has" in run.stderr


def test_requests_nobody_understands_are_rejected_before_the_run(slotool: Any, server: Any, tmp_path: Path) -> None:
    server.status = lambda number: 404
    out = tmp_path / "r.parquet"
    run = slotool("loadtest", server.url, "-o", out, "--data", "digits", "--model", "nobody")
    assert run.exit_code == 2
    assert "rejects the request (404): rejected with 404" in run.stderr
    assert not out.exists()
    assert len(server.seen) == 1


def test_a_log_is_not_overwritten(slotool: Any, server: Any, tmp_path: Path) -> None:
    out = tmp_path / "r.parquet"
    out.write_text("mine")
    run = slotool("loadtest", server.url, "-o", out, "--data", "digits")
    assert run.exit_code == 2
    assert "--force" in run.stderr
    assert out.read_text() == "mine"
    assert not server.seen


def test_ctrl_c_keeps_what_was_finished(slotool: Any, server: Any, tmp_path: Path) -> None:
    def interrupt() -> None:
        while len(server.seen) < WARM_UP + 30:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    out = tmp_path / "r.parquet"
    threading.Thread(target=interrupt, daemon=True).start()
    run = slotool("loadtest", server.url, "-o", out, "--data", "digits", "--rate", 100, "--duration", 20)
    assert run.exit_code == 130
    log = RequestLog.load(out)
    assert 10 <= len(log) < 1000
    assert log.provenance["interrupted"] is True


def test_ctrl_c_before_the_first_answer_leaves_no_file(slotool: Any, server: Any, tmp_path: Path) -> None:
    def interrupt() -> None:
        while len(server.seen) < WARM_UP:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    out = tmp_path / "r.parquet"
    threading.Thread(target=interrupt, daemon=True).start()
    run = slotool("loadtest", server.url, "-o", out, "--data", "digits", "--rate", 0.2, "--duration", 60)
    assert run.exit_code == 130
    assert "r.parquet is not written" in run.stderr
    assert not out.exists()


def test_open_loop_a_stall_delays_no_later_request(server: Any) -> None:
    """While the server sits on a few requests all others leave on time, and nothing that the stall cost is hidden."""
    server.stalls, server.stall_s = range(WARM_UP + 10, WARM_UP + 15), 0.5
    plan = LoadPlan.draw(Poisson(100), 1.0, load_dataset("digits").test, seed=3)
    run = LocalRun(plan, TargetServer(server.url, "infer", "m", Terms(deadline_s=0.4)))
    run.drive()
    log = run.log()
    stalled = log.latency_s >= 0.5
    assert stalled.sum() == 5
    assert not log.in_time[stalled].any()
    first_s, last_s = log.rows["sent_s"][stalled].min(), log.rows["done_s"][stalled].max()
    during = log.rows["sent_s"].between(first_s, last_s) & ~stalled
    assert during.sum() > 20, "requests kept leaving while the stalled ones were outstanding"
    # A client that waits for answers would send most of them by the stall, or half of it, too late.
    assert np.median(log.send_delay_s) < server.stall_s / 4
    lag_s = np.sort(np.array(server.arrived_s[WARM_UP:])) - plan.times_s
    assert np.median(np.abs(lag_s - np.median(lag_s))) < server.stall_s / 4, "they also arrive as they were drawn"


def test_a_late_client_is_charged_for_its_send_delay(server: Any) -> None:
    """A client held up between two requests must not make the server look faster: latency counts from the plan."""
    plan = LoadPlan.draw(Poisson(100), 0.4, load_dataset("digits").test, seed=1)
    held_up = []

    def hold_up(more: int) -> None:
        if not held_up:
            held_up.append(True)
            time.sleep(0.2)

    run = LocalRun(plan, TargetServer(server.url, "infer", "m"), progress=hold_up)
    run.drive()
    log = run.log()
    late = log.send_delay_s > 0.1
    assert late.sum() >= 3
    assert (log.latency_s[late] >= log.send_delay_s[late]).all()
    assert log.summary()["send_delay_max_s"] > 0.1


def test_a_request_is_given_up_after_its_time(server: Any) -> None:
    server.stalls, server.stall_s = range(WARM_UP + 2, WARM_UP + 3), 3.0
    plan = LoadPlan.draw(Poisson(50), 0.2, load_dataset("digits").test, seed=0)
    run = LocalRun(plan, TargetServer(server.url, "infer", "m", answer_within_s=0.5))
    run.drive()
    given_up = run.log().rows.query("status == 0")
    assert list(given_up["error"]) == ["no answer within the time allowed"]


def test_every_example_is_used_once_before_any_twice() -> None:
    test = load_dataset("digits").test
    plan = LoadPlan.draw(Poisson(1000), 1.0, test, seed=5)
    assert len(plan) > 2 * len(test)
    for start in (0, len(test)):
        assert len(set(plan.examples[start : start + len(test)])) == len(test)
    again = LoadPlan.draw(Poisson(1000), 1.0, test, seed=5)
    assert (again.examples == plan.examples).all()
    assert (again.times_s == plan.times_s).all()


@pytest.fixture(scope="module")
def network() -> ServedModel:
    """An untrained network for digits."""
    torch.manual_seed(0)
    graph = family_graphs(load_dataset("digits"))["small"]
    model = Family.of("mlp", [Network("only", GraphModule(graph).eval())])
    return ServedModel("mlp", model, by_demand(ControlSpace(model.points)))


@pytest.fixture(scope="module")
def served(network: ServedModel) -> Iterator[LiveServer]:
    with live_server([network]) as live:
        yield live


@pytest.mark.parametrize(("protocol", "processes"), [("http", 1), ("grpc", 2)])
def test_both_protocols_and_any_number_of_processes_send_the_same_plan(
    slotool: Any, network: ServedModel, served: LiveServer, tmp_path: Path, protocol: str, processes: int
) -> None:
    out = tmp_path / "r.parquet"
    address = served.url if protocol == "http" else served.grpc_address
    run = slotool(
        "loadtest", address, "--protocol", protocol, "--processes", processes, "-o", out, "--data", "digits",
        "--rate", 80, "--duration", 0.5, "--deadline-ms", 5_000, "--target", 0.5, "--json",
    )  # fmt: skip
    assert run.exit_code == 0, run.stderr
    log = RequestLog.load(out)
    plan = LoadPlan.draw(Poisson(80), 0.5, load_dataset("digits").test, seed=0)
    assert np.allclose(log.rows["intended_s"], plan.times_s)
    assert (log.rows["example"] == plan.examples).all()
    assert log.answered.all()
    model = network.model
    logits = model.forward(load_dataset("digits").test.x[plan.examples], model.full)
    assert (log.rows["answer"] == logits.argmax(axis=1)).all()
    assert set(log.rows["point"]) == {point.key for point in model.points}
    assert (log.rows["compute_s"] > 0).all()
    assert (log.provenance["endpoint"], log.provenance["processes"]) == (
        "grpc" if protocol == "grpc" else "infer", processes)  # fmt: skip


def test_labels_are_numbered_as_the_network_does_where_the_data_lack_some(
    slotool: Any, served: LiveServer, tmp_path: Path
) -> None:
    digits = load_dataset("digits")
    high = digits.train.y >= 5
    np.savez(tmp_path / "high.npz", x=digits.train.x[high], y=digits.train.y[high])
    np.savez(tmp_path / "named.npz", x=digits.train.x[high], y=np.char.add("digit ", digits.train.y[high].astype(str)))
    asked = ["loadtest", served.url, "--rate", 60, "--duration", 1, "-o", tmp_path / "requests.parquet", "--force"]
    run = slotool(*asked, "--data", tmp_path / "high.npz")
    assert run.exit_code == 0, run.stderr
    log = RequestLog.load(tmp_path / "requests.parquet")
    assert set(log.rows["label"]) <= set(range(5, 10)), "the classes 0 to 4 are not there, and keep their numbers"
    refused = slotool(*asked, "--data", tmp_path / "named.npz")
    assert refused.exit_code == 2
    assert "10 classes" in refused.stderr


def test_a_token_is_shown(network: ServedModel, monkeypatch: pytest.MonkeyPatch) -> None:
    token = "a-token-for-the-test"
    monkeypatch.setenv("SLOTOOL_TOKEN", token)
    plan = LoadPlan.draw(Poisson(50), 0.3, load_dataset("digits").test, seed=0)
    with live_server([network], clients=Clients.of_token(token, "the test")) as live:
        targets = [TargetServer(live.url, "infer", "mlp"), TargetServer(f"grpc://{live.grpc_address}", "grpc", "mlp")]
        for target in targets:
            assert ask_first_model(target.address, target.form) == "mlp"
            run = LocalRun(plan, target)
            run.drive()
            assert run.log().answered.all()
        monkeypatch.delenv("SLOTOOL_TOKEN")
        for target in targets:
            with pytest.raises(InputError, match="Authorization: Bearer"):
                LocalRun(plan, target).drive()
            for asked in (lambda: ask_first_model(target.address, target.form), target.described):  # noqa: B023
                with pytest.raises(InputError, match="wants a token; set SLOTOOL_TOKEN"):
                    asked()
        monkeypatch.setenv("SLOTOOL_TOKEN", "another-token")
        with pytest.raises(InputError, match="refuses the token"):
            ask_first_model(live.url, "infer")


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_rejections_keep_their_reason_over_both_protocols(
    slotool: Any, served: LiveServer, tmp_path: Path, protocol: str
) -> None:
    out = tmp_path / "r.parquet"
    address = served.url if protocol == "http" else served.grpc_address
    run = slotool("loadtest", address, "--protocol", protocol, "-o", out, "--data", "digits", "--rate", 60,
                  "--duration", 0.3, "--deadline-ms", 0.002)  # fmt: skip
    assert run.exit_code == 3, "no client sends as precisely as this deadline"
    log = RequestLog.load(out)
    assert set(log.rows["status"]) == {504}
    assert log.rows["error"].str.contains("the deadline passed").all()
    stranger = slotool("loadtest", address, "--protocol", protocol, "-o", out, "--force", "--data", "digits",
                       "--model", "nobody")  # fmt: skip
    assert stranger.exit_code == 2
    assert "rejects the request (404): Request for unknown model: 'nobody'" in stranger.stderr


def test_nothing_is_left_of_what_the_processes_share(
    served: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    plan = LoadPlan.draw(Poisson(50), 0.2, load_dataset("digits").test, seed=0)
    run = ManyProcesses(plan, TargetServer(served.url, "infer", "mlp"), 2)
    run.drive()
    assert run.finished == len(run.log()) == len(plan)
    assert not list(tmp_path.iterdir())


def test_ctrl_c_keeps_what_all_processes_finished(slotool: Any, server: Any, tmp_path: Path) -> None:
    def interrupt() -> None:
        while len(server.seen) < 2 * WARM_UP + 30:
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    out = tmp_path / "r.parquet"
    threading.Thread(target=interrupt, daemon=True).start()
    run = slotool("loadtest", server.url, "-o", out, "--data", "digits", "--rate", 100, "--duration", 30,
                  "--processes", 2)  # fmt: skip
    assert run.exit_code == 130
    log = RequestLog.load(out)
    assert 10 <= len(log) < 2000
    assert log.provenance["interrupted"] is True


def test_a_target_missed_by_a_late_client_is_no_verdict(slotool: Any, server: Any, tmp_path: Path) -> None:
    """The client is held up, the server never."""
    held_up = []

    def hold_up(run: LocalRun, channel: Any, number: int, intended_s: float) -> Any:
        if number == 10 and not held_up:
            held_up.append(True)
            time.sleep(1.3)
        return send(run, channel, number, intended_s)

    send = LocalRun._send
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(LocalRun, "_send", hold_up)
        run = slotool("loadtest", server.url, "-o", tmp_path / "r", "--data", "digits", "--rate", 30,
                      "--duration", 2, "--deadline-ms", 900, "--target", 0.9)  # fmt: skip
    assert run.exit_code == 3, run.stderr
    assert "the client was late, so there is no verdict" in run.stderr
    assert "the client sent" in run.stderr or "late or more" in run.stderr


def test_only_the_examples_that_are_sent_are_read_from_their_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    x = np.arange(400, dtype=np.float32).reshape(200, 2)
    np.savez(tmp_path / "set.npz", x=x, y=np.arange(200) % 3, split=np.repeat("test", 200))
    stored = load_dataset(str(tmp_path / "set.npz"), stored=True).test
    plan = LoadPlan.draw(Poisson(50), 1.0, stored, seed=0)
    held = plan.loaded()
    assert len(held.split.x) == len(np.unique(plan.examples)) < 200
    assert np.array_equal(held.split.x[held.examples], x[plan.examples])
    assert np.array_equal(held.numbers[held.examples], plan.examples)
    monkeypatch.setattr("slotool.workloads.client.open_loop.MAX_EXAMPLE_BYTES", 5 * x[0].nbytes)
    few = plan.loaded()
    assert len(few.split.x) == 5
    assert np.array_equal(few.split.x, x[few.numbers])
    assert set(few.examples.tolist()) == set(range(5))
    assert np.array_equal(few.numbers[few.examples[:5]], plan.examples[:5])
