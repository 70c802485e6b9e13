"""The conventions every subcommand keeps: exit codes, streams, sentences, start-up."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from slotool import __version__, errors, process
from slotool.cli.app import command as command_line
from slotool.cli.failures import report_failure
from slotool.commands.values import numbers
from slotool.machine import machine_facts

HEAVY = {"torch", "tensorflow", "keras", "pandas", "numpy", "numba", "sklearn", "scipy", "matplotlib", "rich"}


def test_version_and_help(slotool) -> None:
    assert slotool("--version").stdout == f"slotool {__version__}\n"
    shown = slotool("--help")
    assert shown.exit_code == 0
    assert "doctor" in shown.stdout


def test_every_function_that_declares_a_command_is_wired() -> None:
    """A command nobody can type is no command, however well its function is tested."""
    import slotool
    from slotool.cli.from_signature import words_of

    functions = [getattr(slotool, name) for name in slotool.__all__]
    declared = [(function, one) for function in functions for one in getattr(function, "command_lines", ())]
    modes = [mode for _, one in declared for mode in one.modes.values()]
    commands = [words_of(function, one) for function, one in declared if function not in modes]
    assert commands
    for words in commands:
        group: Any = command_line()
        for word in words:
            assert word in group.commands, f"add {' '.join(words)!r} to THEMES of slotool/cli/app.py"
            group = group.commands[word]


def test_help_imports_nothing_heavy() -> None:
    code = "import sys; from slotool.cli.app import command; [*command().commands.values()]; print(*sys.modules)"
    loaded = set(
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    )
    assert not loaded & HEAVY


ENDING = """
import atexit, gc, sys
from slotool.cli import main

class Held:
    def __del__(self):
        print("freed")

