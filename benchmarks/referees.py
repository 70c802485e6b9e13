"""Neutral referees against ``slotool serve``, over HTTP and gRPC: MLPerf's load generator and Triton's load tester.

MLPerf (``mlcommons-loadgen``, Server scenario): Poisson arrivals, its own clock and its own p99 verdict; queries are
sent by unmodified tritonclients. Beside it, on the same server at the same rate, ``slotool loadtest``. Triton's load
tester is the binary of the ``tritonclient`` 2.50.0 wheel, in an environment of its own; it needs Debian's libb64-0d.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import threading
import venv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc
import tritonclient.http

from slotool.data import load_dataset
from slotool.errors import RunError

ROOT = Path(__file__).parents[1]
LOAD_TESTER = ("tritonclient==2.50.0", "nvidia-cuda-runtime-cu12")
RATE_PER_S, SECONDS, P99_S = 100, 15, 0.025
# Clients waiting for an answer at most; a query that finds none free waits, which counts as latency.
CLIENTS = 16
PROTOCOLS: dict[str, Any] = {"http": tritonclient.http, "grpc": tritonclient.grpc}
Report = dict[str, Any]


def main() -> None:
    reports: Report = {}
    with tempfile.TemporaryDirectory() as folder:
        slotool = [sys.executable, "-m", "slotool"]
        subprocess.run([*slotool, "train", "mlp", "--data", "digits", "--epochs", "5", "-o", f"{folder}/mlp"],
                       check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)  # fmt: skip
        with _server(Path(folder) / "mlp") as addresses:
            for protocol, address in addresses.items():
                reports[protocol] = {
                    "mlperf": _mlperf(protocol, address, Path(folder)),
                    "slotool loadtest": _loadtest(protocol, address, Path(folder)),
                    "triton": _triton(protocol, address),
                }
                _tell(protocol, reports[protocol])
    print(json.dumps({"benchmark": "referees", "rate_per_s": RATE_PER_S, "p99_bound_s": P99_S, **reports}))


def _tell(protocol: str, report: Report) -> None:
    mlperf, triton = report["mlperf"], report["triton"]
    asked = f"{RATE_PER_S}/s for {SECONDS} s, p99 bound {P99_S * 1e3:g} ms"
    print(f"{protocol}: MLPerf Server, {asked}: {mlperf['verdict']}, {_quantiles(mlperf)}")
    print(f"{protocol}: slotool loadtest, {RATE_PER_S}/s for {SECONDS} s: {_quantiles(report['slotool loadtest'])}")
    shown = triton.get("skipped") or f"one client in a closed loop: {triton['per_s']:.0f}/s, {_quantiles(triton)}"
    print(f"{protocol}: Triton's load tester, {shown}")


def _quantiles(report: Report) -> str:
    return f"p50 {report['p50_s'] * 1e3:.2f} ms, p99 {report['p99_s'] * 1e3:.2f} ms"


@contextlib.contextmanager
def _server(artifact: Path) -> Iterator[dict[str, str]]:
    """``host:port`` by protocol."""
    command = [sys.executable, "-m", "slotool", "serve", str(artifact), "--port", "0", "--grpc-port", "0", "--json"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert server.stdout is not None
    try:
        ready = json.loads(server.stdout.readline())
        yield {"http": ready["url"].removeprefix("http://"), "grpc": ready["grpc"]}
    finally:
        server.terminate()
        server.wait(timeout=30)


class _Clients:
    """Threads, each with a tritonclient of its own, that answer MLPerf's queries; every answer is checked."""

    def __init__(self, protocol: str, address: str):
        self._module, self._address = PROTOCOLS[protocol], address
        self._examples = load_dataset("digits").test.x
        self._asked: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=self._work, daemon=True) for _ in range(CLIENTS)]
        self.failures: list[str] = []
        for thread in self._threads:
            thread.start()

    def __len__(self) -> int:
        return len(self._examples)

    def issue(self, samples: Any) -> None:
        for sample in samples:
            self._asked.put((sample.id, sample.index))

    def close(self) -> None:
        for _ in self._threads:
            self._asked.put(None)
        for thread in self._threads:
            thread.join(timeout=30)

    def _work(self) -> None:
        import mlperf_loadgen as mlperf

        with self._module.InferenceServerClient(self._address) as client:
            while (asked := self._asked.get()) is not None:
                number, example = asked
                label = np.array([-1], dtype=np.int64)
                try:
                    label = self._infer(client, example)
                except Exception as error:
                    self.failures.append(f"{type(error).__name__}: {error}")
                mlperf.QuerySamplesComplete([mlperf.QuerySampleResponse(number, label.ctypes.data, label.nbytes)])

    def _infer(self, client: Any, example: int) -> np.ndarray:
        x = self._examples[example : example + 1]
        tensor = self._module.InferInput("input", list(x.shape), "FP32")
        tensor.set_data_from_numpy(x)
        return client.infer("mlp", [tensor], outputs=[self._module.InferRequestedOutput("label")]).as_numpy("label")


