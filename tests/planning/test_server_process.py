"""A server under load goes with the command that started it, however that ends."""

from __future__ import annotations

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


def test_its_last_words_are_reported_when_it_does_not_start(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="nowhere"), server_process([str(tmp_path / "nowhere")]):
        pass
