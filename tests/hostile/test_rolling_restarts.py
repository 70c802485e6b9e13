"""Two servers behind a real HAProxy, restarted in turn under load: no request is lost."""

from __future__ import annotations

import contextlib
import csv
import shutil
import signal
import subprocess
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


@pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")
def test_rolling_restarts_behind_haproxy_lose_nothing(folder: Path, tmp_path: Path, hostile_seconds: float) -> None:
    ports, port, statistics = (free_port(), free_port()), free_port(), free_port()
    command = balancer(tmp_path, port, [f"127.0.0.1:{each}" for each in ports], CHECK_MS)
    with (tmp_path / "balancer.cfg").open("a") as file:
        file.write(f"frontend stats\n    bind 127.0.0.1:{statistics}\n    stats enable\n    stats uri /\n")
    answers, ends, stack = Counter[str](), threading.Event(), contextlib.ExitStack()
    url, shown = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{statistics}/"

    def start(at: int) -> subprocess.Popen[str]:
        process, _ = stack.enter_context(serving(folder, "mlp", "--lame-duck", "1h", port=ports[at]))
        return process

    with running(command, port), stack:
        servers = [start(at) for at in range(2)]
        until(lambda: states(shown) == ["UP", "UP"])
        clients = [threading.Thread(target=load, args=(url, ends, answers)) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        try:
            until_s, restarts = time.monotonic() + hostile_seconds, 0
            while restarts < 2 or time.monotonic() < until_s:
                before, server = answers["200"], servers[restarts % 2]
                server.send_signal(signal.SIGTERM)
                # However slow this machine is: the lame duck ends once HAProxy has seen it.
                until(lambda: "DOWN" in states(shown))
                server.send_signal(signal.SIGTERM)
                assert server.wait(60) == 0
                servers[restarts % 2] = start(restarts % 2)
                until(lambda: states(shown) == ["UP", "UP"])
                assert answers["200"] > before
                restarts += 1
        finally:
            ends.set()
            for client in clients:
                client.join()
    assert set(answers) == {"200"}, f"{restarts} restarts: {answers}"
