"""How much longer calls of a worker take that has rested, read from probes of a server."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from slotool.planning.fleet import Pool, WorkerType
from slotool.planning.front_end import FrontEnd
from slotool.planning.model_on_workers import Demand
from slotool.planning.planner import Planner
from slotool.planning.promise import Promise
from slotool.planning.traffic import Traffic
from slotool.planning.warm_up import calls_of, with_warm_up
from slotool.scheduling.batching import read_profile
from slotool.simulation import SimulationResult
from slotool.simulation.service import Overhead
from slotool.tables import LatencyTable
from slotool.workloads import Poisson
from slotool.workloads.requests import RequestLog


def worker() -> WorkerType:
    """A point whose calls take 4 ms, and twice as long of four requests, give or take a tenth."""
    spread = np.random.default_rng(0).uniform(0.9, 1.1, 101)
    rows = [
        {"subject": "net", "point": "version=only", "batch_size": size, "samples_s": took_s * spread}
        for size, took_s in ((1, 4e-3), (4, 8e-3))
    ]
    table = LatencyTable.of(rows)
    return WorkerType("one", read_profile(LatencyTable(table.rows.assign(accuracy=0.9))), 1, 1.0)


def front_end(**of_calls: float) -> FrontEnd:
    return FrontEnd(np.full(1, 500.0), Overhead(2e3, **of_calls))


def simulated(times_s: np.ndarray, workers: int, overhead: Overhead) -> SimulationResult:
    search = Planner([Demand("", times_s, Promise(500e3, 0.1), {"one": worker()}, [])], reserve_us=2e3)
    pools = {"": Pool(worker(), "maxbatch", workers)}
    return search.results(pools, 1, {"": Traffic.whole(times_s)}, {"": overhead})[""]


def served(true: FrontEnd, times_s: np.ndarray, workers: int) -> RequestLog:
    """What a client logs of a server whose calls take as long as simulated."""
    outcome = simulated(times_s, workers, true.overhead)
    arrived_us = outcome.scenario.arrival_us
    rows = {
        "intended_s": times_s, "sent_s": times_s, "done_s": 1e-6 * outcome.done_us, "status": 200, "label": 1,
        "answer": 1, "point": "version=only", "deadline_s": 0.5, "queue_s": 1e-6 * (outcome.started_us - arrived_us),
        "compute_s": np.round(1e-6 * (outcome.done_us - outcome.started_us), 7),
    }  # fmt: skip
    return RequestLog(pd.DataFrame(rows))


def probed(true: FrontEnd, workers: int) -> FrontEnd:
    rested = served(true, Poisson(40.0).times(6.0, seed=1), workers)
    busy = served(true, np.arange(600) / (240.0 * workers), workers)
    return with_warm_up(FrontEnd.of_probe(rested, worker().profile), worker(), workers, [rested, busy])


def taken_us(front_end: FrontEnd, part: float) -> float:
    """Of a call of one request."""
    return float(front_end.overhead.longer(np.array([4e3]), part)[0])


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize(("memory_us", "saturation"), [(2e3, 1.0), (5e4, 0.6)])
def test_probes_tell_what_calls_of_rested_and_of_busy_workers_take(
    memory_us: float, saturation: float, workers: int
) -> None:
    true = front_end(call_us=3e3, busy_part=0.2, memory_us=memory_us, saturation=saturation)
    found = probed(true, workers)
    assert taken_us(found, 1.0) == pytest.approx(7e3, rel=0.06), "a rested worker"
    assert taken_us(found, found.overhead.busy_part) == pytest.approx(4.6e3, rel=0.06), "a busy one"
    assert memory_us / 2.5 <= found.overhead.memory_us <= 2.5 * memory_us
    assert "where its worker has rested" in str(found)


def test_where_all_calls_take_longer_alike_none_rests() -> None:
    found = probed(front_end(call_us=1e3), 1)
    assert taken_us(found, 1.0) == pytest.approx(5e3, rel=0.05)
    assert taken_us(found, found.overhead.busy_part) == pytest.approx(5e3, rel=0.05)


def test_few_calls_tell_nothing() -> None:
    true = front_end(call_us=3e3, busy_part=0.2, memory_us=2e3)
    log, known = served(true, np.arange(20) / 20.0, 1), front_end(call_us=3e3)
    assert with_warm_up(known, worker(), 1, [log]) == known


def test_requests_of_one_call_are_one_call() -> None:
    """Three requests in a call, then two calls of just the same length, and one of a point that the table lacks."""
    rows = pd.DataFrame(
        {
            "intended_s": [0.0, 0.0, 0.001, 0.1, 0.2, 0.3], "done_s": [0.009, 0.0091, 0.0092, 0.105, 0.205, 0.305],
            "compute_s": [0.008, 0.008, 0.008, 0.0045, 0.0045, 0.0045],
            "point": ["version=only"] * 5 + ["version=other"], "status": 200, "label": 1, "answer": 1, "queue_s": 0.0,
        }
    )  # fmt: skip
    found = calls_of(RequestLog(rows.assign(sent_s=rows["intended_s"])), worker(), 1)
    assert found.took_us == pytest.approx([8e3, 4.5e3, 4.5e3])
    assert found.begun_us == pytest.approx([1e3, 100.5e3, 200.5e3])
    assert found.table_us == pytest.approx([8e3, 4e3, 4e3], rel=0.03)


def test_the_time_between_two_calls_counts_for_busy_workers() -> None:
    """A hundred requests at once, whose calls begin 0.2 ms apart."""
    queue_s = 4.2e-3 * np.arange(100)
    rows = {
        "intended_s": 0.0, "sent_s": 0.0, "done_s": queue_s + 4e-3, "queue_s": queue_s, "compute_s": 4e-3,
        "status": 200, "label": 1, "answer": 1, "point": "version=only",
    }  # fmt: skip
    known = front_end()
    found = with_warm_up(known, worker(), 1, [RequestLog(pd.DataFrame(rows))])
    assert found.overhead.turnaround_us == pytest.approx(200.0)
    assert with_warm_up(known, worker(), 1, [served(known, np.arange(99) / 20.0, 1)]).overhead.turnaround_us == 0, (
        "none waited"
    )
    times_s = np.zeros(50)
    ends_us = [simulated(times_s, 1, each.overhead._replace(reserve_us=0.0)) for each in (known, found)]
    assert ends_us[1].done_us.max() - ends_us[0].done_us.max() == pytest.approx(200.0 * ends_us[0].calls)
