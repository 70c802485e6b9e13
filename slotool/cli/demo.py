"""``slotool demo``: a walkthrough on real data, each step a subcommand that a user would type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from slotool.cli.options import DataName, Force, Json, Out, Seed

Document = Mapping[str, Any]
Figures = Mapping[str, str]

RATE_PER_S = 150
LOAD_SECONDS = 8
DEADLINE_MS = 20
READY_WITHIN_S = 60.0

# A network of the user's own, whose latency is predicted without it ever running.
OWN_NETWORK = '''"""Any function without arguments that returns a torch.nn.Module can be predicted."""

from torch import nn


def build() -> nn.Module:
    sizes = [784, 1024, 512, 256]
    hidden = [layer for a, b in zip(sizes, sizes[1:]) for layer in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(*hidden, nn.Linear(256, 10))
'''


@dataclass(frozen=True)
class Step:
    """One subcommand. ``URL`` among its arguments becomes the address of a server that runs while it does.

    ``figures`` picks from the step's JSON document what the closing table shows.
    """

    title: str
    command: str
    figures: Callable[[Document], Figures] = lambda document: {}

    @property
    def served(self) -> bool:
        return " URL " in self.command


def register(app: typer.Typer) -> None:
    app.command()(demo)


def demo(
    out: Out = Path("demo-run"),
    data: DataName = "auto",
    networks: Annotated[int, typer.Option("--networks", min=240, help="Number of random networks to profile.")] = 360,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Run every stage on real data, from training to the report.

    Every step is a real subcommand, printed as it runs, and can be repeated by hand in the run folder.

    Example: slotool demo --out demo-run
    """
    import time

    from slotool.cli.output import Output, duration, table
    from slotool.data import default_dataset

    output = Output(as_json=json)
    folder = _fresh_folder(out, force)
    steps = walkthrough(default_dataset() if data == "auto" else data, networks, seed)
    rows: list[list[str]] = []
    taken_s: dict[str, float] = {}
    started = time.perf_counter()
    with output.progress("walkthrough", total=len(steps)) as progress, ExitStack() as serving:
        url = None
        for number, step in enumerate(steps, 1):
            if step.served and url is None:
                url = serving.enter_context(_server(folder, output))
            elif url is not None and not step.served:
                serving.close()
                url = None
            command = step.command.replace("URL", url or "")
            progress.say(f"{number}/{len(steps)} {step.title}")
            output.note(f"{number:>2}/{len(steps)} {step.title}")
            output.note(f"      $ slotool {command}")
            began = time.perf_counter()
            document = _run(folder, command)
            taken_s[step.title] = time.perf_counter() - began
            rows += [[step.title, name, value] for name, value in step.figures(document).items()]
            progress.advance()
    seconds = time.perf_counter() - started
    document = {
        "folder": str(out),
        "seconds": seconds,
        "steps_s": taken_s,
        "figures": {f"{title}: {name}": value for title, name, value in rows},
        "report": str(out / "report.html"),
    }
    closing = f"{len(steps)} steps in {duration(seconds)}; the plots are in {out / 'report.html'}"
    output.result("demo", document, table("Walkthrough", ["step", "figure", "value"], rows), closing)


def walkthrough(data: str, networks: int, seed: int) -> Sequence[Step]:
    """The steps in order, for a data set and a number of random networks to profile."""
    mlps, cnns = networks * 5 // 6, networks - networks * 5 // 6
    load = f"--data {data} --rate {RATE_PER_S} --duration {LOAD_SECONDS} --deadline-ms {DEADLINE_MS}"
    return (
        Step("look at the machine", "doctor", _machine),
        Step("train a 112-112 MLP", f"train mlp -o mlp --data {data} --seed {seed}", _trained),
        Step("train a family", f"train family -o family --data {data} --seed {seed}", _trained),
        Step("draw random MLPs", f"generate mlp -o mlps.parquet --count {mlps} --seed {seed}"),
        Step("draw random CNNs", f"generate cnn -o cnns.parquet --count {cnns} --seed {seed}"),
        Step(
            "profile the random networks",
            "profile solo mlps.parquet cnns.parquet -o latency.parquet --threads 1 --max-seconds-per-item 0.1",
            _profiled,
        ),
        Step(
            "train latency predictors",
            "train-predictor latency.parquet --graphs mlps.parquet --graphs cnns.parquet -o predictor "
            f"--depths 1,2,4,8 --seed {seed}",
            _scored,
        ),
        Step(
            "predict a network never run",
            "predict predictor --torch own_network:build --input-shape 784",
            _predicted,
        ),
        Step("build Node Activators", f"build-tables mlp -o slo-nn --data {data} --seed {seed}"),
        Step("evaluate them over k", "evaluate slo-nn -o slo-nn-outcomes.parquet --limit 2000", _over_k),
        Step("evaluate the family", "evaluate family -o family-outcomes.parquet --limit 2000"),
        Step(
            "collect evidence for rules",
            "evaluate family -o family-evidence.parquet --split validation --repeats 1",
        ),
        Step(
            "certify routing rules",
            "gen-rules family-evidence.parquet -o rules.json --tolerances 0:0.1:0.01 --tolerance-kind absolute",
            _ruled,
        ),
        Step("profile the models", "profile solo mlp family slo-nn -o models-latency.parquet --threads 1"),
        Step(
            "serve a tolerance tier",
            f"loadtest URL --model family -o family-requests.parquet {load} --tolerance 0.1 --endpoint compute",
            _loaded,
        ),
        Step(
            "serve the SLO-NN",
            f"loadtest URL --model slo-nn -o slo-nn-requests.parquet {load} --min-accuracy 0.85",
            _loaded,
        ),
        Step("draw the report", "report . -o report.html", lambda document: {"plots": f"{len(document['plots'])}"}),
    )


