"""Signals that end a command: real ones, sent to real commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from slotool.cli import interrupts

PATIENCE_S = 240.0


@pytest.mark.parametrize(
    ("number", "code", "word"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGHUP, 129, "the terminal was closed"),
    ],
)
def test_generate_ends_in_a_sentence_and_leaves_no_partial_file(
    tmp_path: Path, number: int, code: int, word: str
) -> None:
    command = [sys.executable, "-m", "slotool", "generate", "mlp", "--count", "5000000", "-o", "big.parquet"]
    # Under nohup a closed terminal is ignored, also by what is started here.
    ignored = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    try:
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    finally:
        signal.signal(signal.SIGHUP, ignored)
    partial, deadline = tmp_path / f".big.parquet.partial-{process.pid}", time.monotonic() + PATIENCE_S
    try:
        while not partial.exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        assert [path.name for path in tmp_path.iterdir()] == [partial.name]
        process.send_signal(number)
        stdout, stderr = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert (process.returncode, stdout) == (code, "")
    assert stderr.splitlines()[-1] == f"slotool: {word}"
    assert "Traceback" not in stderr
    assert list(tmp_path.iterdir()) == []


DURING_EXEC = """
import os, signal, sys
from slotool.cli import interrupts
interrupts.install()
try:
    exec(f"os.kill({os.getpid()}, signal.{sys.argv[1]})\\nwhile True: pass")
except KeyboardInterrupt:
    sys.exit(interrupts.exit_code())
"""


@pytest.mark.parametrize(("name", "code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_signal_while_a_dataclass_is_made_keeps_its_exit_code(tmp_path: Path, name: str, code: int) -> None:
    """An import executes texts; CPython 3.11 would end ``python -m`` by SIGINT, whatever the exit code."""
    (tmp_path / "during_exec.py").write_text(DURING_EXEC)
    command = [sys.executable, "-m", "during_exec", name]
    finished = subprocess.run(command, cwd=tmp_path, timeout=PATIENCE_S, check=False)
    assert finished.returncode == code


def test_a_forked_process_takes_sigterm_as_any_other() -> None:
    """A worker that is terminated ends at once, and says nothing of an interruption."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    interrupts.install()
    try:
        child = os.fork()
        if child == 0:
            try:
                time.sleep(20)
            finally:
                os._exit(0)
        os.kill(child, signal.SIGTERM)
        assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGTERM
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        interrupts.forget()
