"""``make gpu``: everything that slotool says of GPUs, tested and measured on the CUDA device of this machine.

``python -m benchmarks.gpu`` runs all pieces, each in a process of its own and for nine minutes at most; the same
command again goes on where it was. ``--piece NAME`` runs one, and exits with 75 when it is to be started again.
``--rehearse`` runs all of them at a tiny size on the CPU: it proves the code, and its figures mean nothing. Nothing is
downloaded. Results are files below ``--out``: a document per piece, a file per finished step, and Parquet tables.
"""

from __future__ import annotations

import argparse
import json
import os
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
from benchmarks.gpu_pieces.sizes import FULL, REHEARSAL, Sizes
from slotool import devices
from slotool.devices import CPU
from slotool.errors import InputError
from slotool.process import die_with_parent

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "results" / "gpu.md"
LIMIT_S = 540.0
# A piece that does not end by itself is interrupted so long after its limit, and killed so long after that.
GRACE_S, KILL_S = 15.0, 15.0
# A piece is started so often before the next one has its turn.
MAX_STARTS = 3
DEVICE_FILE = "device.json"
# Exit codes of wrong arguments, as argparse has it, and after Ctrl-C.
USAGE, INTERRUPTED = 2, 130
UNUSABLE = "unusable"


def _piece(name: str, title: str, function: str, allowance_s: float, *needs: str, anywhere: bool = False) -> Spec:
    """``function``: ``module:function`` of ``benchmarks.gpu_pieces``, imported when the piece runs."""
    module, _, attribute = function.partition(":")

    def run(piece: Piece) -> None:
        getattr(import_module(f"benchmarks.gpu_pieces.{module}"), attribute)(piece)

    return Spec(name, title, run, allowance_s, needs, anywhere)


# The order matters: predictors read the labels of the pieces before. Together 31 minutes.
PIECES = {
    spec.name: spec
    for spec in (
        _piece("tests", "Tests marked cuda", "cuda_tests:run", 200, "pytest", "hypothesis"),
        _piece("solo-random", "Labels of random networks", "solo:random_networks", 460),
        _piece("solo-zoo", "Labels of the Keras applications", "solo:zoo", 160),
        _piece("pairs", "Co-located pairs", "pairs:run", 420),
        _piece("predictors", "Predictors", "predictors:run", 300, anywhere=True),
        _piece("actuation", "Switching subnets", "actuation:run", 60),
        _piece("served", "Served requests", "served:run", 100),
        _piece("backends", "Keras, ONNX Runtime, CUDA graphs", "other_backends:run", 140, "tensorflow", "onnxruntime"),
    )
}


def _share(text: str) -> float:
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text}: a share of the planned time, above 0 and up to 1, is expected")
    return value


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
    out = asked.out or Path("gpu-rehearsal" if asked.rehearse else "gpu-results")
    if asked.parent:
        die_with_parent(asked.parent)
    if asked.list:
        print(listed(out))
        return 0
    try:
        if asked.force:
            forget(out, [asked.piece] if asked.piece else list(PIECES))
        if asked.piece is None:
            return run_all(out, device, asked.limit, asked.share)
        if PIECES[asked.piece].anywhere and unusable(device) and (out / DEVICE_FILE).is_file():
            device = CPU
        elif problem := unusable(device) or of_another(out, device):
            print(f"make gpu: {problem}", file=sys.stderr)
            return USAGE
        sizes = REHEARSAL if asked.rehearse else FULL
        return EXIT_CODES[run_one(asked.piece, out, device, sizes, asked.limit, asked.share)]
    except InputError as error:
        print(f"make gpu: {error}", file=sys.stderr)
        return USAGE
    except KeyboardInterrupt:
        print("make gpu: interrupted; finished steps are kept, and the same command goes on", file=sys.stderr)
        return INTERRUPTED


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--piece", choices=tuple(PIECES), help="run this one, in this process")
    parser.add_argument("--out", type=Path, help="folder of the results; default: gpu-results, rehearsed gpu-rehearsal")
    parser.add_argument("--device", default="cuda:0", help="default: cuda:0")
    parser.add_argument("--rehearse", action="store_true", help="at a tiny size, on the CPU")
    parser.add_argument(
        "--limit", type=_seconds, default=LIMIT_S, help=f"seconds that a piece runs at most; {LIMIT_S:.0f}"
    )
    parser.add_argument(
        "--share",
        type=_share,
        default=1.0,
        help="of the planned time of each piece, and of what it measures; 1",
    )
    parser.add_argument("--force", action="store_true", help="begin the piece, or all of them, again")
    parser.add_argument("--list", action="store_true", help="which pieces there are, and how each ended")
    parser.add_argument("--parent", type=int, help=argparse.SUPPRESS)
    return parser


