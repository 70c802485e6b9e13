"""Signals that end a command: real ones, sent to real commands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

import slotool.process
from slotool.cli import interrupts

MODELS = Path(__file__).parents[2] / "models"
PATIENCE_S = 240.0


def run(program: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """A module of this text as ``python -m`` runs it."""
    (folder / "program.py").write_text(program)
    command = [sys.executable, "-m", "program", *arguments]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


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


def test_ctrl_c_while_the_command_line_is_imported_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "typer.py").write_text("import time\nprint('importing', flush=True)\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "slotool", "doctor"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "importing\n"
        process.send_signal(signal.SIGINT)
        assert process.communicate(timeout=PATIENCE_S) == ("", "slotool: interrupted\n")
    assert process.returncode == 130


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
    finished = run(DURING_EXEC, tmp_path, name)
    assert finished.returncode == code


SWALLOWED = """
import os, signal, sys, time
from slotool.cli import interrupts
interrupts.install()
class Finalized:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
try:
    if sys.argv[1] == "finalizer":
        Finalized()
    else:
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        except BaseException:
            pass
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(interrupts.exit_code())
sys.exit("slept on")
"""


@pytest.mark.parametrize("by", ["finalizer", "except"])
def test_a_signal_that_is_swallowed_on_its_way_is_sent_again(tmp_path: Path, by: str) -> None:
    """As some libraries do while they import each other; long work behind them would not look for it."""
    finished = run(SWALLOWED, tmp_path, by)
    assert finished.returncode == 143
    assert finished.stderr.splitlines()[-1] == "slotool: terminated"


CLEANING_UP = """
import os, signal, sys, time
from slotool.cli import interrupts
interrupts.install()
try:
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    finally:
        time.sleep(0.5)
        print("cleaned up", flush=True)
except KeyboardInterrupt as error:
    time.sleep(0.5)
    sys.exit(interrupts.exit_code())
"""


def test_a_signal_on_its_way_does_not_disturb_who_cleans_up(tmp_path: Path) -> None:
    finished = run(CLEANING_UP, tmp_path)
    assert (finished.returncode, finished.stdout) == (143, "cleaned up\n")


GARBAGE = """
import os, signal, sys, time
from slotool.cli import interrupts
interrupts.install()
class Cycle:
    def __init__(self):
        self.itself = self
    def __del__(self):
        print("collected", flush=True)
kept = Cycle()
try:
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(60)
except KeyboardInterrupt:
    sys.exit(interrupts.exit_code())
"""


def test_an_interrupted_command_ends_without_collecting_garbage(tmp_path: Path) -> None:
    """With torch and numba loaded that takes seconds."""
    finished = run(GARBAGE, tmp_path)
    assert (finished.returncode, finished.stdout) == (143, "")


IN_COMPILED_CODE = """
import os, signal, time
from slotool.cli import app
def command(prog_name):
    try:
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(60)
    except KeyboardInterrupt as error:
        raise SystemError("CPUDispatcher returned a result with an exception set") from error
app.command = lambda: command
app.main()
"""


def test_a_signal_that_compiled_code_turns_into_a_system_error_is_still_one(tmp_path: Path) -> None:
    """As Numba's dispatcher does where the signal comes while it is called."""
    finished = run(IN_COMPILED_CODE, tmp_path)
    assert (finished.returncode, finished.stderr) == (143, "slotool: terminated\n")


AFTERWARDS = """
import os, signal, time
from slotool.cli import interrupts
interrupts.install()
interrupts.forget()
try:
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(60)
except KeyboardInterrupt:
    pass
time.sleep(0.5)
print("went on")
"""


def test_a_signal_after_a_command_is_not_sent_again(tmp_path: Path) -> None:
    """Whoever runs a command in a process of their own may handle Ctrl-C as they like when it has ended."""
    finished = run(AFTERWARDS, tmp_path)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "went on\n", "")


def working_in(folder: Path) -> list[psutil.Process]:
    """Processes of this working folder: forks are no children of whoever has them started."""
    processes = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if process.cwd() == str(folder):
                processes.append(process)
    return processes


def test_a_terminated_campaign_keeps_its_journal_and_leaves_no_worker(tmp_path: Path) -> None:
    command = [
        slotool.process.INTERPRETER, "-m", "slotool", "profile", "points", str(MODELS / "supernet"),
        "-o", "table.parquet", "--threads", "1", "--batch-size", "1,2,4,8,16,32", "--max-seconds-per-item", "0.5",
    ]  # fmt: skip
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    journal, deadline = tmp_path / "table.parquet.journal", time.monotonic() + PATIENCE_S
    try:
        while process.poll() is None and time.monotonic() < deadline:
            if journal.exists() and len(journal.read_bytes().splitlines()) > 2:
                break
            time.sleep(0.01)
        workers = [other for other in working_in(tmp_path) if other.pid != process.pid]
        assert len(workers) > 1
        process.terminate()
        _, stderr = process.communicate(timeout=PATIENCE_S)
    finally:
        process.kill()
    assert process.returncode == 143
    assert "finished rows are in table.parquet.journal, the same command again resumes" in stderr
    assert [path.name for path in tmp_path.iterdir()] == [journal.name]
    assert psutil.wait_procs(workers, timeout=PATIENCE_S)[1] == []


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
