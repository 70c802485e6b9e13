"""Benchmarks are recorded with what they printed, and the results page shows it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs.generate import benchmarks
from tests.perf.record import record


def printing() -> None:
    print("latency 3 µs")
    print(json.dumps({"latency_s": 3e-6}))


def test_a_record_has_figures_machine_date_and_commit_and_is_shown(tmp_path: Path) -> None:
    document = json.loads(record("printing", printing, tmp_path).read_text())
    assert document["figures"] == {"latency_s": 3e-6}
    assert document["printed"] == ["latency 3 µs"]
    assert document["date"][:2] == "20"
    assert document["machine"]["cpu"]
    page = benchmarks.page(tmp_path)
    assert "## printing" in page
    assert "latency 3 µs" in page
    assert document["machine"]["cpu"] in page
    assert document["commit"] in page


def test_a_benchmark_without_a_json_line_is_not_recorded(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="ends with 'latency 3 µs'; expected one line with a JSON object"):
        record("silent", lambda: print("latency 3 µs"), tmp_path)
    assert list(tmp_path.iterdir()) == []
