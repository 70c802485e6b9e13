"""A real server under the paper's bursty traces and Azure's day, beside the simulator on the same tables and arrivals.

``python -m benchmarks traces`` serves a Fashion-MNIST supernet whose largest point takes milliseconds, so that the
front end does not decide on two cores that client, server and worker share; it is trained here in about two minutes and
profiled, or read with its tables from ``$SLOTOOL_NETWORKS`` (traces-supernet, traces-latency.parquet and
traces-outcomes.parquet, which are left there). Rates are shares of what its largest point can serve by the profile,
the deadline 1.2 times its largest call (superserve: 36 ms). Azure's counts are read from ``$SLOTOOL_DATA_DIR/traces``.
The peers are the fixed points: by trace the most accurate one that the simulator has keep 0.99, and the one above it,
both served too. ``SLOTOOL_BENCH_SECONDS``: how long each trace lasts (60).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from slotool.data import Dataset, load_dataset
from slotool.elastic import load_model
from slotool.elastic.supernets.networks import resnet
from slotool.elastic.supernets.plan import SubnetNorm
from slotool.elastic.supernets.search import evenly
from slotool.elastic.supernets.space import wrap
from slotool.elastic.supernets.supernet import Supernet, measure
from slotool.elastic.supernets.training import Training, train
from slotool.planning.server_process import server_process
from slotool.process import bound_to, cores_by_preference
from slotool.scheduling.batching import make_policy, read_profile
from slotool.scheduling.batching.profile import Profile
from slotool.simulation import Scenario, ServiceTimes, simulate
from slotool.simulation.scenario import IN_TIME
from slotool.tables import LatencyTable, OutcomeTable
from slotool.workloads import Bursty, RecordedInstants, read_trace
from slotool.workloads.client.channels import TargetServer
from slotool.workloads.client.endpoint import Terms
from slotool.workloads.client.open_loop import LoadPlan, LocalRun
from slotool.workloads.requests import RequestLog

SHARES, CV2 = (0.7, 1.0, 1.3), 8
POLICIES = ("value-iteration", "slackfit")
SIZES = "1,2,4,8,16"
TRAINED_ON, OFFERED, EVALUATED = 12_000, 10, 3_000
ASKED, HELD = 0.999, 0.99


@dataclass(frozen=True)
class Setting:
    """A network with its tables, and what each of its queries has in time.

    ``test_accuracy``: float64 [points], of the profile's points on the examples that are sent. Policies know the
    validation examples' only.
    """

    network: Path
    latency: Path
    outcomes: Path
    profile: Profile
    deadline_s: float
    test_accuracy: np.ndarray

    @property
    def unit(self) -> float:
        """Queries a second that the largest point can serve."""
        return float(self.profile.grid.best_rate_per_s[-1])


def main() -> None:
    data = load_dataset("fashion-mnist")
    with tempfile.TemporaryDirectory() as folder:
        setting = prepared(data, Path(folder))
        grid = setting.profile.grid
        print(f"{len(grid.points)} points, accuracy {grid.accuracy[0]:.4f} to {grid.accuracy[-1]:.4f}, "
              f"{grid.fastest_us / 1e3:.2f} to {grid.latency_us.max() / 1e3:.2f} ms a call; the largest serves "
              f"{setting.unit:.0f}/s, the fastest {grid.best_rate_per_s.max():.0f}/s; deadline "
              f"{setting.deadline_s * 1e3:.1f} ms", flush=True)  # fmt: skip
        traces = _traces(setting.unit)
        predicted = {name: _simulated(setting, times_s) for name, times_s in traces.items()}
        served = _served(setting, data, traces, predicted)
    rows = {name: _compared(name, served[name], predicted[name]) for name in traces}
    print(json.dumps({"benchmark": "traces", "capacity_per_s": setting.unit, "deadline_s": setting.deadline_s,
                      "traces": rows}))  # fmt: skip


def prepared(data: Dataset, folder: Path) -> Setting:
    """The network with its tables, from ``$SLOTOOL_NETWORKS`` or made in ``folder``."""
    home = Path(os.environ.get("SLOTOOL_NETWORKS", folder))
    network, latency, outcomes = (home / f"traces-{name}" for name in ("supernet", "latency.parquet",
                                  "outcomes.parquet"))  # fmt: skip
    if not network.exists():
        _train(data, network)
    if not latency.exists():
        _slotool("profile", "points", network, "-o", latency, "--co-runners", "0", "--batch-size", SIZES,
                 "--threads", 1, "--runs", 100, "--max-seconds-per-item", 1)  # fmt: skip
    if not outcomes.exists():
        _slotool("evaluate", network, "-o", outcomes, "--data", "fashion-mnist", "--split", "validation", "--limit",
                 EVALUATED, "--repeats", 1)  # fmt: skip
    profile = read_profile(LatencyTable.load(latency), OutcomeTable.load(outcomes))
    for remark in profile.grid.remarks:
        print(remark)
    model, x, y = load_model(str(network)), data.test.x[:EVALUATED], data.test.y[:EVALUATED]
    on_test = [float((model.forward(x, point).argmax(axis=1) == y).mean()) for point in profile.grid.points]
    deadline_s = 1.2e-6 * float(profile.grid.latency_us.max())
    return Setting(network, latency, outcomes, profile, deadline_s, np.array(on_test))


def _train(data: Dataset, out: Path) -> None:
    """A small part of the data once: enough for points that differ in accuracy."""
    torch.set_num_threads(1)
    some = np.random.default_rng(0).permutation(len(data.train))[:TRAINED_ON]
    graph = resnet(data.input_shape, data.classes, channels=(128, 256), blocks=(3, 4), ratio=0.5, stem=32,
                   stem_kernel=5, stem_stride=2)  # fmt: skip
    space = wrap(graph, drop=3, width=(0.25, 0.5, 1.0))
    module = train(space, replace(data, train=data.train.take(some)), Training(epochs=1, batch_size=64))
    subnets, norm = evenly(space, OFFERED), SubnetNorm()
    measure(space, module, norm, subnets, data.train.x[some])
    Supernet(out.name, space, module, norm, subnets).save(out, config={"data": data.name}, seed=0)


def _slotool(*arguments: object) -> None:
    command = [sys.executable, "-m", "slotool", *map(str, arguments)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def _traces(unit: float) -> dict[str, np.ndarray]:
    """Instants in seconds by name; a quarter of a bursty trace is its steady base."""
    lasts_s = float(os.environ.get("SLOTOOL_BENCH_SECONDS", "60"))
    drawn = {f"bursty {s:g}": Bursty(0.25 * s * unit, 0.75 * s * unit, CV2).times(lasts_s, seed=1) for s in SHARES}
    counts = Path(os.environ.get("SLOTOOL_DATA_DIR", "")) / "traces" / "azure_functions_2019_1000.csv"
    if not counts.exists():
        print(f"no Azure trace: {counts} is not there")
        return drawn
    return drawn | {f"Azure {s:g}": read_trace(counts, s * unit).times(lasts_s, seed=1) for s in SHARES}


def _simulated(setting: Setting, times_s: np.ndarray) -> dict[str, dict[str, float]]:
    """Attainment and accuracy of the policies and of every fixed point, calls as long as samples of the profile."""
    profile = setting.profile
    scenario = Scenario.of(times_s, setting.deadline_s)
    times = ServiceTimes.sampled(profile.grid, profile.samples_us)
    figures = {}
    for name in [*POLICIES, *(f"fixed@{point.key}" for point in profile.grid.points)]:
        outcome = simulate(make_policy(name, profile.grid, setting.deadline_s * 1e6), scenario, times)
        in_time = outcome.row[outcome.status == IN_TIME]
        figures[name] = {"attainment": outcome.summary()["attainment"],
                       "accuracy": float(setting.test_accuracy[in_time].mean())}  # fmt: skip
    return figures


def _rivals(predicted: dict[str, dict[str, float]]) -> list[str]:
    """Of the fixed points, least accurate first, the last that should keep the SLO, and the next above it."""
    fixed = [name for name in predicted if name.startswith("fixed@")]
    holding = [at for at, name in enumerate(fixed) if predicted[name]["attainment"] >= HELD]
    last = holding[-1] if holding else 0
    return fixed[last : last + 2]


def _served(
    setting: Setting, data: Dataset, traces: dict[str, np.ndarray], predicted: dict[str, dict[str, dict[str, float]]]
) -> dict[str, dict[str, dict[str, float]]]:
    """The same of a real server, one per policy, that meets all traces one after the other."""
    asked = {trace: [*POLICIES, *_rivals(predicted[trace])] for trace in traces}
    figures: dict[str, dict[str, dict[str, float]]] = {trace: {} for trace in traces}
    accuracy = {point.key: a for point, a in zip(setting.profile.grid.points, setting.test_accuracy, strict=True)}
    for policy in dict.fromkeys(name for names in asked.values() for name in names):
        with server_process(arguments_of(setting, policy)) as url, bound_to(cores_by_preference()[1:] or [0]):
            for trace, times_s in traces.items():
                if policy in asked[trace]:
                    log = _load(url, setting, data, times_s)
                    figures[trace][policy] = _figures(log, accuracy)
                    print(f"{trace:12} {policy:50} {json.dumps(figures[trace][policy])}", file=sys.stderr, flush=True)
    return figures


def arguments_of(setting: Setting, policy: str) -> list[str]:
    tables = ["--latency", str(setting.latency), "--outcomes", str(setting.outcomes)]
    choosing = ["--policy", policy, "--deadline-ms", str(setting.deadline_s * 1e3), "--engine", "local"]
    return [str(setting.network), *tables, *choosing]


def _load(url: str, setting: Setting, data: Dataset, times_s: np.ndarray) -> RequestLog:
    arrivals = RecordedInstants(times_s, from_start=True)
    plan = LoadPlan.draw(arrivals, arrivals.duration_s, data.test, seed=1)
    run = LocalRun(plan, TargetServer(url, "infer", setting.profile.subject, Terms(setting.deadline_s), 10.0))
    run.drive()
    return run.log()


def _figures(log: RequestLog, accuracy: dict[str, float]) -> dict[str, float]:
    """``of_points``: the test accuracy of the points that answered in time, without the luck of the examples sent."""
    chosen = log.rows["point"][log.in_time].map(accuracy)
    return {
        "attainment": float(log.in_time.mean()),
        "of_sending": float(log.in_time_from_sending.mean()),
        "accuracy": float(log.correct[log.in_time].mean()),
        "of_points": float(chosen.mean()),
        "requests": len(log),
        "send_delay_p99_ms": 1e3 * float(np.quantile(log.send_delay_s, 0.99)),
    }


def _compared(trace: str, served: dict[str, dict[str, float]], predicted: dict[str, dict[str, float]]) -> Any:
    """Print the rows of a trace; returns them."""
    holding = [entry["accuracy"] for name, entry in served.items()
               if name.startswith("fixed@") and entry["attainment"] >= HELD]  # fmt: skip
    best = max(holding, default=float("nan"))
    print(f"\n{trace} × the largest point's capacity, {served[POLICIES[0]]['requests']} requests")
    for name, entry in served.items():
        said = predicted[name]
        off = [100 * (entry["attainment"] - said["attainment"]), 100 * (entry["of_points"] - said["accuracy"])]
        beside = "" if name.startswith("fixed@") else f"; {100 * (entry['accuracy'] - best):+.2f} beside the best fixed"
        print(f"  {name:44} attainment {entry['attainment']:.4f} (simulated {said['attainment']:.4f}, {off[0]:+.2f} "
              f"points), accuracy {entry['of_points']:.4f} ({said['accuracy']:.4f}, {off[1]:+.2f}), by labels "
              f"{entry['accuracy']:.4f}{beside}")  # fmt: skip
    return {name: {"served": served[name], "simulated": predicted[name]} for name in served}


if __name__ == "__main__":
    main()
