"""``slotool serve`` as a process: ready line, tables and rules put to use, draining, and every way it cannot start."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pandas as pd
import pytest
import torch
import tritonclient.grpc as triton

import slotool.process
from slotool.data import load_dataset
from slotool.elastic.family import Family
from slotool.elastic.network import Network
from slotool.elastic.training import family_graphs
from slotool.graphs.torch_module import GraphModule
from slotool.machine import machine_id
from slotool.serving.operations.server import bind
from slotool.tables import LatencyTable, OutcomeTable
from tests.serving.live_server import HTTP, tier_rules

Slotool = Callable[..., Any]
WAIT_S = 60
TABLES = ("--latency", "latency.parquet", "--outcomes", "family-outcomes.parquet")
EXAMPLE = np.zeros((1, 8, 8), dtype=np.float32)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An untrained family and network, and tables and rules as if they had been measured."""
    folder = tmp_path_factory.mktemp("serve")
    torch.manual_seed(0)
    versions = [
        Network(name, GraphModule(graph).eval()) for name, graph in family_graphs(load_dataset("digits")).items()
    ]
    Family.of("family", versions).save(folder / "family", config={}, seed=0)
    Family.of("mlp", versions[:1]).save(folder / "mlp", config={}, seed=0)
    tier_rules().save(folder / "rules.json")
    (folder / "service.toml").write_text('[[models]]\nartifact = "mlp"\n')
    names = ("small", "medium", "large")
    points = [f"version={name}" for name in names]
    seconds = dict(zip(points, (1e-3, 1.0, 1e4), strict=True))
    rows = [{"subject": "family", "point": p, "samples_s": [s], "machine": machine_id()} for p, s in seconds.items()]
    LatencyTable.of(rows).save(folder / "latency.parquet")
    outcomes = [(str(e), v, float(e < wrong), 0.9, 1e-3) for v, wrong in zip(names, (5, 2, 1), strict=True)
                for e in range(10)]  # fmt: skip
    columns = ["example", "version", "error", "confidence", "latency_s"]
    for subject in ("family", "stranger"):
        frame = pd.DataFrame(outcomes, columns=columns)
        OutcomeTable(frame, {"subject": subject}).save(folder / f"{subject}-outcomes.parquet")
    return folder


@contextmanager
def serving(folder: Path, *arguments: str, port: int = 0) -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """The real process, once it has said that it is ready, and the document it printed."""
    command = [slotool.process.INTERPRETER, "-m", "slotool", "serve", *arguments, "--port", str(port), "--json"]
    process = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        line = process.stdout.readline()
        assert line, process.communicate()[1]
        yield process, json.loads(line)
    finally:
        process.kill()
        process.communicate()


def test_tables_and_rules_are_put_to_use_and_sigterm_drains(folder: Path) -> None:
    options = ("--rules", "rules.json", "--latency", "latency.parquet", "--outcomes", "family-outcomes.parquet")
    with serving(folder, "family", "mlp", *options) as (process, ready):
        assert ready["schema"] == "slotool/serve"
        assert ready["url"] == f"http://127.0.0.1:{ready['port']}"
        assert ready["models"]["mlp"] == ["full"]

        def compute(**headers: str) -> httpx.Response:
            named = {"Model": "family"} | {name.replace("_", "-"): value for name, value in headers.items()}
            return HTTP.post(f"{ready['url']}/compute", content=EXAMPLE.tobytes(), headers=named)

        assert compute().json()["operating_point"] == "version=large"
        assert compute(Tolerance="0.1").json()["rule"] == "response-time-0.1"
        assert compute(Deadline_Ms="20000").json()["operating_point"] == "version=medium"
        assert compute(Min_Accuracy="0.8").json()["operating_point"] == "version=medium"
        assert compute(Tolerance="0.1", Model="mlp").status_code == 400
        assert compute(Model="mlp", Content_Type="application/x-www-form-urlencoded").status_code == 200
        text = HTTP.post(f"{ready['url']}/compute", content=b"0.5, " * 51 + b"1", headers={"Model": "mlp"})
        assert (text.status_code, EXAMPLE.nbytes) == (415, 256)

        with socket.create_connection(("127.0.0.1", ready["port"]), timeout=WAIT_S) as half_sent:
            body = EXAMPLE.tobytes()
            half_sent.sendall(f"POST /compute HTTP/1.1\r\nHost: x\r\nModel: mlp\r\nContent-Length: {len(body)}\r\n\r\n"
                              .encode() + body[:100])  # fmt: skip
            while HTTP.get(f"{ready['url']}/v2/health/live").status_code != 200:
                pass
            process.send_signal(signal.SIGTERM)
            rejected_within(ready["port"])
            half_sent.sendall(body[100:])
            assert half_sent.recv(10_000).startswith(b"HTTP/1.1 200 OK")
        assert process.wait(WAIT_S) == 0
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.read() == ""
        assert "no rows of mlp" in process.stderr.read()


