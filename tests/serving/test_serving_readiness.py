"""Servers whose workers are lost, hang or end: what probes and clients get meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

import httpx
import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from slotool.artifacts.bundle import shipped_artifact
from slotool.data.columns import Inputs
from slotool.elastic import load_model
from slotool.scheduling import ControlSpace, by_demand
from slotool.serving import Rejection, Router, ServedModel
from slotool.serving.engines import InferenceEngine, LocalInferenceEngine, WorkerLost
from slotool.serving.engines.base import Done, WorkerChange
from slotool.serving.events import log_to
from slotool.serving.request import Outputs
from slotool.serving.request_options import RequestOptions
from slotool.tables import OperatingPoint
from tests.serving.live_server import HTTP, LiveServer, ThreeLinear, live_server, served, until

WAIT_S = 120.0
X = np.zeros((1, 1, 8, 8), dtype=np.float32)
HERE: Callable[[], bool] = lambda: False  # noqa: E731


@pytest.fixture(autouse=True, scope="module")
def workers_in_forks() -> None:
    """Not here: a worker is stopped by a signal, which a fork's stand-in cannot pass on."""


class Puppet(InferenceEngine):
    """Workers that do nothing until the test says so. ``calls``: who is at work, and whom to tell."""

    name = "puppet"

    def __init__(self, workers: int = 1):
        self.workers = workers
        self.calls: dict[int, Done] = {}

    def open(self, models: Mapping[str, ServedModel], on_change: WorkerChange) -> None:
        self.change = on_change

    def begin(self, worker: int, model: str, point: OperatingPoint, x: Inputs, done: Done) -> None:
        self.calls[worker] = done

    def answer(self, worker: int = 0) -> None:
        self.calls.pop(worker)(Outputs({"logits": np.zeros((1, 4), np.float32)}, ThreeLinear(), np.ones(1)))

    def ready_in_s(self) -> float:
        return 7.3

    def prepare(self, model: str, points: tuple[OperatingPoint, ...]) -> None: ...

    def close(self) -> None: ...


def ask(router: Router, timeout_us: float = np.inf, model: str = "three") -> asyncio.Task[object]:
    x = np.zeros((1, 1, 2, 3), np.float32)
    asked = router.answer(model, x, RequestOptions(timeout_us), router.now_us(), HERE)
    return asyncio.get_running_loop().create_task(asked)


async def rejection(asked: asyncio.Task[object]) -> Rejection:
    with pytest.raises(Rejection) as caught:
        await asyncio.wait_for(asked, 30)
    return caught.value


def test_who_has_no_deadline_waits_for_a_worker_no_longer_than_the_default() -> None:
    async def stuck() -> None:
        engine = Puppet()
        router = Router({"three": served(ThreeLinear())}, engine, default_deadline_us=0.2e6)
        at_work = ask(router)
        await asyncio.sleep(0)
        began_s = time.monotonic()
        told = await rejection(ask(router))
        assert time.monotonic() - began_s > 0.1
        assert (told.status, told.cause) == (504, "expired")
        assert "the request has no deadline and waited for 0.2 s" in str(told)
        own = await rejection(ask(router, 0.1e6))
        # The last look may come just before it has passed, when too little is left to be answered in.
        assert (own.status, own.cause) == (504, "expired")
        # Whoever was at work by then is answered.
        engine.answer()
        await asyncio.wait_for(at_work, 30)
        # Unless the worker is lost with it: then it has waited for too long as well.
        again = ask(router)
        await asyncio.sleep(0.25)
        assert not again.done()
        engine.calls.pop(0)(WorkerLost("gone"))
        assert "no worker is ready" in str(await rejection(again))
        # As many as there were, nothing is kept of them.
        assert router.waiting() == 0

    asyncio.run(stuck())


def test_a_default_deadline_changes_no_decision() -> None:
    async def decided() -> object:
        engine = Puppet()
        router = Router({"three": served(ThreeLinear())}, engine, default_deadline_us=1e6)
        asked = ask(router)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        engine.answer()
        answer = await asked
        return answer.decision.point.key, answer.slack_us  # type: ignore[attr-defined]

    assert asyncio.run(decided()) == ("version=large", np.inf)


