"""Models exchanged while a real server answers: no request is lost, and what cannot be served changes nothing."""

from __future__ import annotations

import fcntl
import json
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import httpx
import pytest
import torch

import slotool
from slotool.elastic.family import Family
from slotool.elastic.network import Network
from slotool.graphs import GraphBuilder
from slotool.graphs.torch_module import GraphModule
from slotool.serving.operations.server import HANGUP_WAITS_S
from tests.elastic.test_family_tensors import X, Y, write
from tests.serving.live_server import HTTP, until
from tests.serving.test_serve_command import serving

INPUTS, CLASSES = 4, 3
INFER = {"inputs": [{"name": "input", "datatype": "FP32", "shape": [1, INPUTS], "data": [0.5] * INPUTS}]}
PATH = "/v2/models/net/infer"


def constant(path: Path, answer: int, inputs: int = INPUTS) -> Path:
    """A network that always answers the same class, as an artifact."""
    builder = GraphBuilder("net")
    builder.add("Dense", builder.add("InputLayer", shape=[inputs]), units=CLASSES)
    module = GraphModule(builder.graph()).eval().requires_grad_(False)
    *_, bias = module.parameters()
    bias.copy_(torch.nn.functional.one_hot(torch.tensor(answer), CLASSES))
    for weight in list(module.parameters())[:-1]:
        weight.zero_()
    Family.of("net", [Network("only", module)]).save(path, config={}, seed=answer)
    return path


def link(folder: Path, to: str) -> None:
    """Change what ``current`` leads to, in one step."""
    (folder / "next").symlink_to(to)
    (folder / "next").rename(folder / "current")


@pytest.fixture(scope="module")
def networks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("networks")
    for answer in range(CLASSES):
        constant(folder / f"v{answer}", answer)
    constant(folder / "wider", 0, INPUTS + 1)
    for file in constant(folder / "torn", 2).glob("*.safetensors"):
        file.write_bytes(b"torn")
    return folder


@pytest.fixture
def folder(networks: Path, tmp_path: Path) -> Path:
    return described(networks, tmp_path)


def described(networks: Path, folder: Path) -> Path:
    for network in networks.iterdir():
        (folder / network.name).symlink_to(network)
    link(folder, "v0")
    describe(folder, "current")
    return folder


@pytest.fixture(scope="module")
def reloading(
    networks: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, subprocess.Popen[str], str]]:
    """A folder with a service file, the server that reads it at every signal, and where that answers."""
    folder = described(networks, tmp_path_factory.mktemp("reloading"))
    with serving(folder, "--config", "service.toml", "--access-log", "access.jsonl") as (process, ready):
        yield folder, process, ready["url"]


def describe(folder: Path, artifact: str, more: str = "") -> None:
    (folder / "service.toml").write_text(f'[[models]]\nartifact = "{artifact}"\nname = "net"\n{more}')


def hang_up(process: subprocess.Popen[str]) -> str:
    """What the server says to SIGHUP."""
    process.send_signal(signal.SIGHUP)
    return said_next(process, "not reloaded", "tables and rules reloaded")


def said_next(process: subprocess.Popen[str], *words: str) -> str:
    """The server's next line that has any of these words."""
    assert process.stderr is not None
    for line in process.stderr:
        if any(each in line for each in words):
            return line
    raise AssertionError("the server has ended")


@contextmanager
def kept_closed(path: Path) -> Iterator[SimpleQueue[None]]:
    """Have whoever opens ``path`` wait until the end of the context; the queue has an item when somebody does."""
    # An event would lock itself out: its ``set`` may come while this very thread is about to wait for it.
    opening: SimpleQueue[None] = SimpleQueue()
    handler = signal.signal(signal.SIGIO, lambda number, frame: opening.put(None))
    with path.open("a") as file:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        yield opening
    signal.signal(signal.SIGIO, handler)


def test_a_model_file_that_changed_in_place_is_named_and_the_old_model_serves_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "a.onnx", "x", "scores")
    slotool.family({"a": "a.onnx"}, (X, Y), out="fam", repeats=1)
    with serving(tmp_path, "fam") as (process, ready):
        write(tmp_path / "a.onnx", "x", "scores", softmax=True)
        process.send_signal(signal.SIGHUP)
        assert "a.onnx has changed" in said_next(process, "a.onnx", "tables and rules reloaded")
        assert said_next(process, "tables and rules reloaded")
        assert HTTP.get(ready["url"] + "/v2/models/fam/ready").status_code == 200
        (tmp_path / "fam" / "examples.safetensors").write_bytes(b"torn")
        process.send_signal(signal.SIGHUP)
        assert "examples.safetensors" in said_next(process, "examples.safetensors", "rules reloaded")


