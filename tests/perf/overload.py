"""A server at twice the rate it can serve: goodput beside the best there is, memory, and why each request was refused.

On two cores the client cannot always send as much; so beside what it saw stand the rate it really sent at, and what the
server's own clock says was in time.

``python -m tests.perf overload`` keeps the server with its worker on one core and the client on another, so that
neither takes from the other. The peer is the same server at the rate where its goodput is best.
``SLOTOOL_BENCH_SECONDS``: how long twice that rate lasts (60; ten minutes are 600).
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

from slotool.cli.server_process import server_process
from slotool.machine import bound_to, cores_by_preference
from slotool.workloads.requests import RequestLog
from tests.perf.serving import arguments, load, profiled, server

FIRST_RATE_PER_S, RISE, EACH_S = 500.0, 1.4, 5.0
# The best has been passed when goodput was below this share of it, or of the rate, at two rates in a row.
PASSED = 0.95
PARTS = 10


def main() -> None:
    cores = cores_by_preference()
    if len(cores) < 2:
        print("left out: client and server need a core each")
        return
    with tempfile.TemporaryDirectory() as folder, server_process(arguments(profiled(Path(folder)), 1)) as url:
        _bind(server(), cores[0])
        with bound_to([cores[1]]):
            load(url, FIRST_RATE_PER_S, 3.0)
            best = _best(url)
            found = _twice(url, best, float(os.environ.get("SLOTOOL_BENCH_SECONDS", "60")))
    print(json.dumps({"benchmark": "overload", "best_goodput": best, **found}))


def _bind(parent: psutil.Process, core: int) -> None:
    for process in (parent, *parent.children(recursive=True)):
        for thread in process.threads():
            os.sched_setaffinity(thread.id, {core})


def _best(url: str) -> float:
    rate, best, below = FIRST_RATE_PER_S, 0.0, 0
    while below < 2:
        log = load(url, rate, EACH_S)
        goodput = float(log.in_time.sum() / EACH_S)
        print(f"{rate:6.0f}/s: goodput {goodput:6.0f}/s, attainment {log.in_time.mean():.4f}")
        below = below + 1 if goodput < PASSED * max(best, rate) else 0
        best, rate = max(best, goodput), rate * RISE
    return best


def _twice(url: str, best: float, seconds: float) -> dict[str, Any]:
    """In parts, so that memory is seen as it goes; causes are sentences without their numbers."""
    process, rss_mib, goodputs, by_server, sent = server(), [], [], [], []
    causes: Counter[str] = Counter()
    for _ in range(PARTS):
        rss_mib.append(process.memory_info().rss / 2**20)
        before = _in_time(url)
        log = load(url, 2 * best, seconds / PARTS)
        spent_s = float(log.rows["sent_s"].max() - log.rows["sent_s"].min())
        goodputs.append(float(log.in_time.sum()) / (seconds / PARTS))
        by_server.append((_in_time(url) - before) / spent_s)
        sent.append(len(log) / spent_s)
        causes.update(_causes(log))
    goodput, own = float(np.mean(goodputs)), float(np.mean(by_server))
    print(
        f"really sent: {np.mean(sent):.0f}/s; in time by the server's clock: {own:.0f}/s ({own / best:.2f} of the best)"
    )
    print(f"{2 * best:.0f}/s for {seconds:.0f} s: goodput {goodput:.0f}/s ({goodput / best:.2f} of the best, "
          f"asked 0.9; its parts {min(goodputs):.0f} to {max(goodputs):.0f})")  # fmt: skip
    print(f"server's memory, MiB: {', '.join(f'{value:.0f}' for value in rss_mib)}")
    for cause, count in causes.most_common():
        print(f"{count:8d} {cause}")
    return {
        "goodput": goodput,
        "by_server": own,
        "sent": float(np.mean(sent)),
        "rss_mib": rss_mib,
        "causes": dict(causes),
    }


def _in_time(url: str) -> float:
    """Answers in time so far, as /metrics counts them."""
    text = urllib.request.urlopen(f"{url}/metrics").read().decode()
    return sum(float(count) for count in re.findall(r'^slotool_requests_total\{.*outcome="ok".*\} (\S+)', text, re.M))


def _causes(log: RequestLog) -> Counter[str]:
    unanswered = log.rows[~log.answered]
    told = Counter(re.sub(r"[\d.,]*\d", "N", str(error))[:100] for error in unanswered["error"])
    told["answered in time"] = int(log.in_time.sum())
    told["answered too late"] = int((log.answered & ~log.in_time).sum())
    return told


if __name__ == "__main__":
    main()
