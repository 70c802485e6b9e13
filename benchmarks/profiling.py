"""Labels one can trust, and how fast they come: the same random networks profiled twice, and a plain Keras loop.

The floor of a label's error is its repetition: here two campaigns of rounds in turn, each in an order and a worker
process of its own, beside a naive 20-run loop treated alike. Labels per hour stand beside the loop that a Keras user
would write: build, compile, call ``predict`` 20 times. The profiler's own cost is what a campaign spends outside the
calls it reports.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import numpy as np

from slotool.graphs import OperatorGraph
from slotool.graphs.store import read_graphs
from slotool.profiling.measurers import measurer_for
from slotool.profiling.plan import Item, Settings, solo_items
from slotool.profiling.rows import Row, by_key
from slotool.profiling.subjects import graph_subject
from slotool.timing.timer import StoppingRule

DATASETS = Path(__file__).parents[1] / "datasets"
NETWORKS, KERAS_NETWORKS, RUNS, ROUNDS, SEED = 100, 20, 20, 3, 11
# Beyond its 20 runs the peer does not care for precision; as little more makes the rates comparable.
QUICK_S = 0.05


def main() -> None:
    threads = len(os.sched_getaffinity(0))
    graphs = _drawn(NETWORKS)
    settings = Settings(threads=threads, rounds=ROUNDS)
    ours, seconds, timed_s = _campaigns(graphs, settings)
    naive = _naive_twice(graphs, threads)
    stable = np.array([all(pair) for pair in zip(*(table["stable"] for table in ours), strict=True)])
    latency = [table["median_s"] for table in ours]
    figures = {
        "threads": threads,
        "slotool, stable rows": _differences(latency[0][stable], latency[1][stable]),
        "slotool, all rows": _differences(*latency),
        "naive loop, the same stable rows": _differences(naive[0][stable], naive[1][stable]),
        "naive loop, all rows": _differences(*naive),
        "stable share": float(stable.mean()),
        "own cost": 1.0 - timed_s / seconds,
    }
    for name, figure in figures.items():
        print(f"{name:34} {_shown(figure)}")
    figures |= _labels_per_hour(graphs[:KERAS_NETWORKS], threads)
    print(json.dumps({"benchmark": "profiling", **figures}))


def _drawn(count: int) -> list[OperatorGraph]:
    """Half MLPs, half CNNs, of those shipped."""
    chance = random.Random(SEED)
    graphs: list[OperatorGraph] = []
    for kind in ("mlps", "cnns"):
        graphs += chance.sample(list(read_graphs(DATASETS / f"random-networks-{kind}.parquet")), count // 2)
    chance.shuffle(graphs)
    return graphs


def _campaigns(graphs: list[OperatorGraph], settings: Settings) -> tuple[list[dict[str, np.ndarray]], float, float]:
    """Two campaigns, a round of the one and a round of the other in turn; seconds of both, and of their timed calls."""
    items = solo_items(map(graph_subject, graphs), settings)
    rows: list[list[Row]] = [[], []]
    with ExitStack() as opened:
        measurers = [opened.enter_context(measurer_for(replace(settings, seed=seed))) for seed in (1, 2)]
        for measurer in measurers:
            measurer.rows(items[0])  # start the workers before the clock
        started = time.perf_counter()
        for first, second in zip(_visits(items, 1), _visits(items, 2), strict=True):
            rows[0] += measurers[0].rows(first)
            rows[1] += measurers[1].rows(second)
        seconds = time.perf_counter() - started
    timed_s = sum(map(_timed_seconds, rows[0] + rows[1]))
    tables = []
    for of_campaign in rows:
        measurements = by_key(of_campaign, settings.rule)
        in_order = [measurements[item.keys[0]] for item in items]
        medians = np.array([np.median(row["samples_s"]) for row in in_order])
        tables.append({"median_s": medians, "stable": np.array([row["stable"] for row in in_order])})
    return tables, seconds, timed_s


def _timed_seconds(row: Row) -> float:
    """First call and samples, those measured again included."""
    samples = sum(row["samples_s"]) * row["calls_per_sample"]
    return row["first_call_s"] + samples * (1 + row["discarded"] / len(row["samples_s"]))


def _visits(items: list[Item], seed: int) -> Iterator[Item]:
    chance = random.Random(seed)
    for _ in range(ROUNDS):
        yield from chance.sample(items, len(items))


def _naive_twice(graphs: list[OperatorGraph], threads: int) -> list[np.ndarray]:
    """The loop everybody writes first, in this process, over all networks twice, each time in another order."""
    import torch

    from slotool.graphs.torch_module import GraphModule

    torch.set_num_threads(threads)
    latencies_s = [np.empty(len(graphs)) for _ in range(2)]
    orders = [random.Random(seed).sample(range(len(graphs)), len(graphs)) for seed in (1, 2)]
    for pair in zip(*orders, strict=True):
        for table, at in zip(latencies_s, pair, strict=True):
            module = GraphModule(graphs[at]).eval()
            x = torch.randn(1, *graphs[at].input_shape)
            with torch.inference_mode():
                table[at] = _median_of_runs(lambda module=module, x=x: module(x))
    return latencies_s


def _median_of_runs(call: Callable[[], object]) -> float:
    call()
    seconds = []
    for _ in range(RUNS):
        started = time.perf_counter()
        call()
        seconds.append(time.perf_counter() - started)
    return float(np.median(seconds))


def _differences(first: np.ndarray, second: np.ndarray) -> dict[str, float] | None:
    """Relative differences between two measurements of the same networks; None of no network at all: on a noisy machine
    none may be stable in both campaigns."""
    if not len(first):
        return None
    relative = np.abs(first - second) / ((first + second) / 2)
    return {"median": float(np.median(relative)), "p90": float(np.quantile(relative, 0.9))}


def _labels_per_hour(graphs: list[OperatorGraph], threads: int) -> dict[str, object]:
    """slotool, told to be quick, and the Keras loop, each twice over the same networks."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "graphs.jsonl"
        file.write_text("".join(f"{graph.text}\n" for graph in graphs))
        peers = {
            "slotool": [_slotool_seconds(graphs, seed, threads) for seed in (1, 2)],
            "plain Keras loop": [_keras_seconds(file, threads) for _ in range(2)],
        }
    figures: dict[str, object] = {}
    for name, ((first_s, first), (second_s, second)) in peers.items():
        per_hour, noise = 7200 * len(graphs) / (first_s + second_s), _differences(first, second)
        figures[name] = {"labels_per_hour": per_hour, **noise}
        print(f"{name:34} {per_hour:,.0f} labels per hour; repeats within {_shown(noise)}")
    ratio = figures["slotool"]["labels_per_hour"] / figures["plain Keras loop"]["labels_per_hour"]
    print(f"{'ratio':34} {ratio:.1f} x")
    return {**figures, "labels_ratio": ratio}