def curl_examples() -> list[str]:
    """The requests of the guide to serving, as they can be pasted."""
    guide = Path(__file__).parents[2] / "docs" / "how-to" / "serve.md"
    sections = guide.read_text().partition("## Send one example\n")[2].partition("\n## Report delayed labels")[0]
    return re.findall(r"^\$ (curl .*?)\n(?=\{|```)", sections, re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(shutil.which("curl") is None, reason="there is no curl")
def test_the_guides_curl_examples_work_with_a_token_too(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(folder / "digit.npy", EXAMPLE)
    monkeypatch.setenv("SLOTOOL_TOKEN", "a-token-for-the-test")
    (folder / "token").write_text("a-token-for-the-test\n")
    examples = curl_examples()
    assert len(examples) == 2
    with serving(folder, "family", "--rules", "rules.json", "--token-file", "token") as (process, ready):
        shown = 'curl --silent --header "Authorization: Bearer $SLOTOOL_TOKEN" '
        for example in examples:
            # This family's own tiers begin at 0.1.
            command = example.replace("--silent ", "").replace("0.08", "0.1")
            command = command.replace("127.0.0.1:8000", f"127.0.0.1:{ready['port']}")
            told = subprocess.run(command, shell=True, cwd=folder, capture_output=True, text=True, check=True)
            assert "Authorization: Bearer" in json.loads(told.stdout)["error"]
            told = subprocess.run(command.replace("curl ", shown, 1), shell=True, cwd=folder, capture_output=True,
                                  text=True, check=True)  # fmt: skip
            answer = json.loads(told.stdout)
            reason = "tier" if "olerance" in command else "the most accurate point"
            assert reason in answer.get("parameters", answer).get("reason", ""), told.stdout
        process.kill()
        assert process.stderr is not None
        assert "other users of this machine can read its tokens" in process.stderr.read()


def test_grpc_without_its_extra_is_a_sentence(slotool: Slotool, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "slotool.serving.grpc.grpc_front_end", None)
    finished = slotool("serve", folder / "mlp", "--port", 0, "--grpc-port", 0)
    assert finished.exit_code == 2
    assert "pip install 'slotool[grpc]'" in finished.stderr


def test_a_grpc_port_in_use_is_a_sentence(slotool: Slotool, folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        finished = slotool("serve", folder / "mlp", "--port", 0, "--grpc-port", port)
    assert finished.exit_code == 2
    assert f"127.0.0.1:{port}: the address is in use" in finished.stderr


def rejected_within(port: int) -> None:
    """Return once the server takes no new connections."""
    until = time.monotonic() + WAIT_S
    while time.monotonic() < until:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=1).close()
        except OSError:
            return
        time.sleep(0.01)
    raise AssertionError("the server still takes connections")


def test_it_serves_grpc_too_warns_when_others_can_reach_it_and_ctrl_c_ends_it_with_130(folder: Path) -> None:
    with serving(folder, "mlp", "--host", "0.0.0.0", "--name", "digits", "--grpc-port", "0") as (process, ready):
        assert ready["grpc"].startswith("0.0.0.0:")
        assert ready["grpc"] != f"0.0.0.0:{ready['port']}"
        assert HTTP.get(f"http://127.0.0.1:{ready['port']}/v2/models/digits").json()["name"] == "digits"
        with triton.InferenceServerClient(ready["grpc"].replace("0.0.0.0", "127.0.0.1")) as client:
            tensor = triton.InferInput("input", [1, *EXAMPLE.shape], "FP32")
            tensor.set_data_from_numpy(EXAMPLE[None])
            assert client.infer("digits", [tensor]).as_numpy("label").shape == (1,)
        process.send_signal(signal.SIGINT)
        assert process.wait(WAIT_S) == 130
        assert process.stderr is not None
        (warning,) = process.stderr.read().splitlines()
        assert "anyone who can reach this machine" in warning


@pytest.mark.parametrize("taken_by", [lambda: socket.create_server(("127.0.0.1", 0)), lambda: bind("127.0.0.1", 0)])
def test_a_port_of_a_server_that_listens_or_still_loads_is_in_use(
    slotool: Slotool, folder: Path, taken_by: Callable[[], socket.socket]
) -> None:
    with taken_by() as taken:
        port = taken.getsockname()[1]
        finished = slotool("serve", folder / "mlp", "--port", port)
        over_grpc = slotool("serve", folder / "mlp", "--port", 0, "--grpc-port", port)
    assert finished.exit_code == over_grpc.exit_code == 2
    assert f"127.0.0.1:{port}: the address is in use; choose another --port" in finished.stderr
    assert f"--grpc-port: 127.0.0.1:{port}: the address is in use; choose another" in " ".join(over_grpc.stderr.split())
    assert finished.stdout == ""


def test_a_server_restarts_on_its_port_while_connections_of_the_one_before_end(folder: Path) -> None:
    with serving(folder, "mlp", "--grpc-port", "0") as (process, ready):
        ports = [ready["port"], int(ready["grpc"].rpartition(":")[2])]
        with httpx.Client() as kept_alive, socket.create_connection(("127.0.0.1", ports[1])):
            assert kept_alive.get(f"{ready['url']}/v2/health/ready").status_code == 200
            process.send_signal(signal.SIGTERM)
            assert process.wait(WAIT_S) == 0
    with serving(folder, "mlp", "--grpc-port", str(ports[1]), port=ports[0]) as (_, again):
        assert HTTP.get(f"{again['url']}/v2/health/ready").status_code == 200


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["nothing"], "no such artifact"),
        (["mlp", "mlp"], "cannot name another model"),
        (["mlp", "--name", "a", "--name", "b"], "2 names for 1 artifacts"),
        (["mlp", "--name", "a/b"], "'a/b' cannot name"),
        (["mlp", "--host", "no.such.host.invalid"], "no address of this machine"),
        (["mlp", "--host", "192.0.2.1"], "no address of this machine"),
        (["mlp", "--rules", "rules.json"], "no served model has the versions these rules consult: large, small"),
        (["mlp", "--rules", "nothing.json"], "no such file"),
        (
            ["mlp", "--rules", "family-outcomes.parquet"],
            "a table (Parquet), not a rule set (JSON); rules are made of a"
            " table of outcomes by slotool gen-rules TABLE -o rules.json",
        ),
        (["mlp", "--latency", "family-outcomes.parquet"], "family-outcomes.parquet"),
        (["family", "--outcomes", "stranger-outcomes.parquet"], "the outcomes of none of the served models"),
        (["rules.json"], "a rule set, not a model; to serve with it: slotool serve FAMILY --rules rules.json"),
        (["latency.parquet"], "slotool serve MODEL --latency latency.parquet"),
        (["family-outcomes.parquet"], "slotool serve FAMILY --outcomes family-outcomes.parquet"),
        (["service.toml"], "slotool serve --config service.toml"),
        (["mlp", "--port", "70000"], "65535"),
        (["mlp", "--threads", "4000"], "4000 threads"),
    ],
)
def test_what_cannot_be_served_is_a_sentence(
    slotool: Slotool, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], sentence: str
) -> None:
    monkeypatch.chdir(folder)
    port = [] if "--port" in arguments else ["--port", "0"]
    finished = slotool("serve", *arguments, *port)
    assert finished.exit_code == 2, finished.stderr
    assert sentence in " ".join(finished.stderr.replace("│", " ").split())
    assert finished.stdout == ""


