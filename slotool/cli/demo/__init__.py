"""``slotool demo``: a walkthrough on real data, each step a command that a user would type."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from slotool.cli.demo.steps import Document, Sizes, Step, load_options, load_s, walkthrough
from slotool.commands.display import Part, duration, table
from slotool.commands.inputs import FilePath
from slotool.commands.progress import Reporter, Reporting, reporter_of
from slotool.commands.result import Result
from slotool.commands.values import at_least
from slotool.timing.interference import QUIET_CORES, OtherWork, state

# The file of the user's own networks; it also marks a folder that a demo made.
OWN_NETWORKS = "own_networks.py"
# Other work on the machine, in cores, from which on the walkthrough ends with what that means.
SPOILING_CORES = 0.5
NEXT = (
    "slotool predict --onnx model.onnx                   # how long would my network take here?",
    "slotool family a=a.onnx b=b.onnx --data test.npz:y --outcomes outcomes.parquet -o mine",
    "slotool gen-rules outcomes.parquet -o rules.json    # what may be saved without more errors?",
)


@dataclass(frozen=True, repr=False, eq=False)
class Walkthrough(Result):
    """Figures of a demo's steps, the seconds that each took, and the cores that other processes kept busy meanwhile.

    Args:
        folder: Run folder.
        seconds: Time of the whole.
        steps_s: Seconds by title of a step.
        other_cores: Cores by title of a step.
        figures: Value by name of a figure, by title of a step.
    """

    folder: Path
    seconds: float
    steps_s: Mapping[str, float]
    other_cores: Mapping[str, float]
    figures: Mapping[str, Mapping[str, str]]

    schema = "demo"

    def findings(self) -> dict[str, Any]:
        return {
            "folder": str(self.folder),
            "seconds": self.seconds,
            "steps_s": self.steps_s,
            "cores_busy_with_others": self.other_cores,
            "timing": self._timing,
            "figures": {
                f"{title}: {name}": value for title, named in self.figures.items() for name, value in named.items()
            },
            "report": str(self._report),
            "next": list(NEXT),
        }

    def shown(self) -> list[Part]:
        rows = [
            [title, name, value, self._timing[title]]
            for title, named in self.figures.items()
            for name, value in named.items()
        ]
        other_cores = sum(self.other_cores[title] * self.steps_s[title] for title in self.steps_s) / self.seconds
        return [
            table("Walkthrough", ["step", "figure", "value", "timing"], _each_step_once(rows)),
            f"{len(self.steps_s)} steps in {duration(self.seconds)}; the plots are in {self._report}",
            *_spoiled(other_cores),
            "Next, with files of your own:",
            *(f"  {line}" for line in NEXT),
        ]

    @property
    def _timing(self) -> dict[str, str]:
        return {title: state(cores < QUIET_CORES) for title, cores in self.other_cores.items()}

    @property
    def _report(self) -> Path:
        return self.folder / "report.html"


def demo(
    *,
    out: FilePath = "demo-run",
    quick: bool = False,
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> Walkthrough:
    """Run every stage on real data, training to report.

    A network of 16,455 labels that answers by a few of them, a network of one's own predicted, three ONNX files
    certified, planned and served. Every step is a real command, printed as it runs, and can be repeated by hand in the
    run folder.

    Example: slotool demo --out demo-run

    Args:
        out: File or folder to write.
        quick: Train less, try less and measure less.
        seed: Same seed, same result.
        force: Replace ``out`` if it exists.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.commands.progress``.
    """
    from slotool.data.registry import shipped_dataset
    from slotool.extras import require

    require("onnx", "onnxruntime", "matplotlib", needed_by="the demo")
    reporter = reporter_of(progress)
    folder = _fresh_folder(Path(out), force)
    sizes = Sizes(epochs=2, examples=500, calibration=5, own_epochs=2) if quick else Sizes()
    steps = walkthrough(str(shipped_dataset("tate-16k")), sizes, seed)
    figures: dict[str, Mapping[str, str]] = {}
    steps_s: dict[str, float] = {}
    other_cores: dict[str, float] = {}
    whole = OtherWork()
    with reporter.progress("walkthrough", total=len(steps)) as bar:
        for number, step in enumerate(steps, 1):
            bar.say(f"{number}/{len(steps)} {step.title}")
            other = OtherWork()
            document = _taken(step, folder, reporter, f"{number:>2}/{len(steps)} {step.title}")
            steps_s[step.title], other_cores[step.title] = other.read()
            figures[step.title] = step.figures(document, folder)
            bar.advance()
    seconds, _ = whole.read()
    return Walkthrough(folder, seconds, steps_s, other_cores, figures)


def _spoiled(cores: float) -> list[str]:
    """What other work means for the figures above, where there was much of it."""
    if cores < SPOILING_CORES:
        return []
    return [
        f"other processes kept {cores:.1f} of {os.cpu_count()} cores busy: times are longer, predictions further off "
        "and more deadlines missed than on this machine alone; accuracies stand"
    ]


def _each_step_once(rows: list[list[str]]) -> list[list[str]]:
    """The step and its timing stand in the first row of a step only."""
    before = [None, *(row[0] for row in rows)]
    return [row if row[0] != last else ["", *row[1:3], ""] for row, last in zip(rows, before, strict=False)]


def _fresh_folder(out: Path, force: bool) -> Path:
    """An empty run folder with the user's own networks in it. Only a folder that a demo made is ever replaced."""
    import shutil

    from slotool.errors import AlreadyExistsError

    marker = out / OWN_NETWORKS
    if out.exists() and not (force and marker.is_file()):
        raise AlreadyExistsError(f"{out} exists already" if marker.is_file() else f"{out} is not a demo's folder")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    shutil.copyfile(Path(__file__).with_name(OWN_NETWORKS), marker)
    return out


def _taken(step: Step, folder: Path, reporter: Reporter, title: str) -> Document:
    """The JSON document of a step. Raises ``RunError`` with its last words when it fails."""
    from concurrent.futures import ThreadPoolExecutor

    from slotool.cli.demo.commands import run_command

    reporter.note(title)
    step.prepare(folder)
    with ExitStack() as serving, ThreadPoolExecutor() as pool:
        parts = step.command.split(" & ")
        *beside, command = (part if part.startswith("python ") else f"slotool {part}" for part in parts)
        if " LOAD " in command:
            command = command.replace("LOAD", load_options(folder))
        if step.served:
            command = command.replace("URL", serving.enter_context(_server(step, folder, reporter)))
        for typed in (*(f"{other} &" for other in beside), command):
            reporter.note(f"      $ {typed}")
        others = [pool.submit(run_command, other, folder) for other in beside]
        document = run_command(command, folder)
        for other in others:
            other.result()
        return document


@contextmanager
def _server(step: Step, folder: Path, reporter: Reporter) -> Iterator[str]:
    """What the load test goes to; one of its workers is killed while it runs."""
    import threading

    import psutil

    from slotool.planning.server_process import RunningServer

    reporter.note(f"      $ slotool serve {step.served} --port 0 &")
    with RunningServer([*step.served.split(), "--port", "0"], folder) as server:
        reporter.note(f"      watch it at {server.url}")

        def kill() -> None:
            worker = psutil.Process(server.process_id).children()[-1]
            reporter.note(f"      $ kill -KILL {worker.pid}    # a worker")
            worker.kill()

        timer = threading.Timer((step.worker_killed_at or 0.0) * load_s(folder), kill)
        if step.worker_killed_at is not None:
            timer.start()
        try:
            yield server.url
        finally:
            timer.cancel()
