"""``make gpu``: windows of GPU time, in which slotool is tested and measured on the CUDA device of this machine.

``python -m benchmarks.gpu`` runs the pieces of all windows, each in a process of its own and within its planned time;
the same command again continues. ``--window N`` runs the pieces of one, within ``--limit`` seconds altogether;
``--piece NAME`` runs one, and exits with 75 when it is to be started again. ``--rehearse`` runs them at a tiny size on
the CPU: it proves the code, and its figures mean nothing. Nothing is downloaded. Results are files below ``--out``: a
document per piece, a file per finished step, and Parquet tables.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

from benchmarks.gpu_pieces.piece import (
    DONE,
    EXIT_CODES,
    FAILED,
    TABLES,
    UNFINISHED,
    Piece,
    Spec,
    device_facts,
    ran,
    write_json,
)
from slotool import devices
from slotool.devices import CPU
from slotool.errors import InputError
from slotool.nvml import Nvml
from slotool.process import die_with_parent

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "gpu.md"
# One command of a lent machine runs for ten minutes at most.
LIMIT_S = 540.0
# Start of a piece's process, beside its planned time.
START_S = 20.0
# A piece that does not end by itself is interrupted so long after its limit, and killed so long after that.
GRACE_S, KILL_S = 10.0, 10.0
# A piece is not begun where less than this is left.
MIN_LEFT_S = 20.0
# So often are pieces that ran out of time started.
MAX_STARTS = 3
SHOWN_CHARACTERS = 160
DEVICE_FILE = "device.json"
# Exit codes of wrong arguments, as argparse has it, and after Ctrl-C.
USAGE, INTERRUPTED = 2, 130
UNUSABLE = "unusable"


# By piece: ``module:function`` of ``benchmarks.gpu_pieces``, imported when the piece runs.
FUNCTIONS: dict[str, str] = {}


def _piece(window: int, name: str, title: str, function: str, allowance_s: float, *needs: str, **more: bool) -> Spec:
    FUNCTIONS[name] = function

    def run(piece: Piece) -> None:
        module, _, attribute = function.partition(":")
        getattr(import_module(f"benchmarks.gpu_pieces.{module}"), attribute)(piece)

    return Spec(window, name, title, run, allowance_s, needs, **more)


# In a window the order matters: what comes last gets what the others leave of 13 minutes.
PIECES = {
    spec.name: spec
    for spec in (
        _piece(1, "solo-zoo", "Labels of the Keras applications", "solo:zoo", 130),
        _piece(1, "backends", "CUDA graphs, eager calls, torch.compile", "backends:run", 110, "tensorflow"),
        _piece(1, "solo-random", "Labels of random networks", "solo:random_networks", 170),
        _piece(1, "tests", "Tests marked cuda", "cuda_tests:run", 130, "pytest", "hypothesis"),
        _piece(1, "served", "Served requests", "served:run", 80),
        _piece(1, "pairs", "Co-located pairs of few networks", "pairs:few", 90),
        _piece(2, "timm", "timm's networks", "timm:run", 520),
        _piece(3, "serving", "Servers under load", "serving:run", 520, "litserve"),
        _piece(3, "actuation", "Switching subnets", "actuation:run", 60),
        _piece(4, "transformers", "Prefill and decode", "transformers:run", 480),
        _piece(5, "large-outputs", "Large output layers", "large_outputs:run", 400, "triton"),
        _piece(6, "beside-large", "A small network beside a large one", "beside_large:run", 80),
        _piece(6, "pairs-all", "Co-located pairs", "pairs:all_pairs", 500),
        _piece(7, "solo-many", "Many labels of random networks", "solo:many_random_networks", 540),
        _piece(7, "predictors", "Predictors", "predictors:run", 300, anywhere=True),
    )
}


def _seconds(text: str) -> float:
    value = float(text)
    if not value > 0:
        raise argparse.ArgumentTypeError(f"{text}: seconds above 0 are expected")
    return value


def main(arguments: Sequence[str] | None = None) -> int:
    """0: all is done; 1: something failed; 2: wrong arguments; 75: to be started again; 130: interrupted."""
    asked = _parser().parse_args(arguments)
    # A shell has its background jobs ignore Ctrl-C, and their children too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    device = CPU if asked.rehearse else asked.device
    if asked.parent:
        die_with_parent(asked.parent)
    try:
        out = asked.out or default_folder(device, asked.rehearse)
        names = [asked.piece] if asked.piece else chosen(asked.window, device)
        if asked.list:
            print(listed(out, names))
            return 0
        if asked.force:
            forget(out, names)
        if asked.piece is None:
            return run_all(names, out, device, asked.limit, asked.rehearse)
        if PIECES[asked.piece].anywhere and unusable(device) and (out / DEVICE_FILE).is_file():
            device = CPU
        elif problem := unusable(device) or of_another(out, device):
            print(f"make gpu: {problem}", file=sys.stderr)
            return USAGE
        return EXIT_CODES[run_one(asked.piece, out, device, asked.limit or LIMIT_S, not asked.rehearse)]
    except InputError as error:
        print(f"make gpu: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("make gpu: interrupted; finished steps are kept, and the same command continues", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    which = parser.add_mutually_exclusive_group()
    windows = sorted({spec.window for spec in PIECES.values()})
    which.add_argument("--window", type=int, choices=windows, help="the pieces of this window; default: of all")
    which.add_argument("--piece", choices=tuple(PIECES), help="this piece alone, in this process")
    parser.add_argument("--out", type=Path, help="folder of results; default: gpu-results/CARD, or gpu-rehearsal")
    parser.add_argument("--device", default="cuda:0", help="default: cuda:0")
    parser.add_argument("--rehearse", action="store_true", help="at a tiny size, on the CPU")
    parser.add_argument("--limit", type=_seconds, help=f"seconds for all; default: none, of one piece {LIMIT_S:.0f}")
    parser.add_argument("--force", action="store_true", help="begin these pieces again")
    parser.add_argument("--list", action="store_true", help="print these pieces, and how each ended")
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    return parser


def chosen(window: int | None, device: str) -> list[str]:
    """Return the pieces of a window, or of all; those for a CPU are left out of a window on a GPU."""
    specs = [spec for spec in PIECES.values() if window in (None, spec.window)]
    return [spec.name for spec in specs if window is None or device == CPU or not spec.anywhere]


def default_folder(device: str, rehearse: bool) -> Path:
    """Return the folder of this card, for results of several are never mixed; where none can be used here, the one
    folder that is there."""
    if rehearse:
        return Path("gpu-rehearsal")
    results = Path("gpu-results")
    if problem := unusable(device):
        known = [path.parent for path in results.glob(f"*/{DEVICE_FILE}")]
        if len(known) != 1:
            raise InputError(f"{problem}; or name a folder of results by --out")
        return known[0]
    # NVML's name, for PyTorch would open the device to read it.
    card = Nvml().visible(int(devices.parsed(device).partition(":")[2] or 0)).name or "gpu"
    return results / re.sub(r"[^a-z0-9]+", "-", card.lower())


def listed(out: Path, names: Sequence[str]) -> str:
    """A line per piece: its state, its planned time, and the packages that it could use and that are not installed."""
    lines = []
    for spec in (PIECES[name] for name in names):
        missing = [package for package in spec.needs if find_spec(package) is None]
        without = f"; not installed: {', '.join(missing)}" if missing else ""
        lines.append(
            f"{spec.window} {spec.name:14} {state(out, spec.name):10} {spec.allowance_s:4.0f} s  {spec.title}{without}"
        )
    return "\n".join(lines)


def state(out: Path, name: str) -> str:
    """How the piece ended, ``not begun`` where it has no document."""
    path = out / f"{name}.json"
    return str(json.loads(path.read_text())["status"]) if path.is_file() else "not begun"


def unusable(device: str) -> str | None:
    """Why the device cannot be used."""
    if find_spec("torch") is None:
        return "torch is not installed in this Python; name another by GPU_PYTHON=…"

    try:
        devices.required(device)
    except InputError as error:
        return f"{error}; --rehearse runs everything on the CPU"
    return None


def of_another(out: Path, device: str) -> str | None:
    """Why ``out`` cannot be gone on with: it holds results of another device. Otherwise it gets this one's facts."""
    facts, path = device_facts(device), out / DEVICE_FILE
    if path.is_file():
        known = json.loads(path.read_text())
        if any(known[key] != facts[key] for key in ("name", "torch", "cuda")):
            there = f"{known['name']}, torch {known['torch']}"
            return f"{out} holds results of {there}; name another folder by --out, or begin again by --force"
    write_json(path, facts)
    return None