def answer_of(url: str) -> int:
    return int(label(HTTP.post(url + PATH, json=INFER)))


def label(response: httpx.Response) -> Any:
    assert response.status_code == 200, response.text
    return next(o["data"][0] for o in response.json()["outputs"] if o["name"] == "label")


@contextmanager
def under_load(
    url: str, clients: int = 3, path: str = PATH, body: Mapping[str, Any] = INFER
) -> Iterator[list[list[int]]]:
    """Answers to each of several clients who ask one after the other, all the time."""
    answers: list[list[int]] = [[] for _ in range(clients)]
    failures: list[BaseException] = []
    ends = threading.Event()

    def ask(received: list[int]) -> None:
        try:
            with httpx.Client(trust_env=False, timeout=60) as client:
                while not ends.is_set():
                    received.append(label(client.post(url + path, json=body)))
                    time.sleep(0.005)  # models are loaded beside this
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=ask, args=(received,)) for received in answers]
    for thread in threads:
        thread.start()
    try:
        yield answers
    finally:
        ends.set()
        for thread in threads:
            thread.join(60)
    assert not failures


@pytest.mark.parametrize("engine", [(), ("--engine", "local")], ids=["inline", "local"])
def test_a_model_is_exchanged_under_load_and_no_request_is_lost(folder: Path, engine: tuple[str, ...]) -> None:
    with serving(folder, "--config", "service.toml", *engine, "--log", "log.jsonl") as (process, ready):
        with under_load(ready["url"]) as answers:
            until(lambda: all(len(received) > 20 for received in answers))
            link(folder, "v1")
            assert "net, tables and rules reloaded" in hang_up(process)
            counts = [len(received) for received in answers]
            until(lambda: all(len(r) > count + 20 for r, count in zip(answers, counts, strict=True)))
        for received, count in zip(answers, counts, strict=True):
            assert received == sorted(received)
            assert received[0] == 0
            assert set(received[count + 1 :]) == {1}
        assert [json.loads(line)["models"] for line in (folder / "log.jsonl").read_text().splitlines()] == [["net"]]
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0


def test_what_cannot_be_served_leaves_the_old_model_and_says_why(
    reloading: tuple[Path, subprocess.Popen[str], str],
) -> None:
    folder, process, url = reloading
    describe(folder, "v0")
    hang_up(process)
    for artifact, sentence in (
        ("torn", "torn"),
        ("wider", "its input is input FP32[-1, 5] where the one in use has input FP32[-1, 4]"),
        ("nowhere", "there is no folder"),
    ):
        describe(folder, artifact)
        said = hang_up(process)
        assert "not reloaded, the old models, tables and rules stay in use: " in said
        assert sentence in said
        assert answer_of(url) == 0
    for text, sentence in (
        ("[[models", "cannot be read as TOML"),
        ("", "at least one [[models]] table is expected"),
        ("policy = 3\n[[models]]\nartifact = 'v1'", "policy: text is expected, this is a whole number"),
    ):
        (folder / "service.toml").write_text(text)
        assert sentence in hang_up(process)
        assert answer_of(url) == 0
    describe(folder, "v1")
    hang_up(process)
    assert answer_of(url) == 1


def test_a_signal_during_a_reload_is_merged_only_with_one_that_has_read_nothing_yet(
    reloading: tuple[Path, subprocess.Popen[str], str],
) -> None:
    folder, process, url = reloading
    log = folder / "access.jsonl"
    (folder / "service.toml").write_text("[[models")
    with kept_closed(folder / "service.toml") as opening:
        process.send_signal(signal.SIGHUP)  # a reload that takes as long as the file takes to be opened
        said_next(process, "reloading models, tables and rules")
        opening.get(timeout=30)
        process.send_signal(signal.SIGHUP)
        said_next(process, "after the change in progress")
        log.rename(folder / "rotated.jsonl")
        process.send_signal(signal.SIGHUP)
        said_next(process, "read by the reload that waits")
        assert log.exists()  # it is opened again at each signal
        (folder / "service.toml").rename(folder / "in-progress.toml")
        describe(folder, "nowhere")
    assert "cannot be read as TOML" in said_next(process, "not reloaded")
    assert "there is no folder" in said_next(process, "not reloaded")
    describe(folder, "v2")
    hang_up(process)
    assert answer_of(url) == 2


