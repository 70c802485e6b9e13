"""Faults under load: the schedule, what it does to a server's workers, and the figures around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import slotool
from slotool.errors import InputError
from slotool.reports.series.load_test import served_over_time
from slotool.workloads import RequestLog
from slotool.workloads.client.faults import Fault, around_faults, over_time, read_faults

WRONG = [
    ("5s:kill", "is no fault"),
    ("kill 1", "no file and no fault"),
    ("5s:slow 1", "by how much"),
    ("5s:kill 1 2x", "takes no factor"),
    ("5s:slow 1 0.5x", "above 1"),
    ("5:kill 1", "is no fault"),
    ("5s:burn 1", "is no fault"),
    ("5s:kill -1", "is no fault"),
    ("5s:stop 1 for ever", "is no fault"),
]


def test_a_schedule_is_read_from_text_and_from_a_file(tmp_path: Path) -> None:
    expected = (Fault(0.5, "stop", 2), Fault(5.0, "kill", 1), Fault(60.0, "slow", 0, 2.0, 5.0))
    assert read_faults("5s:kill 1, 500ms:stop 2, 1min:slow 0 2x for 5s") == expected
    path = tmp_path / "faults.txt"
    path.write_text("# superserve\n5s:kill 1\n500ms:stop 2  # a hung one\n\n1min: slow 0 2x for 5s\n")
    assert read_faults(path) == expected
    assert [str(fault) for fault in expected] == ["stop 2", "kill 1", "slow 0 2x for 5 s"]


@pytest.mark.parametrize(("text", "problem"), WRONG)
def test_what_is_no_fault_is_named(text: str, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        read_faults(text)


def log_of(in_time: list[bool], faults: list[dict[str, Any]]) -> RequestLog:
    """Ten requests a second; one second of them is in time, or none of it."""
    rows = [
        {"intended_s": s + i / 10, "sent_s": s + i / 10, "done_s": s + i / 10 + (0.05 if good else 0.5), "status": 200}
        | {"label": 1, "answer": 1 if i else 2, "deadline_s": 0.1, "point": "p"}
        for s, good in enumerate(in_time)
        for i in range(10)
    ]
    return RequestLog.of(rows, {"subject": "m", "faults": faults})


def fault(at_s: float, error: str = "") -> dict[str, Any]:
    return {"at_s": at_s, "action": "kill", "worker": 0, "factor": 1.0, "lasts_s": None, "injected_s": at_s} | {
        "error": error
    }


def test_attainment_and_accuracy_around_a_fault() -> None:
    log = log_of([True, True, False, False, True, False, True, True], [fault(2.0), fault(5.0)])
    first, second = around_faults(log)
    assert (first["attainment_before"], first["attainment_worst"], first["recovered_s"]) == (1.0, 0.0, 2.0)
    assert first["attainment_after"] == pytest.approx(1 / 3)
    assert first["accuracy_before"] == first["accuracy_after"] == pytest.approx(0.9)
    assert (second["attainment_before"], second["recovered_s"]) == (pytest.approx(1 / 3), 1.0)
    seconds = over_time(log)
    assert [entry["begin_s"] for entry in seconds] == list(range(8))
    assert [entry["attainment"] for entry in seconds] == [1, 1, 0, 0, 1, 0, 1, 1]
    assert seconds[0]["effective_accuracy"] == pytest.approx(0.9)


def test_a_fault_without_recovery_says_so_and_the_plot_has_a_line_for_each() -> None:
    log = log_of([True, False, False], [fault(1.0)])
    assert around_faults(log)[0]["recovered_s"] is None
    figure = served_over_time("m", log, "m.parquet")
    assert [limit.text for limit in figure.limits] == ["kill 0"]
    assert figure.table.rows[0][-1] == "–"


def test_faults_of_a_real_server(tmp_path: Path) -> None:
    options = ["--allow-faults"]
    with slotool.serve("models/mlp", engine="local", options=options, log=tmp_path / "events.jsonl") as server:
        faults = "200ms:slow 0 3x for 300ms, 900ms:stop 0 for 200ms, 1200ms:kill 0 for 50ms"
        found = slotool.loadtest(
            server.url, rate=50, duration_s=1.5, deadline_ms=2_000, data="digits", faults=faults, progress=None
        )
        with pytest.raises(InputError, match="1 worker, numbered from 0"):
            slotool.loadtest(server.url, duration_s=2, data="digits", faults="1s:kill 1", progress=None)
        with pytest.raises(InputError, match="after the load"):
            slotool.loadtest(server.url, duration_s=2, data="digits", faults="3s:kill 0", progress=None)
    assert [entry["fault"] for entry in found.faults] == [
        "slow 0 3x for 0.3 s",
        "stop 0 for 0.2 s",
        "kill 0 for 0.05 s",
    ]
    assert not any(entry["error"] for entry in found.faults)
    assert '"event": "worker-lost"' in (tmp_path / "events.jsonl").read_text()
