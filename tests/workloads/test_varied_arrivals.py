"""Bursty, time-varying and recorded arrivals: their rates, their variability, and bad traces."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import slotool
from slotool.errors import InputError, TableError
from slotool.workloads import (
    ArrivalTable,
    Bursty,
    RateTrace,
    RecordedInstants,
    TimeVarying,
    read_trace,
)
from slotool.workloads.arrivals.processes import gamma_arrivals
from tests.workloads.arrival_conformance import ArrivalConformance

TRACES = Path(os.environ.get("SLOTOOL_DATA_DIR", "/nowhere")) / "traces"
REAL = pytest.mark.skipif(not TRACES.is_dir(), reason="no traces in $SLOTOOL_DATA_DIR")


class TestBursty(ArrivalConformance):
    make = staticmethod(lambda rate: Bursty(rate / 4, 3 * rate / 4, 4.0))


class TestTimeVarying(ArrivalConformance):
    make = staticmethod(lambda rate: TimeVarying(rate / 2, rate, 2 * rate))


class TestRateTrace(ArrivalConformance):
    make = staticmethod(lambda rate: RateTrace(np.array([1.0, 0.0, 5.0, 2.0]), rate))


@pytest.mark.parametrize("cv2", [0.0, 0.5, 1.0, 8.0])
def test_gaps_have_the_variability_asked_for(cv2: float) -> None:
    gaps = np.diff(gamma_arrivals(200_000, cv2, np.random.default_rng(0)))
    assert gaps.mean() == pytest.approx(1.0, rel=0.03)
    assert gaps.var() == pytest.approx(cv2, rel=0.1, abs=1e-12)


def test_a_ramp_climbs_as_fast_as_asked() -> None:
    times_s = TimeVarying(500, 2_500, acceleration=250, cv2=0.0, starts_s=2.0).times(14.0, seed=0)
    counts = np.histogram(times_s, np.arange(15))[0]
    assert counts[[0, 1]] == pytest.approx(500, rel=0.01)
    assert counts[2:10] == pytest.approx(500 + 250 * (np.arange(8) + 0.5), rel=0.01)
    assert counts[10:] == pytest.approx(2_500, rel=0.01)
    falling = TimeVarying(1_000, 100, acceleration=1e6, cv2=0.0).times(4.0, seed=0)
    assert len(falling) == pytest.approx(400, abs=3)


def test_a_compressed_trace_keeps_its_shape_and_is_silent_where_the_trace_is() -> None:
    shape = np.array([1.0, 0.0, 5.0, 2.0])
    times_s = RateTrace(shape, 8_000.0).times(4.0, seed=1)
    assert np.histogram(times_s, np.arange(5))[0] == pytest.approx(32_000 * shape / 8, rel=0.03)


def test_recorded_instants_are_replayed_or_played_faster() -> None:
    recorded = RecordedInstants(np.array([10.0, 11.0, 13.0]))
    assert recorded.times(5.0, seed=0).tolist() == [0.0, 1.0, 3.0]
    assert RecordedInstants(np.array([10.0, 11.0, 14.0]), 1.0).times(5.0, seed=0).tolist() == [0.0, 0.5, 2.0]
    assert RecordedInstants(np.array([1.0, 2.0]), from_start=True).times(5.0, seed=0).tolist() == [1.0, 2.0]
    assert recorded.times(recorded.duration_s, seed=9).tolist() == [0.0, 1.0, 3.0]


@REAL
def test_the_public_traces_are_read() -> None:
    azure = read_trace(TRACES / "azure_functions_2019_1000.csv")
    assert azure.mean_rate_per_s == pytest.approx(135, abs=1)
    shrunk = read_trace(TRACES / "azure_functions_2019_1000.csv", 6_400.0).times(1.44, seed=0)
    assert len(shrunk) == pytest.approx(6_400 * 1.44, rel=0.05)
    code = read_trace(TRACES / "azure_llm_2023_code.csv")
    assert isinstance(code, RecordedInstants)
    times_s = code.times(code.duration_s, seed=0)
    gaps = np.diff(times_s)
    assert len(times_s) == 8_819
    assert gaps.var() / gaps.mean() ** 2 == pytest.approx(173, rel=0.05)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("TIMESTAMP\n2.0\n1.0\n", "instant 2 of the recording lies before"),
        ("\nTIMESTAMP\n1.5\n\n\nsoon\n", "row 2, column TIMESTAMP: 'soon' is no instant"),
        ("rate_per_s\n10\nNaN\n100\n", "row 2, column rate_per_s: 'nan' is no rate or count"),
        ("TIMESTAMP\n0\n1\nNaN\n3\n", "row 3, column TIMESTAMP: .*nan.* is no instant"),
        ("rate_per_s\n1\n\n-2\n", "row 2, column rate_per_s: '-2' is no rate or count"),
        ("TIMESTAMP\n2023-01-01 00:00:02\n2023-01-01 00:00:01\n", "row 2, column TIMESTAMP: lies before the first"),
        ("TIMESTAMP\n1.0\nnoon\n", "column TIMESTAMP: .* is no instant"),
        ("TIMESTAMP\n-1.0\n1.0\n", "row 1, column TIMESTAMP: lies before"),
        ("rate_per_s\n", "the trace has no rows"),
        ("rate_per_s\n1\n-2\n", "row 2, column rate_per_s: .*-2.* is no rate"),
        ("rate_per_s\n0\n0\n", "not all 0|not a positive"),
        ("minute_1,minute_2\n1,x\n", "row 1, column minute_2: 'x' is no rate or count"),
        ("a,b\n1,2\n", "one row per request: seconds, or date and time"),
    ],
)
def test_bad_traces_are_rejected_by_row(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(text)
    with pytest.raises(TableError, match=sentence) as caught:
        read_trace(path)
    assert str(path) in str(caught.value)


def test_time_stamps_may_change_their_offset(tmp_path: Path) -> None:
    stamps = ("2024-10-27T02:59:59+02:00", "2024-10-27T02:00:00+01:00", "2024-10-27T02:00:01.5+01:00")
    (tmp_path / "trace.csv").write_text("\n".join(("TIMESTAMP", *stamps, "")))
    trace = read_trace(tmp_path / "trace.csv")
    assert trace.times(10.0, seed=0).tolist() == [0.0, 1.0, 2.5]


def test_a_recorded_burst_arrives_at_once(tmp_path: Path) -> None:
    (tmp_path / "trace.csv").write_text("TIMESTAMP\n" + "7.5\n" * 40)
    burst = slotool.generate_arrivals(trace=tmp_path / "trace.csv", out=tmp_path / "burst.parquet")
    assert (burst.times_s == np.zeros(40)).all()
    assert burst.facts["mean_rate_per_s"] == burst.busiest_second == 40
    again = RecordedInstants(ArrivalTable.load(tmp_path / "burst.parquet").times_s, from_start=True)
    assert len(again.times(again.duration_s, seed=0)) == 40


def test_arrivals_go_to_a_file_and_back(tmp_path: Path) -> None:
    times_s = Bursty(50, 50, 2.0).times(2.0, seed=4)
    table = ArrivalTable.of([{"arrival_s": time} for time in times_s], {"seed": 4})
    table.save(tmp_path / "arrivals.parquet")
    again = ArrivalTable.load(tmp_path / "arrivals.parquet")
    assert np.array_equal(again.times_s, times_s)
    assert again.provenance == {"seed": 4}
    for wrong, sentence in (([1.0, 0.5], "row 2, column arrival_s: lies before"), ([-1.0, 0.5], "not be negative")):
        with pytest.raises(TableError, match=sentence):
            ArrivalTable.of([{"arrival_s": time} for time in wrong])


def test_impossible_processes_are_rejected() -> None:
    for make, sentence in (
        (lambda: Bursty(0, 1, 1), "a base rate of 0/s"),
        (lambda: Bursty(1, 1, -1), "variation of -1"),
        (lambda: TimeVarying(1, 2, 0), "is no ramp"),
        (lambda: RateTrace(np.array([0.0, -1.0]), 1.0), "not negative"),
        (lambda: RecordedInstants(np.array([1.0])), "two finite instants"),
        (lambda: RecordedInstants(np.array([1.0, 1.0]), 5.0), "no rate makes them faster"),
    ):
        with pytest.raises(InputError, match=sentence):
            make()


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (("--kind", "poisson", "--cv2", "4"), "it has no effect with --kind poisson"),
        (("--kind", "poisson", "--base", "1"), "it has no effect with --kind poisson"),
        (("--trace", "t.csv", "--kind", "bursty"), "it has no effect with --trace"),
        (("--duration", "0min"), "'0min' is no duration"),
    ],
)
def test_an_option_of_another_arrival_process_is_rejected(
    slotool: Callable[..., Any], tmp_path: Path, options: tuple[str, ...], sentence: str
) -> None:
    (tmp_path / "t.csv").write_text("rate_per_s\n3\n5\n")
    found = [tmp_path / option if option == "t.csv" else option for option in options]
    run = slotool("generate", "arrivals", "-o", tmp_path / "a.parquet", *found)
    assert run.exit_code == 2
    assert sentence in " ".join(run.stderr.split())


def test_a_trace_in_place_of_arrivals_is_said_to_be_one(tmp_path: Path) -> None:
    (tmp_path / "day.csv").write_text("rate_per_s\n10\n20\n")
    with pytest.raises(TableError, match=r"generate arrivals --trace .*day\.csv"):
        ArrivalTable.load(tmp_path / "day.csv")
    (tmp_path / "other.csv").write_text("instant\n10\n")
    with pytest.raises(TableError) as caught:
        ArrivalTable.load(tmp_path / "other.csv")
    assert "--trace" not in str(caught.value)