def test_a_server_without_workers_says_so_and_takes_whoever_can_wait() -> None:
    async def lost() -> None:
        engine = Puppet(2)
        router = Router({"three": served(ThreeLinear())}, engine, default_deadline_us=30e6)
        assert router.unready() is None
        for worker in range(2):
            engine.change(worker, False)
        told = router.unready()
        assert told is not None
        assert str(told) == "no worker is ready: 2 of 2 are being restarted; retry after 8 s"
        assert (told.status, told.cause, told.retry_after_s) == (503, "no-worker", 8)
        # Its deadline comes before a worker is expected: it need not wait for it to pass.
        began_s = time.monotonic()
        assert (await rejection(ask(router, 7e6))).cause == "no-worker"
        assert time.monotonic() - began_s < 6
        patient = ask(router)
        await asyncio.sleep(0.05)
        assert not patient.done()
        engine.change(1, True)
        assert router.unready() is None
        await asyncio.sleep(0.05)
        engine.answer(1)
        await asyncio.wait_for(patient, 30)

    asyncio.run(lost())

    asyncio.run(lost())


def test_what_expires_while_no_worker_is_there_is_reported_that() -> None:
    async def lost() -> None:
        engine = Puppet()
        router = Router({"three": served(ThreeLinear())}, engine, default_deadline_us=30e6)
        at_work, waiting = ask(router, 0.5e6), ask(router, 0.5e6)
        await asyncio.sleep(0.01)
        engine.calls.pop(0)(WorkerLost("gone"))
        for asked in (at_work, waiting):
            told = await rejection(asked)
            assert (told.status, told.cause) == (503, "no-worker")

    asyncio.run(lost())


def test_who_is_not_answered_by_the_drains_end_is_reported_so() -> None:
    async def ended() -> None:
        engine = Puppet()
        router = Router({"three": served(ThreeLinear())}, engine)
        at_work, waiting = ask(router), ask(router)
        await asyncio.sleep(0.01)
        router.begin_drain()
        unready = router.unready()
        assert unready is not None
        assert unready.cause == "stopping"
        router.end()
        for asked in (at_work, waiting, ask(router)):
            told = await rejection(asked)
            assert (told.status, told.cause) == (503, "stopping")
        # The call that nobody waits for any more may still end.
        engine.answer()

    asyncio.run(ended())


def test_a_minimum_of_an_accuracy_that_nobody_knows_is_the_clients_mistake() -> None:
    async def asked() -> Rejection:
        policy = by_demand(ControlSpace(ThreeLinear.points))
        router = Router({"three": ServedModel("three", ThreeLinear(), policy)}, Puppet())
        x = np.zeros((1, 1, 2, 3), np.float32)
        answer = router.answer("three", x, RequestOptions(min_accuracy=0.5), router.now_us(), HERE)
        return await rejection(asyncio.get_running_loop().create_task(answer))

    told = asyncio.run(asked())
    assert (told.status, told.cause) == (400, "bad-request")
    assert "nothing is known of the accuracy" in str(told)


def failing(kind: str, sentence: str, fields: object) -> None:
    raise OSError(28, "No space left on device")


def test_a_listener_that_fails_stops_no_worker_from_being_replaced(capsys: pytest.CaptureFixture[str]) -> None:
    async def lost() -> None:
        engine, told = Puppet(), list[str]()
        router = Router({"three": served(ThreeLinear())}, engine)
        router.events.listen(failing)
        router.events.listen(lambda kind, sentence, fields: told.append(sentence))
        for _ in range(2):
            asked = ask(router)
            await asyncio.sleep(0.01)
            engine.calls.pop(0)(WorkerLost("gone"))
            assert router.unready() is not None
            engine.change(0, False)  # its replacement too, while that loads
            engine.change(0, True)
            await asyncio.sleep(0.05)
            engine.answer()
            await asyncio.wait_for(asked, 30)
        assert told == 2 * ["gone", "worker 0 ended while it was loading", "worker 0 is replaced"]
        assert router.metrics.registry.get_sample_value("slotool_worker_restarts_total") == 4

    asyncio.run(lost())
    assert capsys.readouterr().err.count("No space left on device") == 1


def mlp() -> ServedModel:
    path = shipped_artifact("mlp").path
    model = load_model(str(path))
    return ServedModel("mlp", model, by_demand(ControlSpace(model.points)), None, path)


@pytest.fixture(scope="module")
def engine() -> LocalInferenceEngine:
    return LocalInferenceEngine(1, hang_s=WAIT_S)


