"""A client process of a load test: ``python -m slotool.workloads.client.client_process FOLDER NUMBER``.

FOLDER holds the plan of all processes (``ManyProcesses`` writes it). It says ``ready`` on stdout when warm, reads on
stdin the reading of ``time.perf_counter`` at which all begin (one clock for all processes of a machine), says how many
requests have finished from time to time, and leaves its log in FOLDER. On SIGINT it leaves what has finished.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from slotool.data.columns import Columns
from slotool.data.dataset import Split
from slotool.errors import InputError, SlotoolError
from slotool.models.packing import unpack
from slotool.models.signature import Signature
from slotool.process import end_without_collecting
from slotool.workloads.client.channels import TargetServer
from slotool.workloads.client.endpoint import Terms
from slotool.workloads.client.open_loop import LoadPlan, LocalRun

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
    """The examples, an array or ``Columns``, of which only what is sent takes memory."""
    if (folder / "x.npy").exists():
        return np.load(folder / "x.npy", mmap_mode="r")
    return Columns(unpack(np.memmap(folder / "x.tensors", np.uint8, "r").data))


def _begin() -> float:
    _say(ready=time.perf_counter())
    return float(sys.stdin.readline())


class _Progress:
    """Says from time to time how many requests have finished."""

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
