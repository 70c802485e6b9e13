"""Two servers behind a real HAProxy or nginx, restarted in turn under load: no request is lost."""

from __future__ import annotations

import contextlib
import csv
import shutil
import signal
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.hostile.proxies import balancer, free_port, nginx_balancer, running
from tests.serving.live_server import until
from tests.serving.test_serve_command import EXAMPLE, folder, serving

__all__ = ["folder"]  # a fixture

CHECK_MS, CLIENTS = 100, 4


def load(url: str, ends: threading.Event, answers: Counter[str]) -> None:
    """Ask one request after the other, and count statuses and what went wrong."""
    with httpx.Client(trust_env=False, timeout=60) as client:
        while not ends.is_set():
            try:
                answers[str(client.post(f"{url}/compute", content=EXAMPLE.tobytes()).status_code)] += 1
            except httpx.HTTPError as error:
                answers[f"{type(error).__name__}: {error}"] += 1


def states(url: str) -> list[str]:
    """State of each server as HAProxy sees it: UP, busy while requests are at one that leaves, or DOWN."""
    with contextlib.suppress(httpx.HTTPError):
        rows = csv.DictReader(httpx.get(f"{url};csv", trust_env=False).text.splitlines())
        return [
            row["status"] if row["status"] == "UP" or row["scur"] == "0" else "busy"
            for row in rows
            if row["# pxname"] == "out" and row["svname"] != "BACKEND"
        ]
    return []


def haproxy(folder: Path, port: int, servers: list[str]) -> tuple[list[str], Callable[[int], None]]:
    """Its command, and the wait until it has seen so many servers ready."""
    statistics = free_port()
    command = balancer(folder, port, servers, CHECK_MS)
    with (folder / "balancer.cfg").open("a") as file:
        file.write(f"frontend stats\n    bind 127.0.0.1:{statistics}\n    stats enable\n    stats uri /\n")

    def wait(up: int) -> None:
        shown = f"http://127.0.0.1:{statistics}/"
        until(lambda: states(shown) == ["UP", "UP"] if up == 2 else "DOWN" in states(shown))

    return command, wait


def nginx(folder: Path, port: int, servers: list[str]) -> tuple[list[str], Callable[[int], None]]:
    """Its command. It asks both servers at any time, and the other where one is gone: there is no wait."""
    return nginx_balancer(folder, port, servers), lambda up: None


@pytest.mark.long
@pytest.mark.parametrize("before", [haproxy, nginx])
def test_rolling_restarts_behind_a_balancer_lose_nothing(
    before: Callable[..., Any], folder: Path, tmp_path: Path, hostile_seconds: float
) -> None:
    if shutil.which(before.__name__) is None:
        pytest.skip(f"{before.__name__} is not installed")
    ports, port = (free_port(), free_port()), free_port()
    command, wait = before(tmp_path, port, [f"127.0.0.1:{each}" for each in ports])
    answers, ends, stack = Counter[str](), threading.Event(), contextlib.ExitStack()

    def start(at: int) -> subprocess.Popen[str]:
        process, _ = stack.enter_context(serving(folder, "mlp", "--lame-duck", "1h", port=ports[at]))
        return process

    with running(command, port), stack:
        servers = [start(at) for at in range(2)]
        wait(2)
        url = f"http://127.0.0.1:{port}"
        clients = [threading.Thread(target=load, args=(url, ends, answers)) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            until_s, restarts = time.monotonic() + hostile_seconds, 0
            while restarts < 2 or time.monotonic() < until_s:
                asked, server = answers["200"], servers[restarts % 2]
                server.send_signal(signal.SIGTERM)
                ready = f"http://127.0.0.1:{ports[restarts % 2]}/v2/health/ready"
                until(lambda ready=ready: httpx.get(ready, trust_env=False).status_code == 503)
                # However slow this machine is: the lame duck ends once the balancer has seen it.
                wait(1)
                server.send_signal(signal.SIGTERM)
                assert server.wait(60) == 0
                servers[restarts % 2] = start(restarts % 2)
                wait(2)
                assert answers["200"] > asked
                restarts += 1
        finally:
            ends.set()
            for client in clients:
                client.join()
    print(f"{before.__name__}: {restarts} restarts, {answers}")
    assert set(answers) == {"200"}, f"{restarts} restarts: {answers}"