@pytest.mark.skipif(os.geteuid() == 0, reason="root may bind any port")
def test_a_port_that_needs_more_rights_is_a_sentence(slotool: Slotool, folder: Path) -> None:
    assert slotool("serve", folder / "mlp", "--port", "80").exit_code == 2


def test_a_policy_on_worker_processes_and_rules_read_anew(folder: Path, tmp_path: Path) -> None:
    shutil.copytree(folder, tmp_path / "here")
    here = tmp_path / "here"
    seconds = {"small": 1e-3, "medium": 2e-3, "large": 3e-3}
    rows = [
        {"subject": "family", "point": f"version={name}", "batch_size": n, "samples_s": [s * (n + 2) / 3]}
        for name, s in seconds.items()
        for n in (1, 4)
    ]
    LatencyTable.of([{**row, "machine": machine_id()} for row in rows]).save(here / "batches.parquet")
    options = ("--rules", "rules.json", "--latency", "batches.parquet", "--outcomes", "family-outcomes.parquet",
               "--policy", "maxacc", "--engine", "local", "--log", "events.jsonl")  # fmt: skip
    with serving(here, "family", *options) as (process, ready):

        def compute(**headers: str) -> dict[str, Any]:
            return HTTP.post(f"{ready['url']}/compute", content=EXAMPLE.tobytes(), headers=headers).json()

        def reread(sentence: str) -> None:
            process.send_signal(signal.SIGHUP)
            assert process.stderr is not None
            while sentence not in process.stderr.readline():
                assert process.poll() is None

        assert compute()["reason"].startswith("maxacc")
        assert compute(Tolerance="0.2")["rule"] == "response-time-0.2"
        for policy, status in (("fixed@version=small", 200), ("luck", 400), ("fixed@version=none", 400)):
            assert HTTP.post(f"{ready['url']}/live", json={"policy": policy}).status_code == status
            assert compute()["operating_point"] == "version=small"
        assert HTTP.post(f"{ready['url']}/live", json={"policy": "maxacc"}).status_code == 200
        rules = json.loads((here / "rules.json").read_text())
        rules["rules"] = [rule for rule in rules["rules"] if rule["tolerance"] != 0.2]
        (here / "rules.json").write_text(json.dumps(rules))
        reread("tables and rules reloaded")
        assert compute(Tolerance="0.2")["rule"] == "response-time-0.1"
        (here / "rules.json").write_text("{")
        reread("the old models, tables and rules stay")
        assert compute(Tolerance="0.2")["rule"] == "response-time-0.1"
        live = HTTP.get(f"{ready['url']}/live").json()
        assert (live["policy"], live["tiers"]) == ("maxacc", [0.1, 0.3])
        assert {"by-demand", "maxacc", "slackfit"} <= set(live["policies"])
        updated = HTTP.post(f"{ready['url']}/live", json={"policy": "by-demand"})
        assert updated.status_code == 400, "the rules' file is broken just now"
        assert compute()["reason"].startswith("maxacc")
        (here / "rules.json").write_text(json.dumps(rules))
        updated = HTTP.post(f"{ready['url']}/live", json={"policy": "by-demand"})
        assert updated.json()["policy"] == "by-demand"
        assert compute()["reason"].startswith("no option excludes it")
        assert [json.loads(line)["event"] for line in (here / "events.jsonl").read_text().splitlines()] == [
            *("setting", "setting"),
            *("reload", "reload-failed"),
            "setting",
        ]
        process.send_signal(signal.SIGTERM)
        assert process.wait(WAIT_S) == 0


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--engine", "cloud"), "no engine 'cloud'; there are inline, local, ray"),
        (("--engine", "inline", "--replicas", "2"), "it has no effect with --engine inline"),
        (("--engine", "local", "--address", "auto"), "it has no effect with --engine local"),
        (("--engine", "inline", "--allow-faults"), "it has no effect with --engine inline"),
        (("--policy", "value-iteration"), "policy value-iteration chooses by latency: give --latency"),
        (("--policy", "luck"), "no policy 'luck'"),
        (("--policy", "luck", *TABLES), "no policy 'luck'"),
    ],
)  # fmt: skip
def test_engines_and_policies_that_there_are_not(slotool: Slotool, folder: Path, arguments: tuple[str, ...],
                                                 sentence: str, monkeypatch: pytest.MonkeyPatch) -> None:  # fmt: skip
    monkeypatch.chdir(folder)
    result = slotool("serve", "family", "--port", "0", *arguments)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())


