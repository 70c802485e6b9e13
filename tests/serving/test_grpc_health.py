"""gRPC's standard health service, asked by the stubs that Kubernetes' probes and ``grpc_health_probe`` are made of."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2 as v1
from grpc_health.v1 import health_pb2_grpc

from slotool.serving.access import Clients
from slotool.serving.grpc import grpc_front_end
from tests.serving.live_server import HTTP, LiveServer, ThreeLinear, live_server, served, until

SERVING, NOT_SERVING = v1.HealthCheckResponse.SERVING, v1.HealthCheckResponse.NOT_SERVING
SERVICE = "inference.GRPCInferenceService"


@pytest.fixture
def live() -> Iterator[LiveServer]:
    clients = Clients.of_token("a-secret-of-the-test", "the test")
    with live_server([served(ThreeLinear())], clients=clients, drain_s=60.0) as live:
        yield live


@pytest.fixture
def health(live: LiveServer) -> Iterator[Any]:
    """Without a token: probes have none."""
    with grpc.insecure_channel(live.grpc_address) as channel:
        yield health_pb2_grpc.HealthStub(channel)


def asked(service: str = "") -> v1.HealthCheckRequest:
    return v1.HealthCheckRequest(service=service)


def lose_the_worker(live: LiveServer, alive: bool = False) -> None:
    changed = live.router._dispatch_loop.calls.worker_changed
    live.server.servers[0].get_loop().call_soon_threadsafe(changed, 0, alive)


def test_it_says_what_the_ready_page_says(live: LiveServer, health: Any) -> None:
    for alive, status, code in ((True, SERVING, 200), (False, NOT_SERVING, 503), (True, SERVING, 200)):
        lose_the_worker(live, alive)
        until(lambda code=code: HTTP.get(f"{live.url}/v2/health/ready").status_code == code)
        assert [health.Check(asked(name), timeout=10).status for name in ("", SERVICE)] == [status, status]


def test_a_watch_hears_of_each_change(live: LiveServer, health: Any) -> None:
    watch = health.Watch(asked(), timeout=60)
    assert next(watch).status == SERVING
    lose_the_worker(live)
    assert next(watch).status == NOT_SERVING
    lose_the_worker(live, alive=True)
    assert next(watch).status == SERVING


def test_a_service_that_is_not_here_is_named(health: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        health.Check(asked("other\x1b"), timeout=10)
    assert caught.value.code() == grpc.StatusCode.NOT_FOUND
    assert caught.value.details() == f'there is no service "other\\x1b" here; there are "", {SERVICE}'
    watch = health.Watch(asked("other"), timeout=60)
    assert next(watch).status == v1.HealthCheckResponse.SERVICE_UNKNOWN


def test_a_watch_does_not_hold_up_a_server_that_ends(live: LiveServer, health: Any) -> None:
    """It would for as long as requests may take to be answered, here a minute."""
    watch = health.Watch(asked(), timeout=60)
    assert next(watch).status == SERVING
    (server,) = (thread for thread in threading.enumerate() if getattr(thread, "_target", None) == live.server.run)
    live.server.should_exit = True
    assert [each.status for each in watch] == [NOT_SERVING]
    server.join(30)
    assert not server.is_alive()


def test_only_so_many_may_watch(live: LiveServer, health: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grpc_front_end, "MAX_WATCHES", 2)
    watches = [health.Watch(asked(), timeout=60) for _ in range(2)]
    assert [next(watch).status for watch in watches] == [SERVING, SERVING]
    with pytest.raises(grpc.RpcError) as caught:
        next(health.Watch(asked(), timeout=60))
    assert caught.value.details() == "2 clients watch already"
    watches[0].cancel()

    def watched_again() -> bool:
        try:
            return next(health.Watch(asked(), timeout=60)).status == SERVING
        except grpc.RpcError:
            time.sleep(0.05)
            return False

    until(watched_again)
