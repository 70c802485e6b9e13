"""Metrics that an operator is paged by, read from real servers."""

from __future__ import annotations

import re
import signal
import ssl
import sys
import threading
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from slotool import __version__
from tests.serving.live_server import HTTP, ThreeLinear, live_server, served, until
from tests.serving.test_serve_command import TABLES, WAIT_S, folder, serving  # noqa: F401
from tests.serving.test_tls import AUTHORITY, issue, trusting

BODY = np.zeros((1, 1, 2, 3), np.float32).tobytes()


def metrics(url: str, client: Any = HTTP) -> dict[str, float]:
    """Every series that the server shows."""
    lines = [line for line in client.get(f"{url}/metrics").text.splitlines() if line[:1] != "#"]
    return {name: float(value) for name, _, value in (line.rpartition(" ") for line in lines)}


def test_versions_and_resources_of_the_process_are_shown() -> None:
    with live_server([served(ThreeLinear())]) as server:
        shown = metrics(server.url)
    python = ".".join(map(str, sys.version_info[:3]))
    assert shown[f'slotool_build_info{{python="{python}",version="{__version__}"}}'] == 1
    assert shown["process_resident_memory_bytes"] > 0
    assert shown["process_cpu_seconds_total"] > 0
    assert shown["process_start_time_seconds"] > 0
    assert shown["process_open_fds"] > 0


def test_queue_and_compute_are_told_apart_and_the_oldest_wait_is_shown() -> None:
    model = ThreeLinear()
    model.sleep_s = dict.fromkeys(model.points, 0.3)
    with live_server([served(model)]) as server:
        threads = [threading.Thread(target=HTTP.post, args=(f"{server.url}/compute",), kwargs={"content": BODY})
                   for _ in range(3)]  # fmt: skip
        for thread in threads:
            thread.start()
        until(lambda: metrics(server.url)["slotool_oldest_wait_seconds"] > 0.05)
        for thread in threads:
            thread.join()
        shown = metrics(server.url)
    assert shown["slotool_oldest_wait_seconds"] == 0
    calls = {name: value for name, value in shown.items() if name.startswith("slotool_calls_total")}
    # The first leaves alone; the others wait for it.
    assert sum(calls.values()) * 0.3 <= shown['slotool_call_seconds_total{model="three"}']
    assert shown['slotool_compute_seconds_total{model="three"}'] >= 3 * 0.3
    assert shown['slotool_queue_seconds_total{model="three"}'] >= 0.3


def test_the_outcome_of_the_last_reload_is_shown(folder: Path) -> None:  # noqa: F811
    def last(url: str) -> tuple[float, float]:
        shown = metrics(url)
        return shown["slotool_last_reload_successful"], shown["slotool_last_reload_success_timestamp_seconds"]

    tokens = folder / "tokens.toml"
    entry = '[[clients]]\nname = "a"\ntoken = "0123456789abcdef"\n'
    tokens.write_text(entry)
    with serving(folder, "family", *TABLES, "--token-file", str(tokens)) as (process, ready):
        HTTP.headers["authorization"] = "Bearer 0123456789abcdef"
        try:
            began = last(ready["url"])
            assert began[0] == 1
            tokens.write_text("[[clients")
            process.send_signal(signal.SIGHUP)
            until(lambda: last(ready["url"])[0] == 0, WAIT_S)
            assert last(ready["url"])[1] == began[1]
            tokens.write_text(entry)
            process.send_signal(signal.SIGHUP)
            until(lambda: last(ready["url"])[0] == 1, WAIT_S)
            assert last(ready["url"])[1] > began[1]
        finally:
            del HTTP.headers["authorization"]


def test_the_expiry_of_the_certificate_is_shown(folder: Path, tmp_path: Path) -> None:  # noqa: F811
    AUTHORITY.cert_pem.write_to_path(tmp_path / "authority.pem")
    issue(tmp_path / "server.pem")
    read: Any = ssl._ssl  # type: ignore[attr-defined]
    expires_s = ssl.cert_time_to_seconds(read._test_decode_cert(str(tmp_path / "server.pem"))["notAfter"])
    with (
        serving(folder, "family", "--tls-certificate", str(tmp_path / "server.pem")) as (_, ready),
        httpx.Client(verify=trusting(tmp_path), trust_env=False, timeout=WAIT_S) as client,
    ):
        shown = metrics(ready["url"], client)
    (name,) = [name for name in shown if name.startswith("slotool_certificate_expiry")]
    assert re.search(r'file="[^"]*server.pem"', name)
    assert shown[name] == expires_s
