"""A server under load goes with the command that started it, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import httpx
import pytest

from slotool.artifacts.bundle import shipped_artifact
from slotool.errors import RunError
from slotool.planning.server_process import server_process
from tests.serving.live_server import until

STARTS = """
import sys
from slotool.planning.server_process import server_process
with server_process(sys.argv[1:]) as url:
    print(url, flush=True)
    sys.stdin.read()
"""


def test_it_serves_and_is_gone_with_a_parent_that_is_killed() -> None:
    model = str(shipped_artifact("mlp").path)
    command = [sys.executable, "-c", STARTS, model]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        url = parent.stdout.readline().strip()
        assert httpx.get(f"{url}/v2/health/ready", trust_env=False).status_code == 200
        parent.send_signal(signal.SIGKILL)
        parent.wait()
        for _ in range(100):
            try:
                httpx.get(f"{url}/v2/health/ready", trust_env=False, timeout=1)
            except httpx.HTTPError:
                return
            time.sleep(0.05)
    pytest.fail("the server outlived its parent")


PRINTS = """
import sys, threading
if "serve" in sys.argv:
    print("hello", flush=True)
    def go_on():
        for _ in range(1000):
            print("x" * 1000, flush=True)
        open({done!r}, "w").close()
    threading.Timer(5, go_on).start()
"""


def test_what_its_code_prints_is_read_and_no_answer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, real_processes: None
) -> None:
    done = tmp_path / "done"
    (tmp_path / "sitecustomize.py").write_text(PRINTS.format(done=str(done)))
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with server_process([str(shipped_artifact("mlp").path)]) as url:
        until(done.exists, within_s=120)
        assert httpx.get(f"{url}/v2/health/ready", trust_env=False).status_code == 200


def test_its_last_words_are_reported_when_it_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere"), server_process([str(tmp_path / "nowhere")]):
        pass