held = Held()
held.itself = held
atexit.register(print, "at its end")
sys.argv = ["slotool", "doctor", "--no-such"]
main()
"""


def test_a_command_ends_in_order_and_looks_for_no_garbage() -> None:
    ended = subprocess.run([sys.executable, "-c", ENDING], capture_output=True, text=True)
    assert (ended.returncode, ended.stdout) == (2, "at its end\n")
    alone = ENDING.replace("main()\n", "")
    freed = subprocess.run([sys.executable, "-c", alone], capture_output=True, text=True, check=True)
    assert freed.stdout == "at its end\nfreed\n"


@pytest.mark.parametrize("room", ["graphs", "rules", "serving.routing.router", "simulation", "planning"])
def test_what_serves_and_routes_starts_without_packages_that_only_fitting_needs(room: str) -> None:
    code = f"import sys, slotool.{room}; print(*sorted(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert f"slotool.{room}" in loaded
    assert not {"networkx", "sklearn", "scipy.stats", "scipy.optimize", "torch"} & set(loaded)


def test_a_worker_process_starts_without_the_server() -> None:
    code = "import sys, slotool.serving.engines.local_worker; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "slotool.serving.engines.local_worker" in loaded
    assert not {"slotool.serving.operations.app", "slotool.serving.routing.router", "numba", "uvicorn"} & set(loaded)


def test_every_command_has_help_with_an_example(slotool) -> None:
    def leaves(group, path):
        for name, command in group.commands.items():
            if hasattr(command, "commands"):
                yield from leaves(command, (*path, name))
            else:
                yield (*path, name), command

    found = list(leaves(command_line(), ()))
    assert len(found) >= 10
    for path, command in found:
        assert f"slotool {' '.join(path)}" in (command.help or ""), f"{path} shows no example of itself"
        assert slotool(*path, "--help").exit_code == 0


@pytest.mark.parametrize("arguments", [("nonsense",), ("doctor", "--nonsense"), ("train", "mlp")])
def test_usage_errors_exit_2(slotool, arguments: tuple[str, ...]) -> None:
    finished = slotool(*arguments)
    assert finished.exit_code == 2
    assert finished.stdout == ""
    assert finished.stderr


def test_doctor_prints_one_json_document(slotool) -> None:
    finished = slotool("doctor", "--json")
    document = finished.document
    assert finished.exit_code == (0 if document["ok"] else 1)
    assert document["schema"] == "slotool/doctor"
    assert document["machine"] == machine_facts()
    assert "cpu" in document["devices"]


def test_the_first_minute_ends_with_a_command_each(slotool) -> None:
    bare = slotool()
    assert (bare.stdout + bare.stderr).rstrip().endswith("slotool doctor")
    words = slotool("doctor").stdout.splitlines()[-1].partition("slotool ")[2].split()
    assert slotool(*words, "--help").exit_code == 0
    assert words[0] == "predict"


def test_an_option_of_one_value_is_refused_where_it_is_given_twice(slotool) -> None:
    sweeps = ("--sweep", "batch=1:4", "--sweep", "threads=1:2")
    twice = slotool("predict", "--networks", "resnet50", *sweeps)
    assert twice.exit_code == 2
    assert "--sweep" in twice.stderr
    assert slotool("doctor", "--json", "--json").exit_code in (0, 1)


@pytest.mark.parametrize(
    ("error", "code", "sentence"),
    [
        (errors.TableError("t.csv: row 3"), 2, "t.csv: row 3"),
        (errors.AlreadyExistsError("out exists already"), 2, "--force"),
        (errors.PromiseBroken("SLO missed"), 1, "SLO missed"),
        (errors.TimedOut("took too long"), 124, "took too long"),
        (errors.WorkerError("the worker died"), 3, "the worker died"),
        (KeyboardInterrupt(), 130, "interrupted"),
        (MemoryError(), 3, "out of memory"),
        (OSError(errno.ENOSPC, "x", "big.parquet"), 3, "big.parquet: no space left on the disk"),
        (OSError(errno.EADDRINUSE, "x"), 2, "--port"),
        (PermissionError(errno.EACCES, "x", "/secret"), 2, "/secret: permission denied"),
        (ModuleNotFoundError("x", name="tensorflow"), 3, "tensorflow, which is not installed"),
        (ZeroDivisionError("division by zero"), 3, "a fault of slotool"),
    ],
)
def test_every_error_is_one_sentence_and_a_code(error, code, sentence, capsys) -> None:
    assert report_failure(error) == code
    printed = capsys.readouterr().err
    assert sentence in printed
    assert printed.count("\n") == 1


def test_the_exception_tree_is_complete_and_drawn() -> None:
    tree = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert tree == set(errors.__all__)
    assert all(name in (errors.__doc__ or "") for name in tree)


def test_ctrl_c_exits_130() -> None:
    command = [process.INTERPRETER, "-m", "slotool", "train", "mlp", "--data", "digits", "--epochs", "100000"]
    command += ["-o", "never"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as running:
        assert running.stderr is not None
        assert "training" in running.stderr.readline()
        time.sleep(0.2)
        running.send_signal(signal.SIGINT)
        try:
            assert running.wait(timeout=240) == 130
        finally:
            running.kill()
        assert "Traceback" not in running.stderr.read()
    assert not Path("never").exists()


def test_a_full_disk_leaves_nothing_half_written(slotool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, data: bytes) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self))

    monkeypatch.setattr(Path, "write_bytes", full)
    finished = slotool("train", "mlp", "--data", "digits", "--epochs", 1, "--hidden", 4, "-o", tmp_path / "mlp")
    assert finished.exit_code == 3
    assert "no space left on the disk" in finished.stderr
    assert list(tmp_path.iterdir()) == []


def test_train_evaluate_transcript(slotool, tmp_path: Path) -> None:
    mlp, table = tmp_path / "mlp", tmp_path / "outcomes.parquet"
    trained = slotool("train", "mlp", "--data", "digits", "--epochs", 3, "--hidden", "16", "-o", mlp, "--json").document
    again = slotool("train", "mlp", "--data", "digits", "-o", mlp)
    assert again.exit_code == 2
    assert "exists already; add --force" in again.stderr
    finished = slotool("evaluate", mlp, "-o", table, "--json")
    assert finished.exit_code == 0
    point = finished.document["points"][0]
    assert point["version"] == "full"
    assert point["accuracy"] == pytest.approx(trained["versions"][0]["test_accuracy"])
    assert "0." in slotool("evaluate", mlp, "-o", table, "--force", "--limit", 20).stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("evaluate", "nowhere", "-o", "x"), "no such artifact folder"),
        (("train", "mlp", "-o", "x", "--data", "mnist"), "no data set called 'mnist'"),
        (("train", "mlp", "-o", "x", "--hidden", "0"), "at least 1"),
        (("train", "mlp", "-o", "x", "--hidden", "two"), "neither a number nor start:stop:step"),
        (("train", "mlp", "-o", "x", "--threads", "4096"), "cores are given"),
    ],
)
def test_bad_input_is_a_sentence(slotool, tmp_path, monkeypatch, arguments, sentence) -> None:
    monkeypatch.chdir(tmp_path)
    finished = slotool(*arguments)
    assert finished.exit_code == 2
    assert sentence in finished.stderr
    assert list(tmp_path.iterdir()) == []


def test_ranges_and_lists() -> None:
    assert numbers("0:0.3:0.1") == [0.0, 0.1, 0.2, 0.3]
    assert numbers("1,2,5:15:5") == [1, 2, 5, 10, 15]


def test_an_error_remains_one_where_nobody_reads_it() -> None:
    reader, writer = os.pipe()
    os.close(reader)
    try:
        done = subprocess.run([sys.executable, "-m", "slotool", "predict", "--nope"], stderr=writer, check=False)
    finally:
        os.close(writer)
    assert done.returncode == 2
