"""``slotool demo``: a walkthrough on real data, each step a command that a user would type."""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from slotool.commands.display import Column, Part, records_table
from slotool.commands.result import Result, result
from slotool.commands.values import at_least
from slotool.errors import RunError
from slotool.printable import duration
from slotool.progress import Reporter, Reporting, reporter_of
from slotool.sources import FilePath
from slotool.timing.interference import QUIET_CORES, OtherWork, state

Document = Mapping[str, Any]
# The file of the user's own networks; it also marks a folder that a demo made.
OWN_NETWORKS = "own_networks.py"
# Other work on the machine, in cores, from which on the walkthrough ends with an explanation of it.
SPOILING_CORES = 0.5
NEXT = (
    "slotool predict --onnx model.onnx                   # how long would my network take here?",
    "slotool family a=a.onnx b=b.onnx --data test.npz:y --outcomes outcomes.parquet -o mine",
    "slotool gen-rules outcomes.parquet -o rules.json    # what may be saved without more errors?",
)
# Peak load by what one worker serves of the most accurate model, and what a client in Python sends on time.
PEAK_OF_A_WORKER, PEAK_PER_S = 1.1, 400.0
LOAD_S = 6
# With fewer requests no plan could show an attainment of 0.99, on a machine of any speed.
MIN_ARRIVALS = 500
SERVED = "--config service.toml --engine local --replicas 2"
# Beside other work on the machine no plan may keep its promise, and there is no service file.
SERVED_UNPLANNED = (
    "family --latency latency.parquet --outcomes outcomes.parquet --policy slackfit --engine local --replicas 2"
)
# Share of the load after which a worker is killed.
KILLED_AT = 0.75
# Exit codes of a verdict, given with its document: neither ends the whole.
_ANSWERED = (0, 1, 4)


@result
class Walkthrough(Result):
    """Figures of a demo's steps, the seconds that each took, and the cores that other processes kept busy meanwhile.

    Args:
        folder: Run folder.
        seconds: Time of the whole.
        steps_s: Seconds by title of a step.
        cores_busy_with_others: Cores by title of a step.
        figures: Value by title of a step and name of a figure.
    """

    folder: Path
    seconds: float
    steps_s: Mapping[str, float]
    cores_busy_with_others: Mapping[str, float]
    figures: Mapping[str, str]

    schema = "demo"

    def findings(self) -> dict[str, Any]:
        return {**super().findings(), "timing": self._timing, "report": self._report, "next": NEXT}

    def shown(self) -> list[Part]:
        rows, before = [], ""
        for name, value in self.figures.items():
            title, _, figure = name.partition(": ")
            # The step and its timing stand in the first row of a step only.
            step, timing = (title, self._timing[title]) if title != before else ("", "")
            rows.append({"step": step, "figure": figure, "value": value, "timing": timing})
            before = title
        busy = sum(cores * self.steps_s[title] for title, cores in self.cores_busy_with_others.items()) / self.seconds
        spoiled = (
            f"other processes kept {busy:.1f} of {os.cpu_count()} cores busy: times are longer, predictions further "
            "off and more deadlines missed than on this machine alone; accuracies stand"
        )
        return [
            records_table("Walkthrough", rows, map(Column, ("step", "figure", "value", "timing"))),
            f"{len(self.steps_s)} steps in {duration(self.seconds)}; the plots are in {self._report}",
            *([spoiled] if busy >= SPOILING_CORES else []),
            "Next, with files of your own:",
            *(f"  {line}" for line in NEXT),
        ]

    @property
    def _timing(self) -> dict[str, str]:
        return {title: state(cores < QUIET_CORES) for title, cores in self.cores_busy_with_others.items()}

    @property
    def _report(self) -> Path:
        return self.folder / "report.html"


@dataclass(frozen=True)
class Step:
    """Command of slotool or, beginning with ``python``, of the user.

    Commands before ``&``, none of them timed, run at the same time as the last one. ``LOAD`` among the arguments
    becomes rate and duration of a load, and ``URL`` the address of a server that loses a worker during it. ``figures``
    picks from the JSON document and the run folder what the closing table shows.
    """

    title: str
    command: str
    figures: Callable[[Document, Path], Mapping[str, str]] = lambda document, folder: {}