def test_a_burst_of_signals_is_few_reloads_and_the_last_reads_what_is_there_then(
    reloading: tuple[Path, subprocess.Popen[str], str],
) -> None:
    folder, process, url = reloading
    describe(folder, "v0")
    hang_up(process)
    began_s = time.monotonic()
    for _ in range(50):
        process.send_signal(signal.SIGHUP)
        time.sleep(0.001)
    describe(folder, "v1")
    process.send_signal(signal.SIGHUP)
    until(lambda: answer_of(url) == 1, within_s=20)
    describe(folder, "nowhere")
    process.send_signal(signal.SIGHUP)
    assert process.stderr is not None
    reread = 0
    for line in process.stderr:
        reread += "access log reloaded" in line
        if "there is no folder" in line:
            break
    # A slow server takes the whole burst at once, and a slow sender makes several bursts of it.
    assert 1 <= reread <= 2 + (time.monotonic() - began_s) / HANGUP_WAITS_S, "of 52 signals"


@pytest.mark.parametrize("engine", [(), ("--engine", "local")], ids=["inline", "local"])
def test_a_model_that_the_file_comes_to_list_is_added_and_one_it_lists_no_more_is_drained(
    folder: Path, engine: tuple[str, ...]
) -> None:
    wider = {"inputs": [{**INFER["inputs"][0], "shape": [1, INPUTS + 1], "data": [0.5] * (INPUTS + 1)}]}
    added = '[[models]]\nartifact = "wider"\nname = "more"\n'
    with serving(folder, "--config", "service.toml", *engine) as (process, ready):
        url = ready["url"]
        assert HTTP.post(f"{url}/v2/models/more/infer", json=wider).status_code == 404
        with under_load(url) as answers:
            describe(folder, "current", added)
            assert "more added; tables and rules reloaded" in hang_up(process)
            assert label(HTTP.post(f"{url}/v2/models/more/infer", json=wider)) == 0
            counts = [len(received) for received in answers]
            until(lambda: all(len(r) > count + 10 for r, count in zip(answers, counts, strict=True)))
            (folder / "service.toml").write_text(f'{added}[[models]]\nartifact = "current"\nname = "net"\n')
            assert "not reloaded" not in hang_up(process)
        assert {model["name"] for model in HTTP.post(f"{url}/v2/repository/index", json={}).json()} == {"more", "net"}
        with under_load(url, path="/v2/models/more/infer", body=wider):
            (folder / "service.toml").write_text(added)
            assert "net removed; tables and rules reloaded" in hang_up(process)
            gone = HTTP.post(url + PATH, json=INFER)
            assert (gone.status_code, gone.json()["error"]) == (
                404,
                "Request for unknown model: 'net' is not found; there are more",
            )
        # One that comes back, by another artifact, is a model of its own.
        describe(folder, "v2", added)
        hang_up(process)
        assert answer_of(url) == 2


def test_a_key_that_only_a_start_puts_in_force_is_named(folder: Path) -> None:
    with serving(folder, "--config", "service.toml") as (process, _):
        file = folder / "service.toml"
        file.write_text('log = "events.jsonl"\npolicy = "by-demand"\n' + file.read_text())
        hang_up(process)
        assert "warning: log: changed in the service file, in force when" in said_next(process, "service file")


def test_code_that_a_file_comes_to_allow_waits_for_a_start(folder: Path) -> None:
    (folder / "nets.py").write_text(
        'open("run", "w").close()\n\ndef twice(x):\n    return 2 * x\n\n'
        'twice.signature = "x=FP32[-1,2] -> y=FP32[-1,2]"\n'
    )
    with serving(folder, "--config", "service.toml") as (process, ready):
        file = folder / "service.toml"
        file.write_text("allow-code = true\n" + file.read_text() + '[[models]]\nartifact = "nets.py:twice"\n')
        assert "not reloaded" in hang_up(process)
        assert "allow-code" in said_next(process, "service file")
        assert "not reloaded" in hang_up(process)
        assert not (folder / "run").exists()
        assert answer_of(ready["url"]) == 0
    with serving(folder, "--config", "service.toml") as (_, ready):
        assert "twice" in ready["models"]


def test_a_file_that_a_start_would_reject_is_not_reloaded(folder: Path) -> None:
    with serving(folder, "--config", "service.toml") as (process, ready):
        file = folder / "service.toml"
        valid = file.read_text()
        link(folder, "v2")
        file.write_text('max-queue = "many"\n' + valid)
        line = hang_up(process)
        assert ("not reloaded" in line, "max-queue" in line, answer_of(ready["url"])) == (True, True, 0)
        file.write_text(valid)
        assert "not reloaded" not in hang_up(process)
        assert answer_of(ready["url"]) == 2


def test_an_artifact_on_the_command_line_is_exchanged_in_place(folder: Path) -> None:
    with serving(folder, "current", "--name", "net") as (process, ready):
        assert "warning" not in hang_up(process)
        assert answer_of(ready["url"]) == 0
        link(folder, "v2")
        assert "net, tables and rules reloaded" in hang_up(process)
        assert answer_of(ready["url"]) == 2
        live = HTTP.get(f"{ready['url']}/live?since=-1").json()
        assert live["models"] == ["net"]