def _slotool_seconds(graphs: list[OperatorGraph], seed: int, threads: int) -> tuple[float, np.ndarray]:
    settings = Settings(threads=threads, seed=seed, rule=StoppingRule(runs=RUNS, max_seconds=QUICK_S))
    items = solo_items(map(graph_subject, graphs), settings)
    with measurer_for(settings) as measurer:
        measurer.rows(items[0])
        started = time.perf_counter()
        medians = [float(np.median(measurer.rows(item)[0]["samples_s"])) for item in items]
        return time.perf_counter() - started, np.array(medians)


def _keras_seconds(graphs: Path, threads: int) -> tuple[float, np.ndarray]:
    """In a process of its own, whose start is not counted."""
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", "TF_NUM_INTRAOP_THREADS": str(threads)}
    command = [sys.executable, "-m", "benchmarks.keras_loop", str(graphs), str(RUNS)]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True)
    answer = json.loads(done.stdout.splitlines()[-1])
    return answer["seconds"], np.array(answer["medians_s"])


def _shown(figure: object) -> str:
    if figure is None:
        return "none is stable in both campaigns"
    if isinstance(figure, dict):
        return ", ".join(f"{name} {value:.1%}" for name, value in figure.items())
    return f"{figure:.1%}" if isinstance(figure, float) else str(figure)


if __name__ == "__main__":
    main()