@pytest.mark.parametrize(
    "arguments",
    [
        ("--engine", "lokal"),
        ("--host", "999.1.1.1"),
        ("--access-log", "missing/access.jsonl"),
        ("--log", "missing/events.jsonl"),
        ("--host", "0.0.0.0", "--shared-memory"),
        ("--host", "0.0.0.0", "--allow-faults"),
    ],
)
def test_a_check_refuses_what_a_start_refuses(
    slotool: Slotool, folder: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...]
) -> None:
    monkeypatch.chdir(folder)
    checked = slotool("serve", "mlp", *arguments, "--check-config")
    assert (checked.exit_code, checked.stdout) == (2, "")
    assert checked.stderr == slotool("serve", "mlp", *arguments, "--port", 0).stderr


def test_a_check_takes_no_port_and_leaves_no_log(slotool: Slotool, folder: Path, tmp_path: Path) -> None:
    logs = ("--log", tmp_path / "events.jsonl", "--access-log", tmp_path / "access.jsonl")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        checked = slotool("serve", folder / "mlp", "--port", port, "--grpc-port", port, *logs, "--check-config")
    assert (checked.exit_code, list(tmp_path.iterdir())) == (0, [])


def test_a_cluster_that_does_not_answer_is_reported(slotool: Slotool, folder: Path) -> None:
    pytest.importorskip("ray", reason="ray is not installed: pip install 'slotool[ray]'")
    finished = slotool("serve", folder / "mlp", "--port", 0, "--engine", "ray", "--address", "127.0.0.1:1")
    assert finished.exit_code == 2
    assert "no ray cluster answers at 127.0.0.1:1" in finished.stderr