def _mlperf(protocol: str, address: str, folder: Path) -> Report:
    import mlperf_loadgen as mlperf

    logs = folder / f"mlperf-{protocol}"
    logs.mkdir()
    settings, output, log = mlperf.TestSettings(), mlperf.LogOutputSettings(), mlperf.LogSettings()
    settings.scenario, settings.mode = mlperf.TestScenario.Server, mlperf.TestMode.PerformanceOnly
    settings.server_target_qps, settings.server_target_latency_ns = RATE_PER_S, int(P99_S * 1e9)
    settings.server_target_latency_percentile = 0.99
    settings.min_duration_ms, settings.min_query_count = SECONDS * 1_000, RATE_PER_S * SECONDS
    output.outdir, log.log_output = str(logs), output
    clients = _Clients(protocol, address)
    system = mlperf.ConstructSUT(clients.issue, lambda: None)
    library = mlperf.ConstructQSL(len(clients), len(clients), lambda _: None, lambda _: None)
    try:
        mlperf.StartTestWithLogSettings(system, library, settings, log)
    finally:
        clients.close()
        mlperf.DestroyQSL(library)
        mlperf.DestroySUT(system)
    if clients.failures:
        raise RunError(f"{len(clients.failures)} of MLPerf's queries failed, e.g. {clients.failures[0]}")
    return _summary((logs / "mlperf_log_summary.txt").read_text())


def _summary(text: str) -> Report:
    def figure(name: str) -> float:
        match = re.search(rf"{re.escape(name)}\s*:\s*([\d.]+)", text)
        if match is None:
            raise RunError(f"MLPerf's summary has no {name}:\n{text[:1_000]}")
        return float(match[1])

    verdict = re.search(r"Result is : (\w+)", text)
    missed = re.findall(r"^\s*(\S.*?) satisfied\s*: NO", text, re.MULTILINE | re.IGNORECASE)
    return {
        "verdict": (verdict[1] if verdict else "none") + (f" ({', '.join(missed)})" if missed else ""),
        "p50_s": figure("50.00 percentile latency (ns)") * 1e-9,
        "p99_s": figure("99.00 percentile latency (ns)") * 1e-9,
        "completed_per_s": figure("Completed samples per second"),
    }


def _loadtest(protocol: str, address: str, folder: Path) -> Report:
    command = [sys.executable, "-m", "slotool", "loadtest", address, "--protocol", protocol, "--model", "mlp", "--data",
               "digits", "--rate", str(RATE_PER_S), "--duration", str(SECONDS), "--json", "-o",
               str(folder / f"{protocol}.parquet")]  # fmt: skip
    finished = subprocess.run(command, check=True, capture_output=True, text=True)
    document = json.loads(finished.stdout)
    return {name: document[name] for name in ("p50_s", "p99_s", "achieved_rate_per_s", "accuracy_of_answered")}


def _triton(protocol: str, address: str) -> Report:
    try:
        ctypes.CDLL("libb64.so.0d")
    except OSError:
        return {"skipped": "it needs Debian's libb64-0d"}
    home = ROOT / ".venv" / "peers" / "triton-load-tester"
    if not (home / "bin" / "perf_analyzer").exists():
        venv.create(home, with_pip=True)
        subprocess.run([home / "bin" / "pip", "--quiet", "install", "--no-deps", *LOAD_TESTER], check=True)
    (libraries,) = home.glob("lib/python*/site-packages/nvidia/cuda_runtime/lib")
    shape = ",".join(map(str, load_dataset("digits").input_shape))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.csv"
        command = [home / "bin" / "perf_analyzer", "-m", "mlp", "-u", address, "-i", protocol,
                   "--concurrency-range", "1", "--measurement-interval", "2000", "-s", "100",
                   "--shape", f"input:{shape}", "-f", out]  # fmt: skip
        finished = subprocess.run(command, env={**os.environ, "LD_LIBRARY_PATH": str(libraries)}, capture_output=True,
                                  text=True)  # fmt: skip
        if not out.exists():
            raise RunError(f"Triton's load tester failed: {(finished.stderr or finished.stdout)[-500:]}")
        names, values = (line.split(",") for line in out.read_text().splitlines()[:2])
    row = dict(zip(names, values, strict=True))
    return {"per_s": float(row["Inferences/Second"]), "p50_s": float(row["p50 latency"]) * 1e-6,
            "p99_s": float(row["p99 latency"]) * 1e-6}  # fmt: skip


if __name__ == "__main__":
    main()
