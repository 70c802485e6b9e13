"""Load plan sent by several client processes, for rates beyond one.

``python -m slotool.workloads.client.many_processes FOLDER NUMBER`` is such a process. FOLDER holds the plan of all
(``ManyProcesses`` writes it). It prints ``ready`` on stdout when warm, reads on stdin the reading of
``time.perf_counter`` at which all begin (one clock for all processes of a machine), prints from time to time how many
requests have finished, and leaves its log in FOLDER. On SIGINT it leaves what has finished.
"""

from __future__ import annotations

import json
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from slotool.data.columns import Columns, RaggedColumns
from slotool.data.dataset import Split
from slotool.errors import InputError, RunError, SlotoolError
from slotool.models.packing import pack, unpack
from slotool.models.signature import Signature
from slotool.process import end_without_collecting, module_command
from slotool.workloads.client.channels import TargetServer
from slotool.workloads.client.endpoint import Terms
from slotool.workloads.client.open_loop import LEAD_S, LoadPlan, LoadRun, LocalRun
from slotool.workloads.requests import RequestLog

READY_WITHIN_S = 120.0
# Beyond the last request's own time to answer.
_ENDING_S = 30.0
# Time for all clients to write finished requests after Ctrl-C.
_INTERRUPTED_S = 2.0


@dataclass
class ManyProcesses(LoadRun):
    """Load run by several processes: process i modulo ``processes`` sends request i, all on one clock.

    ``progress(n)``: n more have finished. ``began``: called with the plan's first instant.
    """

    plan: LoadPlan
    target: TargetServer
    processes: int
    progress: Callable[[int], None] = lambda more: None
    began: Callable[[float], None] = lambda start_s: None
    _log: RequestLog | None = field(default=None, init=False)
    _counts: dict[int, int] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        if not 1 <= self.processes <= len(self.plan):
            raise InputError(f"{len(self.plan)} requests cannot be sent by {self.processes} processes")

    def drive(self) -> None:
        with tempfile.TemporaryDirectory(prefix="slotool-load-") as folder:
            self._write_plan(Path(folder))
            try:
                self._drive(folder)
            finally:
                if logs := sorted(Path(folder).glob("log-*.parquet")):
                    self._log = RequestLog.load_all(logs)

    def _drive(self, folder: str) -> None:
        clients, has_started = [self._start(folder, number) for number in range(self.processes)], False
        try:
            self._hear(clients, until="ready", within_s=READY_WITHIN_S)
            begin_s = time.perf_counter() + LEAD_S
            has_started = True
            for client in clients:
                _tell(client, begin_s)
            self.began(begin_s)
            last_s = float(self.plan.times_s[-1]) + self.target.answer_within_s + _ENDING_S
            self._hear(clients, until="ended", within_s=last_s)
        except KeyboardInterrupt:
            if has_started:
                _let_end(clients)
            raise
        finally:
            for client in clients:
                client.kill()
                client.communicate()

    @property
    def finished(self) -> int:
        return len(self._log) if self._log else 0

    def log(self, provenance: Mapping[str, Any] | None = None) -> RequestLog:
        return RequestLog(self._log.rows, provenance) if self._log else RequestLog.of([])

    def _write_plan(self, folder: Path) -> None:
        plan = self.plan
        arrays = {"times_s": plan.times_s, "examples": plan.examples, "priorities": plan.priorities}
        arrays |= {"labels": plan.labels}
        arrays |= {} if plan.numbers is None else {"numbers": plan.numbers}
        arrays |= {} if plan.tolerances is None else {"tolerances": plan.tolerances}
        if isinstance(plan.split.x, RaggedColumns):
            raise InputError("sequences of different lengths are sent by one process: leave out --processes")
        if isinstance(plan.split.x, Columns):
            (folder / "x.tensors").write_bytes(pack(plan.split.x.arrays))
        else:
            arrays["x"] = plan.split.x
        for name, array in arrays.items():
            np.save(folder / f"{name}.npy", array, allow_pickle=False)
        (folder / "options.json").write_text(json.dumps({"processes": self.processes, "target": asdict(self.target)}))

    def _start(self, folder: str, number: int) -> subprocess.Popen[str]:
        command = module_command("slotool.workloads.client.many_processes", folder, str(number))
        # A session of its own, so that Ctrl-C in the terminal reaches the parent alone, which passes it on.
        return subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
        )

    def _hear(self, clients: list[subprocess.Popen[str]], *, until: str, within_s: float) -> None:
        """Take the clients' words until each is ready, or has ended. Raises what a client met."""
        deadline_s = time.monotonic() + within_s
        with selectors.DefaultSelector() as selector:
            for number, client in enumerate(clients):
                assert client.stdout is not None
                selector.register(client.stdout, selectors.EVENT_READ, number)
            while selector.get_map():
                ready = selector.select(max(0.0, deadline_s - time.monotonic()))
                if not ready:
                    raise RunError(f"a client process has not {until} within {within_s:.0f} s")
                for key, _ in ready:
                    line = clients[key.data].stdout.readline()
                    if self._word(clients[key.data], key.data, line) == until:
                        selector.unregister(key.fileobj)

    def _word(self, client: subprocess.Popen[str], number: int, line: str) -> str:
        if not line:
            if client.wait() != 0:
                raise RunError(f"client process {number} ended with exit code {client.returncode}")
            return "ended"
        word = json.loads(line)
        if "error" in word:
            raise (InputError if word["input"] else RunError)(word["error"])
        if "finished" in word:
            self.progress(word["finished"] - self._counts.get(number, 0))
            self._counts[number] = word["finished"]
        return "ready" if "ready" in word else ""


