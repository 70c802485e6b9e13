"""A server at two, three and five times the rate it can serve: goodput beside the best there is, memory, and why each
request was rejected.

``python -m benchmarks overload`` keeps the server with its worker on one core and the client on another, so that
neither takes from the other. The baseline is the same server at the rate where its goodput is best. Beside what the
client saw (in time by its clock, from the instant at which a request should have been sent) stand the rate it really
sent at, how late it sent, and what the server's own clock says was in time.
``SLOTOOL_BENCH_SECONDS``: how long each overload lasts (20; ten minutes are 600).
"""

from __future__ import annotations

import json
import os
import re
import tempfile
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.open_loop import OpenLoop, by_cause
from benchmarks.serving import DEADLINE_S, arguments, profiled, server
from slotool.data import load_dataset
from slotool.planning.server_process import server_process
from slotool.process import bound_to, cores_by_preference
from slotool.workloads.client.endpoint import ASSUMED, ServedSignature, Terms
from slotool.workloads.client.http_channel import InferEndpoint

FIRST_RATE_PER_S, RISE, EACH_S = 500.0, 1.4, 4.0
# The best has been passed when goodput was below this share of it, or of the rate, at two rates in a row.
PASSED = 0.95
# Times the best, and the share of it that is to be kept there.
OVERLOADS = ((2, 0.9), (3, 0.9), (5, 0.75))
PARTS = 4
EXAMPLES = 64


def main() -> None:
    cores = cores_by_preference()
    if len(cores) < 2:
        print("left out: client and server need a core each")
        return
    with tempfile.TemporaryDirectory() as folder, server_process(arguments(profiled(Path(folder)), 1)) as url:
        _bind(server(), cores[0])
        with bound_to([cores[1]]):
            client = OpenLoop(url, _requests(url), DEADLINE_S)
            client.run(FIRST_RATE_PER_S, 3.0)
            best = _best(client)
            seconds = float(os.environ.get("SLOTOOL_BENCH_SECONDS", "20"))
            figures = {f"{times}x": _overload(client, url, best, times, asked, seconds) for times, asked in OVERLOADS}
    print(json.dumps({"benchmark": "overload", "best_goodput": best, **figures}))


def _requests(url: str) -> list[bytes]:
    """Whole ones, of different digits."""
    endpoint = InferEndpoint("supernet", Terms(DEADLINE_S), ServedSignature(ASSUMED, "supernet"))
    requests = []
    for number, x in enumerate(load_dataset("digits").test.x[:EXAMPLES]):
        headers, body = endpoint.request({"input": x[None]}, number)
        lines = {"host": url.removeprefix("http://"), "accept": "*/*", **headers, "content-length": str(len(body))}
        head = "".join(f"{name}: {value}\r\n" for name, value in lines.items())
        requests.append(f"POST {endpoint.path} HTTP/1.1\r\n{head}\r\n".encode("latin-1") + body)
    return requests


def _bind(parent: psutil.Process, core: int) -> None:
    for process in (parent, *parent.children(recursive=True)):
        for thread in process.threads():
            os.sched_setaffinity(thread.id, {core})


def _best(client: OpenLoop) -> float:
    rate, best, below = FIRST_RATE_PER_S, 0.0, 0
    while below < 2:
        sent = client.run(rate, EACH_S)
        goodput = sent.goodput_per_s
        print(f"{rate:6.0f}/s: goodput {goodput:6.0f}/s, attainment {sent.in_time / sent.sent:.4f}")
        below = below + 1 if goodput < PASSED * max(best, rate) else 0
        best, rate = max(best, goodput), rate * RISE
    return best


def _overload(client: OpenLoop, url: str, best: float, times: int, asked: float, seconds: float) -> dict[str, Any]:
    """In parts, so that memory is seen as it goes."""
    process, rss_mib, goodputs, by_server, rates, delays_s = server(), [], [], [], [], []
    causes: Counter[str] = Counter()
    for part in range(PARTS):
        rss_mib.append(process.memory_info().rss / 2**20)
        before = _in_time(url)
        sent = client.run(times * best, seconds / PARTS, seed=part)
        goodputs.append(sent.goodput_per_s)
        by_server.append((_in_time(url) - before) / sent.seconds)
        rates.append(sent.rate_per_s)
        delays_s += sent.send_delays_s
        causes.update({"answered in time": sent.in_time, "answered too late": sent.late, "lost": sent.unanswered})
        causes.update(by_cause(sent.rejected))
    goodput, own, rate = float(np.mean(goodputs)), float(np.mean(by_server)), float(np.mean(rates))
    late_ms = 1e3 * np.quantile(delays_s, (0.5, 0.99))
    print(f"{times} x: {times * best:.0f}/s offered, {rate:.0f}/s really sent for {seconds:.0f} s, each late by "
          f"{late_ms[0]:.1f} ms (p99 {late_ms[1]:.1f})")  # fmt: skip
    print(f"  goodput {goodput:.0f}/s by the client's clock, {goodput / best:.2f} of the best (target {asked}; parts "
          f"{min(goodputs):.0f} to {max(goodputs):.0f}); {own:.0f}/s by the server's, {own / best:.2f}")  # fmt: skip
    print(f"  server's memory, MiB: {', '.join(f'{value:.0f}' for value in rss_mib)}")
    for cause, count in causes.most_common():
        print(f"{count:10d} {cause}")
    return {"goodput": goodput, "by_server": own, "sent": rate, "rss_mib": rss_mib, "causes": dict(causes)}


def _in_time(url: str) -> float:
    """Answers in time so far, as /metrics counts them."""
    text = urllib.request.urlopen(f"{url}/metrics").read().decode()
    return sum(float(count) for count in re.findall(r'^slotool_requests_total\{.*outcome="ok".*\} (\S+)', text, re.M))


if __name__ == "__main__":
    main()