def demo(
    *,
    out: FilePath = "demo-run",
    quick: bool = False,
    seed: Annotated[int, at_least(0)] = 0,
    force: bool = False,
    progress: Reporting = "auto",
) -> Walkthrough:
    """Run every stage on real data, training to report.

    It builds a network that computes only some of its 16,455 labels, predicts a network from code, and certifies, plans
    and serves three ONNX files. Every step is a real command, printed as it runs, and can be repeated by hand in the
    run folder.

    Example: slotool demo --out demo-run

    Args:
        out: File or folder to write.
        quick: Train less, try less and measure less.
        seed: Same seed, same result.
        force: Replace ``out`` if it exists.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.progress``.
    """
    from slotool.extras import require

    require("onnx", "onnxruntime", "matplotlib", needed_by="the demo")
    reporter = reporter_of(progress)
    folder = _fresh_folder(Path(out), force)
    steps = _steps(quick, seed)
    figures: dict[str, str] = {}
    steps_s: dict[str, float] = {}
    other_cores: dict[str, float] = {}
    whole = OtherWork()
    with reporter.progress("walkthrough", total=len(steps)) as bar:
        for number, step in enumerate(steps, 1):
            bar.say(f"{number}/{len(steps)} {step.title}")
            reporter.note(f"{number:>2}/{len(steps)} {step.title}")
            other = OtherWork()
            document = _result_of(step.command, folder, reporter)
            steps_s[step.title], other_cores[step.title] = other.read()
            figures |= {f"{step.title}: {name}": value for name, value in step.figures(document, folder).items()}
            bar.advance()
    return Walkthrough(folder, whole.read()[0], steps_s, other_cores, figures)


def _steps(quick: bool, seed: int) -> list[Step]:
    from slotool.data.registry import shipped_dataset

    tate = shipped_dataset("tate-16k")
    epochs, examples, own_epochs = (2, 500, 2) if quick else (3, 1000, 4)
    measure = f"--threads 1 --seed {seed}"
    versions = " ".join(f"{name}={name}.onnx" for name in ("small", "medium", "large"))
    tables = "latency.parquet --outcomes outcomes.parquet"
    wanted = "own_networks:wanted --input-shape 3,96,96"
    return [
        Step("look at the machine", "doctor", _machine),
        # An SLO-NN of 16,455 labels computes the few output nodes that an input needs.
        Step(
            "train a network of 16,455 labels, and three models of your own",
            f"python {OWN_NETWORKS} --epochs {own_epochs} & "
            f"train xmc -o tate --data {tate} --epochs {epochs} --threads 1 --seed {seed}",
        ),
        Step(
            "learn which labels an input needs",
            f"build-tables tate -o slo-nn --data {tate} --seed {seed}",
            _chosen_nodes,
        ),
        Step(
            "answer its test examples by those",
            f"evaluate slo-nn -o slo-nn-outcomes.parquet --data {tate} --limit {examples}",
        ),
        # A design of one's own: its operators are timed alone, and the whole is then measured to compare.
        Step("capture a network of your own", f"capture --torch {wanted} -o wanted.jsonl"),
        Step("predict it by its operators", "predict --graph wanted.jsonl --threads 1", _predicted),
        Step("measure it, to compare", f"profile solo wanted.jsonl {measure} -o wanted.parquet", _measured),
        # Three ONNX files: certified, planned, and served while the load doubles and a worker dies.
        Step(
            "make them versions of one service",
            f"family {versions} --data held-out.npz -o family --outcomes outcomes.parquet --latency latency.parquet "
            "--batch-size 1,2,4,8 --repeats 1",
            _versions,
        ),
        Step(
            "certify routing rules",
            "gen-rules outcomes.parquet -o rules.json --tolerances 0:0.05:0.01 --tolerance-kind absolute "
            "--objective cost --confidence 0.95",
            _ruled,
        ),
        Step("draw a load that doubles", f"generate arrivals --trace load.csv LOAD -o load.parquet --seed {seed}"),
        Step(
            "plan workers for 50 ms",
            # One policy: each is compiled when it is first used.
            f"plan {tables} --arrivals load.parquet --deadline-ms 50 --attainment 0.99 --min-accuracy 0.9 "
            "--policies slackfit --artifact family -o service.toml",
            lambda document, folder: {"plan": document["explanation"].split(";")[0]},
        ),
        Step(
            "serve it, and kill a worker",
            "loadtest URL --data held-out.npz --arrivals load.parquet --deadline-ms 50 -o requests.parquet",
            _loaded,
        ),
        Step(
            "draw the report",
            "report . -o report.html",
            lambda document, folder: {"plots": f"{len(document['plots'])}"},
        ),
    ]