def _let_end(clients: Sequence[subprocess.Popen[str]]) -> None:
    """Interrupt them, as who has sent requests writes its log then; those that take too long are killed later."""
    until_s = time.monotonic() + _INTERRUPTED_S
    for client in clients:
        client.send_signal(signal.SIGINT)
    for client in clients:
        with suppress(subprocess.TimeoutExpired):
            client.wait(timeout=max(0.0, until_s - time.monotonic()))


def _tell(client: subprocess.Popen[str], begin_s: float) -> None:
    assert client.stdin is not None
    try:
        client.stdin.write(f"{begin_s!r}\n")
        client.stdin.flush()
    except BrokenPipeError:
        raise RunError(f"a client process ended with exit code {client.wait()} before the start") from None


# Requests between two progress messages.
_SAY_EVERY = 50


def main() -> None:
    end_without_collecting()
    folder, number = Path(sys.argv[1]), int(sys.argv[2])
    options = json.loads((folder / "options.json").read_text())
    names = ("times_s", "examples", "priorities", "labels")
    times_s, examples, priorities, labels = (np.load(folder / f"{name}.npy", mmap_mode="r") for name in names)
    numbers = np.load(folder / "numbers.npy") if (folder / "numbers.npy").exists() else None
    tolerances = np.load(folder / "tolerances.npy") if (folder / "tolerances.npy").exists() else None
    plan = LoadPlan(times_s, examples, Split(_inputs(folder), labels), priorities, numbers, tolerances)
    plan = plan.part(number, options["processes"])
    target = options["target"]
    signature = target["signature"] and Signature.of_document(target["signature"])
    target = TargetServer(**{**target, "terms": Terms(**target["terms"]), "signature": signature})
    run = LocalRun(plan, target, _Progress(), _begin)
    try:
        run.drive()
        _say(finished=run.finished)
    except KeyboardInterrupt:
        pass
    except SlotoolError as error:
        _say(error=str(error), input=isinstance(error, InputError))
        return
    if run.finished:
        run.log().save(folder / f"log-{number}.parquet")


def _inputs(folder: Path) -> Any:
    """Return the examples, an array or ``Columns``, of which only what is sent takes memory."""
    if (folder / "x.npy").exists():
        return np.load(folder / "x.npy", mmap_mode="r")
    return Columns(unpack(np.memmap(folder / "x.tensors", np.uint8, "r").data))


def _begin() -> float:
    _say(ready=time.perf_counter())
    return float(sys.stdin.readline())


class _Progress:
    """Progress reports of how many requests have finished."""

    def __init__(self) -> None:
        self._finished = 0

    def __call__(self, more: int) -> None:
        self._finished += more
        if self._finished % _SAY_EVERY == 0:
            _say(finished=self._finished)


def _say(**word: object) -> None:
    print(json.dumps(word), flush=True)


if __name__ == "__main__":
    main()
