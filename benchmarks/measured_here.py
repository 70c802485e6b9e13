"""How far sums of operators that were measured here are off, for networks that nobody here chose.

``--group torch``: networks of timm, torchvision and transformers, each as its own module in plain loops in five
processes of its own, of which the median counts, as glibc returns freed memory in some processes only; ``small``: MLPs
and CNNs of the same kind; ``keras`` and ``onnx``: graphs of those networks in fresh workers. The network as a whole, by
a worker and by its operators is timed in turns, as the machine's speed drifts; then comes the prediction, compared with
plain loops right before and after it. ``noise`` is what a single process is off their median. Each call measures
``--count`` networks more into ``measured-here.jsonl``, so that an idle machine is needed for minutes only; without
``--group`` it prints the table of what is there, as ``python -m benchmarks measured_here`` does. Beside the sums stand
the shipped predictor as it is, and three coefficients fitted to ten labels that were drawn, ten times.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np

from slotool.graphs import OperatorGraph

Row = dict[str, Any]
Loops = Sequence[Callable[[str], Any]]
SECONDS, PROCESSES, FEW, DRAWS = 0.4, 5, 10, 10
KEPT = Path("measured-here.jsonl")
NETWORKS = {
    "timm": """
        resnet18 resnet50 resnext50_32x4d regnety_004 regnetx_008 efficientnet_b0 efficientnetv2_rw_t
        mobilenetv3_small_100 mobilenetv3_large_100 mobilenetv2_100 mnasnet_100 ghostnetv3_050 ghostnet_100 fbnetv3_b
        mobilevit_xxs mobileone_s0 convnext_atto convnext_femto vit_tiny_patch16_224 vit_small_patch32_224
        deit_tiny_patch16_224 swin_tiny_patch4_window7_224 mixer_s32_224 gmlp_ti16_224 poolformer_s12 edgenext_xx_small
        levit_128s pit_ti_224 xcit_nano_12_p16_224 dla34 darknet17 hardcorenas_a lcnet_050 tinynet_e rexnet_100
        semnasnet_075 spnasnet_100 repvgg_a0 vgg11 densenet121""",
    "torchvision": "alexnet squeezenet1_1 shufflenet_v2_x0_5 googlenet",
    "transformers": "bert distilbert gpt2",
}


def small(number: int) -> tuple[Any, tuple[int, ...]]:
    """Return an MLP or CNN drawn by ``number``, and the shape of its input."""
    from torch import nn

    rng = np.random.default_rng(number)
    if number % 2:
        widths = [int(2 ** rng.integers(4, 12)) for _ in range(rng.integers(2, 7))]
        pairs = zip(widths, [*widths[1:], 10], strict=True)
        return nn.Sequential(*(part for a, b in pairs for part in (nn.Linear(a, b), nn.ReLU()))), (widths[0],)
    side, width, layers = int(2 ** rng.integers(4, 7)), int(2 ** rng.integers(3, 7)), [nn.Conv2d(3, 8, 3, padding=1)]
    channels = 8
    for _ in range(rng.integers(2, 6)):
        layers += [nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10)), (3, side, side)


def names(group: str) -> list[str]:
    """Return the networks of a group, as PACKAGE:NAME."""
    if group == "small":
        return [f"small:{number}" for number in range(20)]
    every = [f"{package}:{name}" for package, own in NETWORKS.items() for name in own.split()]
    return every if group == "torch" else every[::2][:20]


def built(name: str) -> tuple[Any, Any, Any]:
    """Return module, shape of one example and element type."""
    package, _, own = name.partition(":")
    if package == "small":
        return (*small(int(own)), None)
    with suppress(ImportError):
        import torchvision_cpu_ops  # noqa: F401  # operators that a torchvision of another torch lacks
    from benchmarks.capture_zoo import built as of_package

    return of_package(package, own)


def plain(name: str, threads: int) -> None:
    """Print JSON for each line that comes: the graph of a module for "graph", else the median of calls in a loop."""
    import torch

    from slotool.graphs.capture import capture_torch
    from slotool.process import cores_by_preference
    from slotool.timing.interference import Interference

    torch.set_num_threads(1)  # a fork, below, would wait for ever for other threads
    module, shape, dtype = built(name)
    module.eval()
    os.sched_setaffinity(0, cores_by_preference()[:threads])

    def example(size: Any) -> Any:
        return torch.ones((1, *size), dtype=torch.int64) if dtype == "int64" else torch.randn(1, *size)

    named = {name: example(size) for name, size in shape.items()} if isinstance(shape, dict) else {}
    sizes = [] if named else shape if isinstance(shape[0], tuple | list) else [shape]
    inputs = [example(size) for size in sizes]
    with Interference(cores_by_preference()) as lost, torch.inference_mode():
        for line in sys.stdin:
            if line != "graph\n":
                torch.set_num_threads(threads)
                print(json.dumps(timed(lambda: module(*inputs, **named), lost)), flush=True)
            # In a process of its own: it would leave memory behind.
            elif child := os.fork():
                os.waitpid(child, 0)
            else:
                print(json.dumps(capture_torch(module, shape, dtype).document()), flush=True)
                os._exit(0)


def timed(call: Callable[[], object], lost: Callable[[], float]) -> Row:
    """Return the median of blocks without what other processes took, and the share of blocks that these disturbed."""
    for _ in range(3):
        call()
    began = time.perf_counter()
    call()
    calls, samples, disturbed = max(1, int(1e-3 / (time.perf_counter() - began))), [], 0
    began = time.perf_counter()
    lost()
    while len(samples) < 10 or (time.perf_counter() - began < SECONDS and len(samples) < 500):
        at = time.perf_counter()
        for _ in range(calls):
            call()
        seconds, waited = time.perf_counter() - at, lost()
        disturbed += waited > 0.01 * seconds
        samples.append((waited > 0.01 * seconds, max(seconds - waited, 0.1 * seconds) / calls))
    clean = [seconds for was, seconds in samples if not was]
    taken = clean if len(clean) >= 5 else [seconds for _, seconds in samples]
    return {"seconds": statistics.median(taken), "disturbed": disturbed / len(samples)}


@contextmanager
def started(name: str, threads: int) -> Iterator[Callable[[str], Any]]:
    """Start ``plain`` in a process of its own; called with a line, what this returns gives the next answer."""
    call = f"from benchmarks.measured_here import plain; plain({name!r}, {threads})"
    with subprocess.Popen([sys.executable, "-c", call], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin
        assert process.stdout

        def answer(line: str) -> Any:
            process.stdin.write(line.encode())
            process.stdin.flush()
            return json.loads(process.stdout.readline())

        try:
            yield answer
        finally:
            process.kill()


def in_turns(graph: OperatorGraph, backend: str, threads: int, loops: Loops, turns: int) -> Row:
    """Time the network in plain loops (torch only), in a worker and by its operators, in turns."""
    from slotool.profiling.operators import NetworkTimer

    plain_s, whole_s, sums_s, disturbed = [], [], [], []
    with NetworkTimer.opened(backend, "cpu", threads) as timer:
        for _ in range(turns):
            latency = timer.network(graph)
            if latency is None:
                raise RuntimeError(f"{backend} does not run it")
            alone = [loop("time\n") for loop in loops] or [{"seconds": latency.seconds, "disturbed": latency.disturbed}]
            plain_s.append([each["seconds"] for each in alone])
            disturbed += [each["disturbed"] for each in alone]
            whole_s.append(latency.seconds)
            sums_s.append(sum(timer.operators(graph, 1)["calls_s"]))
    # Turns that stand for processes where each turn is a process of its own.
    processes_s = np.median(plain_s, axis=0) if loops else np.ravel(plain_s)
    middle, turns_s = float(np.median(processes_s)), np.median(plain_s, axis=1)
    return {
        "measured_s": middle,
        "last_s": plain_s[-1],
        "noise": float(np.mean(np.abs(processes_s / middle - 1))),
        "disturbed": float(np.mean(disturbed)),
        "whole": float(np.median(whole_s / turns_s)),
        "sum": float(np.median(sums_s / turns_s)),
    }


def row(name: str, group: str, threads: int, turns: int) -> Row:
    """Measure one network and predict it."""
    import slotool

    backend = group if group in ("keras", "onnx") else "torch"
    with ExitStack() as stack:
        loops = [stack.enter_context(started(name, threads)) for _ in range(PROCESSES if backend == "torch" else 1)]
        graph = OperatorGraph.from_document(loops[0]("graph\n"))
        loops = loops if backend == "torch" else []
        turn = in_turns(graph, backend, threads, loops, turns)
        began = time.perf_counter()
        predicted = slotool.predict(graph, backend=backend, threads=threads, progress=None)
        took = time.perf_counter() - began
        if loops:
            # Right before and right after: within the minute of the turns the speed of the machine changes.
            after_s = [loop("time\n")["seconds"] for loop in loops]
            turn["measured_s"] = float(np.median(np.mean([turn["last_s"], after_s], axis=0)))
    low, high = predicted.interval_s[0].tolist()
    shipped = slotool.predict(
        graph, predictor="models/predictor" + ("" if backend == "keras" else "-torch"), progress=None
    )
    return {
        "name": name, "group": group, "threads": threads, **turn, "sum_s": float(predicted.latency_s[0]), "low_s": low,
        "high_s": high, "took_s": took, "shipped_s": float(shipped.latency_s[0]), "flops": graph.flops,
        "operators": len(graph.operators), "outputs": sum(operator.moved for operator in graph.operators),
    }  # fmt: skip


def three_coefficients(rows: list[Row]) -> np.ndarray:
    """Return errors of FLOPs, operators and values moved, fitted to ten drawn rows, on the others, ten times."""
    from scipy.optimize import nnls

    costs = np.array([[each["flops"], each["operators"], each["outputs"]] for each in rows], float)
    measured = np.array([each["measured_s"] for each in rows])
    rng, errors = np.random.default_rng(0), []
    for _ in range(DRAWS):
        few = rng.choice(len(rows), min(FEW, len(rows) - 1), replace=False)
        scales = costs.mean(axis=0)
        coefficients = nnls(costs[few] / scales / measured[few, None], np.ones(len(few)))[0] / scales
        errors += np.delete(costs @ coefficients / measured - 1, few).tolist()
    return np.array(errors)


def shown(rows: list[Row]) -> None:
    """Print a line per group and number of threads, and one JSON line."""
    from scipy.stats import spearmanr

    figures = {}
    for group, threads in sorted({(each["group"], each["threads"]) for each in rows}):
        own = [each for each in rows if (each["group"], each["threads"]) == (group, threads)]
        measured = np.array([each["measured_s"] for each in own])
        errors = np.array([each["sum_s"] for each in own]) / measured - 1
        bounded = [each for each in own if np.isfinite(each["high_s"])]
        figures[f"{group}-{threads}"] = line = {
            "networks": len(own),
            "noise": None if group in ("keras", "onnx") else float(np.mean([each["noise"] for each in own])),
            "disturbed": float(np.mean([each["disturbed"] for each in own])),
            **{f"{way}_in_turns": float(np.mean([abs(each[way] - 1) for each in own])) for way in ("whole", "sum")},
            "mean": float(np.abs(errors).mean()),
            "median": float(np.median(np.abs(errors))),
            "rank": float(spearmanr(measured, measured * (1 + errors)).statistic),
            "bounded": len(bounded),
            "covered": float(np.mean([each["low_s"] <= each["measured_s"] <= each["high_s"] for each in bounded])),
            "width": float(np.median([each["high_s"] / each["low_s"] for each in bounded])),
            "shipped": float(np.abs(np.array([each["shipped_s"] for each in own]) / measured - 1).mean()),
            "three_coefficients": float(np.abs(three_coefficients(own)).mean()) if len(own) > FEW else None,
        }
        numbers = ", ".join(f"{name} {value:.3g}" for name, value in line.items() if value is not None)
        print(f"{group}, {threads} threads: {numbers}")
    print(json.dumps(figures))


def kept() -> list[Row]:
    """Return the rows measured so far. Raises ``FileNotFoundError`` if there are none."""
    return [json.loads(line) for line in KEPT.read_text().splitlines()]


def main() -> None:
    """Print the table of what was measured."""
    shown(kept())


def measure() -> None:
    """Measure some networks more, and print the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.measured_here", description=__doc__)
    parser.add_argument("--group", choices=("torch", "small", "keras", "onnx"))
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--turns", type=int, default=3, help="of network, plain loops and operators")
    given = parser.parse_args()
    rows = kept() if KEPT.exists() else []
    there = {(each["group"], each["threads"], each["name"]) for each in rows}
    left = (
        [name for name in names(given.group) if (given.group, given.threads, name) not in there] if given.group else []
    )
    for name in left[: given.count]:
        try:
            times = row(name, given.group, given.threads, given.turns)
        except Exception as error:  # one network is no reason to stop
            print(f"{name}: {type(error).__name__}: {str(error)[-300:]}", file=sys.stderr)
            continue
        rows.append(times)
        with KEPT.open("a") as file:
            file.write(json.dumps(times) + "\n")
        print(
            f"{name}: {1e3 * times['measured_s']:.3f} ms, {times['sum_s'] / times['measured_s'] - 1:+.1%}",
            flush=True,
        )
    shown(rows)


if __name__ == "__main__":
    measure()