def _machine(document: Document) -> Figures:
    return {"machine": f"{document['machine']['cpu']}, {document['machine']['cores_given']} cores"}


def _trained(document: Document) -> Figures:
    return {
        f"{version['version']}, test accuracy": f"{version['test_accuracy']:.4f}" for version in document["versions"]
    }


def _profiled(document: Document) -> Figures:
    return {"networks": f"{document['ok_rows']} in {document['seconds']:.0f} s"}


def _scored(document: Document) -> Figures:
    return {
        f"{name}, held out": f"MAE {scores['mae_s'] * 1e3:.2f} ms of {scores['label_mean_s'] * 1e3:.2f} ms, "
        f"MAPE {scores['mape']:.0%}"
        for name, scores in document["predictors"].items()
    }


def _predicted(document: Document) -> Figures:
    from slotool.cli.output import duration

    found = document["predictions"][0]
    name, latency = "784-1024-512-256-10", duration(found["latency_s"])
    if found["low_s"] is None:
        return {name: f"{latency} (no interval: {found['no_interval']})"}
    return {name: f"{latency} (90 %: {duration(found['low_s'])} to {duration(found['high_s'])})"}


def _over_k(document: Document) -> Figures:
    from slotool.cli.output import duration

    return {
        point["version"]: f"accuracy {point['accuracy']:.4f}, {duration(point['median_latency_s'])}"
        for point in document["points"][-3:]
    }


def _ruled(document: Document) -> Figures:
    """The widest tier of each objective, and what it saves against the strictest."""
    figures = {}
    rules = document["rules"]["rules"]
    for objective, column in (("response-time", "response_time_s"), ("cost", "cost")):
        tiers = sorted((rule for rule in rules if rule["objective"] == objective), key=lambda rule: rule["tolerance"])
        strictest, widest = tiers[0], tiers[-1]
        saved = 1.0 - widest[column] / strictest[column]
        figures[f"{objective} at {widest['tolerance']:g} tolerance"] = f"{saved:.0%} saved by {widest['point']}"
    return figures


def _loaded(document: Document) -> Figures:
    from slotool.cli.output import duration

    return {
        "p50, p99": f"{duration(document['p50_s'])}, {duration(document['p99_s'] or float('nan'))}",
        "met the deadline": f"{document['deadline_meet_rate']:.2%} of {document['requests']}",
        "effective accuracy": f"{document['effective_accuracy']:.4f}",
    }


def _fresh_folder(out: Path, force: bool) -> Path:
    """An empty run folder with the user's own network in it. Only a folder that a demo made is ever replaced."""
    import shutil

    from slotool.errors import AlreadyExistsError

    marker = out / "own_network.py"
    if out.exists() and not (force and marker.is_file()):
        raise AlreadyExistsError(f"{out} exists already" if marker.is_file() else f"{out} is not a demo's folder")
    shutil.rmtree(out, ignore_errors=True)
    out.mkdir(parents=True)
    marker.write_text(OWN_NETWORK)
    return out


def _run(folder: Path, command: str) -> Document:
    """The JSON document a subcommand prints. Raises ``RunError`` with its last words when it fails."""
    import json as json_module
    import shlex
    import subprocess
    import sys

    from slotool.errors import RunError

    finished = subprocess.run(
        [sys.executable, "-m", "slotool", *shlex.split(command), "--json"], cwd=folder, capture_output=True, text=True
    )
    # Exit code 1 is a verdict, given with its document: a missing package that doctor reports does not end the demo.
    if finished.returncode not in (0, 1) or not finished.stdout:
        words = (finished.stderr.strip().splitlines() or ["no message"])[-1]
        raise RunError(f"the step 'slotool {command}' ended with exit code {finished.returncode}: {words}")
    document: Mapping[str, Any] = json_module.loads(finished.stdout)
    return document


@contextmanager
def _server(folder: Path, output: Any) -> Iterator[str]:
    """What the load tests of the demo go to."""
    from slotool.planning.server_process import server_process

    arguments = "family slo-nn --rules rules.json --latency models-latency.parquet"
    output.note(f"      $ slotool serve {arguments} --port 0 &")
    with server_process(arguments.split(), folder) as url:
        yield url