def _fresh_folder(out: Path, force: bool) -> Path:
    """Make a run folder with what a user would write by hand. Only a folder that a demo made is ever replaced."""
    import shutil

    from slotool.errors import AlreadyExistsError

    marker = out / OWN_NETWORKS
    if out.exists() and not (force and marker.is_file()):
        raise AlreadyExistsError(f"{out} exists already" if marker.is_file() else f"{out} is not a demo's folder")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    shutil.copyfile(Path(__file__).with_name(OWN_NETWORKS), marker)
    # Relative rates of the load: it doubles after half the time.
    (out / "load.csv").write_text("rate_per_s\n1\n1\n2\n2\n")
    return out


def _result_of(text: str, folder: Path, reporter: Reporter) -> Document:
    """Return the JSON document of a step. Raises ``RunError`` with its last words when it fails."""
    from concurrent.futures import ThreadPoolExecutor

    *beside, command = (part if part.startswith("python ") else f"slotool {part}" for part in text.split(" & "))
    with ExitStack() as serving, ThreadPoolExecutor() as pool:
        if " LOAD " in command:
            command = command.replace("LOAD", _load_options(folder))
        if " URL " in command:
            command = command.replace("URL", serving.enter_context(_server(folder, reporter)))
        for typed in (*(f"{other} &" for other in beside), command):
            reporter.note(f"      $ {typed}")
        others = [pool.submit(run_command, other, folder) for other in beside]
        document = run_command(command, folder)
        for other in others:
            other.result()
        return document


def run_command(command: str, folder: Path) -> Document:
    """Return the JSON document of ``slotool ARGUMENTS``, run in ``folder``.

    ``command`` may also begin with ``python``: then there is no document, and ``{}`` is returned.

    Raises ``RunError`` with the command's last words when it fails.
    """
    program, *arguments = shlex.split(command)
    ours = program == "slotool"
    line = [sys.executable, "-m", "slotool", *arguments, "--json"] if ours else [sys.executable, *arguments]
    finished = subprocess.run(line, cwd=folder, capture_output=True, text=True)
    if finished.returncode not in (_ANSWERED if ours else (0,)) or (ours and not finished.stdout):
        lines = [line for line in finished.stderr.strip().splitlines() if line and not line.startswith("Try ")]
        words = " ".join(lines[-2:]) or "no message"
        raise RunError(f"the step '{command}' ended with exit code {finished.returncode}: {words}")
    return dict(json.loads(finished.stdout)) if ours else {}


def _load_options(folder: Path) -> str:
    """Return options of a load whose second half exceeds what one worker serves by the most accurate model alone.

    It lasts ``LOAD_S``, or as long as the arrivals take that a plan needs.
    """
    from slotool.tables import LatencyTable

    statistics = LatencyTable.load(folder / "latency.parquet").where(status="ok", batch_size=1).statistics()
    rate_per_s = round(min(PEAK_OF_A_WORKER / float(statistics["median_s"].max()), PEAK_PER_S) * 0.75, 1)
    return f"--rate {rate_per_s:g} --duration {max(LOAD_S, math.ceil(MIN_ARRIVALS / rate_per_s))}s"