@pytest.fixture(scope="module")
def live(engine: LocalInferenceEngine) -> Iterator[LiveServer]:
    with live_server([mlp()], engine=engine, default_deadline_us=60e6, drain_s=1.0) as live:
        yield live


def get(live: LiveServer, path: str) -> httpx.Response:
    return HTTP.get(f"{live.url}{path}", timeout=WAIT_S)


def compute(live: LiveServer, deadline_ms: float | None = None) -> httpx.Response:
    headers = {} if deadline_ms is None else {"Deadline-Ms": str(deadline_ms)}
    return HTTP.post(f"{live.url}/compute", content=X.tobytes(), headers=headers, timeout=WAIT_S)


def test_a_server_whose_only_worker_is_lost_is_not_ready_until_it_is_replaced(
    live: LiveServer, engine: LocalInferenceEngine
) -> None:
    """Nobody has called the worker yet, and the log is on a full disk: its loss must be noticed all the same."""
    full = open("/dev/full", "a")  # noqa: SIM115  # closing it fails, as writing does
    live.router.events.listen(log_to(full))
    with contextlib.suppress(OSError), full, triton.InferenceServerClient(live.grpc_address) as client:
        assert get(live, "/v2/health/ready").json() == {"ready": True}
        assert get(live, "/v2/models/mlp/ready").json() == {"name": "mlp", "ready": True}
        assert client.is_server_ready()
        assert client.is_model_ready("mlp")
        assert live.count("slotool_workers") == 1
        os.kill(engine.pid(0), signal.SIGKILL)
        until(lambda: get(live, "/v2/health/ready").status_code == 503)
        for path, named in (("/v2/health/ready", {}), ("/v2/models/mlp/ready", {"name": "mlp"})):
            response = get(live, path)
            document = response.json()
            assert response.status_code == 503
            assert int(response.headers["retry-after"]) >= 1
            assert document.pop("error").startswith("no worker is ready: 1 of 1 is being restarted; retry after ")
            assert document == {**named, "ready": False}
        assert not client.is_server_ready()
        assert not client.is_model_ready("mlp")
        assert client.get_model_repository_index().models[0].state == "UNAVAILABLE"
        assert get(live, "/v2/health/live").json() == {"live": True}
        assert live.count("slotool_workers") == 0
        rejected = compute(live, 20)
        assert rejected.status_code == 503
        assert "no worker is ready: 1 of 1 is being restarted" in rejected.json()["error"]
        assert int(rejected.headers["retry-after"]) >= 1
        until(lambda: get(live, "/v2/health/ready").status_code == 200)
        assert client.is_server_ready()
        assert compute(live).status_code == 200
        assert live.count("slotool_workers") == 1


def test_whoever_a_stuck_worker_keeps_waiting_at_the_drain_gets_a_sentence_and_then_the_close(
    live: LiveServer, engine: LocalInferenceEngine
) -> None:
    head = f"POST /compute HTTP/1.1\r\nHost: x\r\nContent-Length: {X.nbytes}\r\n\r\n".encode()
    os.kill(engine.pid(0), signal.SIGSTOP)

    def over_http(sent: bytes) -> bytes:
        with live.connect() as connection:
            connection.sendall(sent)
            said = b""
            while chunk := connection.recv(65_536):
                said += chunk
            return said

    def over_grpc() -> str:
        with triton.InferenceServerClient(live.grpc_address) as client:
            tensor = triton.InferInput("input", list(X.shape), "FP32")
            tensor.set_data_from_numpy(X)
            with pytest.raises(InferenceServerException) as caught:
                client.infer("mlp", [tensor])
            return f"{caught.value.status()} {caught.value.message()}"

    whole = head + X.tobytes()
    in_parts = head.replace(b"Host: x", b"Host: x\r\nConnection: close") + X.tobytes()
    with ThreadPoolExecutor(6) as pool:
        asked = [pool.submit(over_http, sent) for sent in (whole, whole, in_parts, head + b"half")]
        remote = pool.submit(over_grpc)
        until(lambda: live.front.in_progress == 4)
        ending = threading.Thread(target=lambda: setattr(live.server, "should_exit", True))
        ending.start()
        for future in asked:
            said = future.result(WAIT_S)
            assert said.startswith(b"HTTP/1.1 503"), said
            assert b"the server is shutting down" in said
        said_remote = remote.result(WAIT_S)
        assert "UNAVAILABLE" in said_remote
        assert "the server is shutting down" in said_remote
    assert engine.pid(0)
