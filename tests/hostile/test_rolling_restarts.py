"""Two servers behind a real HAProxy, restarted in turn under load: no request is lost."""

from __future__ import annotations

import contextlib
import shutil
import signal
import threading
import time
from collections import Counter
from pathlib import Path

import httpx
import pytest

from tests.hostile.proxies import balancer, free_port, running
from tests.serving.live_server import until
from tests.serving.test_serve_command import EXAMPLE, folder, serving

__all__ = ["folder"]  # a fixture

CHECK_MS, LAME_DUCK_S, CLIENTS = 100, 2.0, 4


def load(url: str, ends: threading.Event, answers: Counter[str]) -> None:
    """Ask one request after the other, and count statuses and what went wrong."""
    with httpx.Client(trust_env=False, timeout=60) as client:
        while not ends.is_set():
            try:
                answers[str(client.post(f"{url}/compute", content=EXAMPLE.tobytes()).status_code)] += 1
            except httpx.HTTPError as error:
                answers[f"{type(error).__name__}: {error}"] += 1


def are_up(url: str, count: int) -> bool:
    """True if HAProxy gives requests to so many servers by now."""
    with contextlib.suppress(httpx.HTTPError):
        rows = httpx.get(f"{url};csv", trust_env=False).text.splitlines()
        return sum(row.startswith("out,s") and ",UP," in row for row in rows) == count
    return False


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
def test_rolling_restarts_behind_haproxy_lose_nothing(folder: Path, tmp_path: Path, hostile_seconds: float) -> None:
    ports, port, statistics = (free_port(), free_port()), free_port(), free_port()
    command = balancer(tmp_path, port, [f"127.0.0.1:{each}" for each in ports], CHECK_MS)
    with (tmp_path / "balancer.cfg").open("a") as file:
        file.write(f"frontend stats\n    bind 127.0.0.1:{statistics}\n    stats enable\n    stats uri /\n")
    answers, ends, stack = Counter[str](), threading.Event(), contextlib.ExitStack()
    url, shown = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{statistics}/"

    def start(at: int) -> contextlib.ExitStack:
        server = contextlib.ExitStack()
        arguments = ("mlp", "--lame-duck", f"{LAME_DUCK_S}s")
        process, _ = server.enter_context(serving(folder, *arguments, port=ports[at]))
        server.callback(process.wait, 60)
        server.callback(process.send_signal, signal.SIGTERM)
        return server

    servers = [stack.enter_context(start(at)) for at in range(2)]
    with stack, running(command, port):
        until(lambda: are_up(shown, 2))
        clients = [threading.Thread(target=load, args=(url, ends, answers)) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            until_s, restarts = time.monotonic() + hostile_seconds, 0
            while restarts < 2 or time.monotonic() < until_s:
                before = answers["200"]
                servers[restarts % 2].close()
                servers[restarts % 2] = stack.enter_context(start(restarts % 2))
                until(lambda: are_up(shown, 2))
                assert answers["200"] > before
                restarts += 1
        finally:
            ends.set()
            for client in clients:
                client.join()
    assert set(answers) == {"200"}, f"{restarts} restarts: {answers}"