@contextmanager
def _server(folder: Path, reporter: Reporter) -> Iterator[str]:
    """Serve what the load test goes to; one of its workers is killed while it runs."""
    import threading

    import psutil

    from slotool.planning.server_process import RunningServer
    from slotool.workloads import ArrivalTable

    served = f"{SERVED if (folder / 'service.toml').is_file() else SERVED_UNPLANNED} --port 0"
    reporter.note(f"      $ slotool serve {served} &")
    load_s = float(ArrivalTable.load(folder / "load.parquet").times_s[-1])
    with RunningServer(served.split(), folder) as server:
        reporter.note(f"      watch it at {server.url}")

        def kill() -> None:
            worker = psutil.Process(server.process_id).children()[-1]
            reporter.note(f"      $ kill -KILL {worker.pid}    # a worker")
            worker.kill()

        timer = threading.Timer(KILLED_AT * load_s, kill)
        timer.start()
        try:
            yield server.url
        finally:
            timer.cancel()


def _machine(document: Document, folder: Path) -> Mapping[str, str]:
    machine = document["machine"]
    return {"machine": f"{machine['cpu']}, {machine['cores_given']} cores"}


def _chosen_nodes(document: Document, folder: Path) -> Mapping[str, str]:
    """Return the point that keeps the loss promised by default, beside PyTorch and as many most popular labels."""
    points = {point["point"]: point for point in document["points"]}
    chosen = points[document["promise"]["point"]]
    every, torch_us = points["full"], document["torch_us"]
    return {
        "all labels, PyTorch": f"accuracy {every['accuracy']:.4f}, {duration(torch_us * 1e-6)}",
        f"{chosen['nodes']} labels chosen by the input": f"accuracy {chosen['accuracy']:.4f}, "
        f"{duration(chosen['latency_us'] * 1e-6)}, {torch_us / chosen['latency_us']:.0f} × sooner",
        f"the {chosen['nodes']} most popular labels": f"accuracy {chosen['static_accuracy']:.4f}",
    }


def _predicted(document: Document, folder: Path) -> Mapping[str, str]:
    prediction = document["predictions"][0]
    latency = duration(prediction["latency_s"])
    if prediction["low_s"] is None:
        return {"predicted": f"{latency} (no interval: {prediction['no_interval']})"}
    return {"predicted": f"{latency} (90 %: {duration(prediction['low_s'])} to {duration(prediction['high_s'])})"}


def _measured(document: Document, folder: Path) -> Mapping[str, str]:
    from slotool.tables import LatencyTable

    statistics = LatencyTable.load(folder / "wanted.parquet").where(status="ok").statistics()
    return {"measured": duration(float(statistics["median_s"].iloc[0]))}


def _versions(document: Document, folder: Path) -> Mapping[str, str]:
    return {
        point["version"]: f"accuracy {point['accuracy']:.4f}, {duration(point['median_latency_s'])}"
        for point in document["versions"]
    }


def _ruled(document: Document, folder: Path) -> Mapping[str, str]:
    """Return the strictest tier that saves something, and the widest."""
    tiers = sorted(document["rules"]["rules"], key=lambda rule: rule["tolerance"])
    most = document["rules"]["config"]["best_cost"]
    saving = [rule for rule in tiers if rule["certified"] and rule["cost"] < most]
    return {
        f"≤ {100 * rule['tolerance']:g} points more errors": f"{1 - rule['cost'] / most:.0%} cheaper"
        for rule in (saving[:1] + saving[-1:])
    }


def _loaded(document: Document, folder: Path) -> Mapping[str, str]:
    return {
        # Of half a thousand requests no 99th percentile is stated.
        "p50, p90": f"{duration(document['p50_s'])}, {duration(document['p90_s'] or float('nan'))}",
        "met the deadline": f"{document['deadline_meet_rate']:.2%} of {document['requests']}",
        "answered correctly and in time": f"{document['effective_accuracy']:.4f}",
    }
