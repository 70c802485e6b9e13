"""``slotool demo``: a walkthrough on real data, each step a command that a user would type."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

from slotool.cli.demo.steps import Document, Sizes, Step, load_options, load_s, walkthrough
from slotool.cli.options import Force, Json, Out, Seed

# The file of the user's own networks; it also marks a folder that a demo made.
OWN_NETWORKS = "own_networks.py"
# Other work on the machine, in cores, from which on the walkthrough ends with what that means.
SPOILING_CORES = 0.5
NEXT = (
    "slotool predict --onnx model.onnx                   # how long would my network take here?",
    "slotool family a=a.onnx b=b.onnx --data test.npz:y --outcomes outcomes.parquet -o mine",
    "slotool gen-rules outcomes.parquet -o rules.json    # what may be saved without more errors?",
)


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    out: Out = Path("demo-run"),
    quick: Annotated[bool, typer.Option("--quick", help="Train less, try less and measure less.")] = False,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Run every stage on real data, training to report.

    A network of 16,455 labels that answers by a few of them, a network of one's own predicted, three ONNX files
    certified, planned and served. Every step is a real command, printed as it runs, and can be repeated by hand in the
    run folder.

    Example: slotool demo --out demo-run
    """
    from slotool.cli.output import Output, duration, table
    from slotool.data.registry import shipped_dataset
    from slotool.extras import require
    from slotool.timing.interference import QUIET_CORES, OtherWork, state

    require("onnx", "onnxruntime", "matplotlib", needed_by="the demo")
    output = Output(as_json=json)
    folder = _fresh_folder(out, force)
    sizes = Sizes(epochs=2, examples=500, calibration=5, own_epochs=2) if quick else Sizes()
    steps = walkthrough(str(shipped_dataset("tate-16k")), sizes, seed)
    rows: list[list[str]] = []
    taken_s: dict[str, float] = {}
    others: dict[str, float] = {}
    whole = OtherWork()
    with output.progress("walkthrough", total=len(steps)) as progress:
        for number, step in enumerate(steps, 1):
            progress.say(f"{number}/{len(steps)} {step.title}")
            other = OtherWork()
            document = _taken(step, folder, output, f"{number:>2}/{len(steps)} {step.title}")
            taken_s[step.title], others[step.title] = other.read()
            timing = state(others[step.title] < QUIET_CORES)
            rows += [[step.title, name, value, timing] for name, value in step.figures(document, folder).items()]
            progress.advance()
    seconds, _ = whole.read()
    document = {
        "folder": str(out),
        "seconds": seconds,
        "steps_s": taken_s,
        "cores_busy_with_others": others,
        "timing": {title: state(cores < QUIET_CORES) for title, cores in others.items()},
        "figures": {f"{title}: {name}": value for title, name, value, _ in rows},
        "report": str(out / "report.html"),
        "next": list(NEXT),
    }
    closing = f"{len(steps)} steps in {duration(seconds)}; the plots are in {out / 'report.html'}"
    shown = table("Walkthrough", ["step", "figure", "value", "timing"], _each_step_once(rows))
    spoiled = _spoiled(sum(others[title] * taken_s[title] for title in taken_s) / seconds)
    output.result(
        "demo", document, shown, closing, *spoiled, "Next, with files of your own:", *(f"  {line}" for line in NEXT)
    )


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


def _taken(step: Step, folder: Path, output: Any, title: str) -> Document:
    """The JSON document of a step. Raises ``RunError`` with its last words when it fails."""
    from concurrent.futures import ThreadPoolExecutor

    from slotool.cli.demo.commands import run_command

    output.note(title)
    step.prepare(folder)
    with ExitStack() as serving, ThreadPoolExecutor() as pool:
        parts = step.command.split(" & ")
        *beside, command = (part if part.startswith("python ") else f"slotool {part}" for part in parts)
        if " LOAD " in command:
            command = command.replace("LOAD", load_options(folder))
        if step.served:
            command = command.replace("URL", serving.enter_context(_server(step, folder, output)))
        for typed in (*(f"{other} &" for other in beside), command):
            output.note(f"      $ {typed}")
        others = [pool.submit(run_command, other, folder) for other in beside]
        document = run_command(command, folder)
        for other in others:
            other.result()
        return document


@contextmanager
def _server(step: Step, folder: Path, output: Any) -> Iterator[str]:
    """What the load test goes to; one of its workers is killed while it runs."""
    import threading

    import psutil

    from slotool.planning.server_process import RunningServer

    output.note(f"      $ slotool serve {step.served} --port 0 &")
    with RunningServer([*step.served.split(), "--port", "0"], folder) as server:
        output.note(f"      watch it at {server.url}")

        def kill() -> None:
            worker = psutil.Process(server.process_id).children()[-1]
            output.note(f"      $ kill -KILL {worker.pid}    # a worker")
            worker.kill()

        timer = threading.Timer((step.worker_killed_at or 0.0) * load_s(folder), kill)
        if step.worker_killed_at is not None:
            timer.start()
        try:
            yield server.url
        finally:
            timer.cancel()