def forget(out: Path, names: Sequence[str]) -> None:
    """Remove what these pieces have left; of all of them, the name of the device as well."""
    for name in names:
        for folder in (out / name, out / TABLES / name):
            shutil.rmtree(folder, ignore_errors=True)
        (out / f"{name}.json").unlink(missing_ok=True)
    if set(names) == set(PIECES):
        (out / DEVICE_FILE).unlink(missing_ok=True)


def run_one(name: str, out: Path, device: str, limit_s: float, full: bool) -> str:
    """How the piece ended; ``done`` where it had ended before."""
    if state(out, name) == DONE:
        print(f"{name}: done before", flush=True)
        return DONE
    print(f"{name}: {PIECES[name].title}", flush=True)
    status = ran(PIECES[name], out, device, limit_s, full)
    print(f"{name}: {status}", flush=True)
    return status


def run_all(names: Sequence[str], out: Path, device: str, limit_s: float | None, rehearse: bool) -> int:
    """Run every piece that is not done, in a process of its own; those that ran out of time again after the others.

    This process leaves the device alone: it would count as another user of it.
    """
    began = time.monotonic()
    out.mkdir(parents=True, exist_ok=True)
    left = [name for name in names if state(out, name) != DONE]
    for _ in range(MAX_STARTS):
        again = []
        for name in left:
            left_s = LIMIT_S if limit_s is None else limit_s - (time.monotonic() - began) - GRACE_S - KILL_S
            if left_s < MIN_LEFT_S:
                print(f"{name}: no time left", flush=True)
                continue
            planned_s = LIMIT_S if rehearse else PIECES[name].allowance_s + START_S
            before, status = finished(out, name), started(name, out, device, min(planned_s, left_s), rehearse)
            if status == UNUSABLE:
                return USAGE
            if status == UNFINISHED and finished(out, name) == before:
                print(f"{name}: no step ended in its time", flush=True)
            if status == UNFINISHED:
                again.append(name)
        left = again
    print(f"\n{listed(out, names)}\n{time.monotonic() - began:.0f} s; results are in {out}", flush=True)
    write_page(out)
    return int(any(state(out, name) != DONE for name in names))


