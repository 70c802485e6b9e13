"""SIGHUP while a server starts, as by a log rotation: there is nothing to load again yet, and nothing ends."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

from tests.serving.onnx_files import save_scaling


def ignores_hangup(process: int) -> bool:
    status = Path(f"/proc/{process}/status").read_text()
    ignored = next(line.split()[1] for line in status.splitlines() if line.startswith("SigIgn"))
    return bool(int(ignored, 16) & 1 << (signal.SIGHUP - 1))


def test_a_server_that_starts_survives_it(tmp_path: Path) -> None:
    save_scaling(tmp_path / "net.onnx", 2.0)
    command = [sys.executable, "-m", "slotool", "serve", str(tmp_path / "net.onnx"), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        try:
            while not ignores_hangup(server.pid):
                assert server.poll() is None
                time.sleep(0.01)
            server.send_signal(signal.SIGHUP)
            assert server.stdout is not None
            assert json.loads(server.stdout.readline())["url"].startswith("http://")
        finally:
            server.terminate()