def listed(out: Path) -> str:
    """A line per piece: its state, its planned time, and the packages that it could use and that are not installed."""
    lines = []
    for spec in PIECES.values():
        missing = [package for package in spec.needs if find_spec(package) is None]
        without = f"; not installed: {', '.join(missing)}" if missing else ""
        lines.append(f"{spec.name:12} {state(out, spec.name):10} {spec.allowance_s:4.0f} s  {spec.title}{without}")
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


def run_one(name: str, out: Path, device: str, sizes: Sizes, limit_s: float, share: float) -> str:
    """How the piece ended; ``done`` where it had ended before."""
    if state(out, name) == DONE:
        print(f"{name}: done before", flush=True)
        return DONE
    print(f"{name}: {PIECES[name].title}", flush=True)
    status = ran(PIECES[name], out, device, sizes, limit_s, share)
    print(f"{name}: {status}", flush=True)
    return status


def run_all(out: Path, device: str, limit_s: float, share: float = 1.0) -> int:
    """Every piece that is not done, in a process of its own; a table of how each ended.

    This process leaves the device alone: it would count as another user of it.
    """
    began = time.monotonic()
    for name in PIECES:
        for _ in range(MAX_STARTS):
            before = finished(out, name)
            if state(out, name) == DONE:
                break
            status = started(name, out, device, limit_s, share)
            if status == UNUSABLE:
                return USAGE
            if status != UNFINISHED:
                break
            if finished(out, name) == before:
                print(f"{name}: no step ends within {limit_s:.0f} s", flush=True)
                break
    write_page(out)
    print(
        f"\n{listed(out)}\n{time.monotonic() - began:.0f} s; results are in {out}, a page of them is {out / PAGE.name}"
    )
    return int(any(state(out, name) != DONE for name in PIECES))


def finished(out: Path, name: str) -> int:
    """How many steps of the piece have ended well."""
    return len(list((out / name).glob("*.json")))


def write_page(out: Path) -> None:
    """The page of results as it would be with these."""
    from docs.generate.gpu import filled

    (out / PAGE.name).write_text(filled(PAGE.read_text(), out))


def started(name: str, out: Path, device: str, limit_s: float, share: float) -> str:
    """How the piece ended in a process of its own, ``UNUSABLE`` where it did not begin. It is interrupted, then killed,
    where it does not end in time."""
    command = [sys.executable, "-m", "benchmarks.gpu", "--piece", name, "--out", str(out), "--limit", str(limit_s)]
    command += ["--share", str(share)]
    command += ["--parent", str(os.getpid()), *(["--rehearse"] if device == CPU else ["--device", device])]
    # In a session of its own: Ctrl-C reaches it once, from here.
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        process.wait(limit_s + GRACE_S)
    except subprocess.TimeoutExpired:
        ended(process)
    except KeyboardInterrupt:
        ended(process)
        raise
    by_code = {code: status for status, code in EXIT_CODES.items()} | {USAGE: UNUSABLE}
    if process.returncode not in by_code:
        print(f"{name}: its process ended with {process.returncode}", flush=True)
    if process.returncode == -signal.SIGKILL:
        return UNFINISHED
    return by_code.get(process.returncode, FAILED)


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