def finished(out: Path, name: str) -> int:
    """How many steps of the piece have ended well."""
    return len(list((out / name).glob("*.json")))


def write_page(out: Path) -> None:
    """The page of results as it would be with these."""
    from docs.generate.gpu import filled

    (out / PAGE.name).write_text(filled(PAGE.read_text(), out))


def started(name: str, out: Path, device: str, limit_s: float, rehearse: bool) -> str:
    """Run the piece in a process of its own, which is interrupted, then killed, where it does not end in time.

    Its output goes to ``NAME.log``; a line per step is printed.

    Returns:
        How it ended; ``UNUSABLE`` where it did not begin.
    """
    command = [sys.executable, "-m", "benchmarks.gpu", "--piece", name, "--out", str(out), "--limit", str(limit_s)]
    command += ["--parent", str(os.getpid()), *(["--rehearse"] if rehearse else ["--device", device])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    path = out / f"{name}.log"
    with path.open("a") as log:
        begins_at = log.tell()
        # In a session of its own: Ctrl-C reaches it once, from here.
        process = subprocess.Popen(command, env=environment, start_new_session=True, stdout=log, stderr=log)
        try:
            process.wait(limit_s + GRACE_S)
        except subprocess.TimeoutExpired:
            ended(process)
        except KeyboardInterrupt:
            ended(process)
            raise
    tell(path, begins_at, name)
    by_code = {code: status for status, code in EXIT_CODES.items()} | {USAGE: UNUSABLE}
    if process.returncode not in by_code:
        print(f"{name}: its process ended with {process.returncode}", flush=True)
    if process.returncode == -signal.SIGKILL:
        return UNFINISHED
    return by_code.get(process.returncode, FAILED)


def tell(log: Path, begins_at: int, name: str) -> None:
    """Print the lines on steps; before that of a failed one the last line of its traceback."""
    lines = log.read_bytes()[begins_at:].decode(errors="replace").splitlines()
    for before, line in itertools.pairwise(["", *filter(None, lines)]):
        if line.startswith((f"{name}: ", "   ", "make gpu: ")) and not line.startswith("    "):
            shown = [before, line] if line.startswith("   ") and line.endswith(": failed") else [line]
            print("\n".join(each[:SHOWN_CHARACTERS] for each in shown), flush=True)


def ended(process: subprocess.Popen[bytes]) -> None:
    """Interrupt it, and kill what is left of it and its workers a while later."""
    process.send_signal(signal.SIGINT)
    try:
        process.wait(KILL_S)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


if __name__ == "__main__":
    sys.exit(main())
