"""The control space: what tables tell it, and what it says where they are silent."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.errors import InputError
from slotool.scheduling import ControlSpace
from slotool.tables import LatencyTable, OperatingPoint, OutcomeTable
from slotool.testing.policies import three_versions

SMALL, LARGE = OperatingPoint.of(version="small"), OperatingPoint.of(version="large")


def row(point: OperatingPoint, samples_s: list[float], **more: object) -> dict[str, object]:
    return {"subject": "family", "point": point.key, "samples_s": samples_s, **more}


def test_latencies_come_from_the_rows_of_the_subject_and_conditions() -> None:
    table = LatencyTable.of(
        [
            row(SMALL, [1e-3] * 19 + [9e-3], threads=1),
            row(SMALL, [5e-3], threads=2),
            row(SMALL, [4e-3], threads=1, batch_size=4),
            row(LARGE, [2e-3], threads=1, predicted=True, low_s=1e-3, high_s=3e-3),
            {**row(LARGE, [7.0]), "subject": "another"},
            row(OperatingPoint.of(version="unknown"), [1.0]),
            row(LARGE, [], threads=1, batch_size=4, status="failed"),
        ]
    )
    space = ControlSpace.of_tables("family", [SMALL, LARGE], table, threads=1)
    assert space.latency_us(SMALL) == pytest.approx(1_400.0), "the 95 % quantile, not the median"
    assert space.latency_us(SMALL, 3) == pytest.approx(4_000.0), "the next larger batch"
    assert space.latency_us(SMALL, 8) == pytest.approx(8_000.0), "beyond the largest in proportion"
    assert space.latency_us(LARGE) == pytest.approx(3_000.0), "the upper bound of a prediction"
    assert ControlSpace.of_tables("family", [SMALL, LARGE], table).latency_us(SMALL) == pytest.approx(5_000.0)


def test_accuracies_come_from_outcomes_under_version_names_or_keys(tmp_path: Path) -> None:
    k = OperatingPoint.of(k=0.5)
    frame = pd.DataFrame(
        [(str(e), v, float(e < wrong), 0.9, 1e-3) for v, wrong in (("small", 2), ("k=0.5", 1)) for e in range(4)],
        columns=["example", "version", "error", "confidence", "latency_s"],
    )
    space = ControlSpace.of_tables("m", [SMALL, k, LARGE], outcomes=OutcomeTable(frame))
    assert [space.accuracy(point) for point in (SMALL, k, LARGE)] == [0.5, 0.75, None]


@given(st.integers(1, 40), st.integers(1, 40))
def test_a_larger_batch_never_takes_less(one: int, other: int) -> None:
    space = three_versions()
    small, large = sorted((one, other))
    for point in space.points:
        assert (space.latency_us(point, small) or 0.0) <= (space.latency_us(point, large) or 0.0)


def test_an_ensemble_takes_its_worst_case() -> None:
    space = three_versions()
    pair = {"first": "small", "second": "medium", "threshold": 0.5}
    assert space.latency_us(OperatingPoint.of(policy="seq", **pair)) == 500.0
    assert space.latency_us(OperatingPoint.of(policy="conc", **pair)) == 400.0
    assert space.latency_us(OperatingPoint.of(policy="osfa", version="large")) == 2_000.0
    assert space.latency_us(OperatingPoint.of(policy="osfa", version="huge")) is None


def test_what_is_unknown_fits_and_what_is_foreign_is_rejected() -> None:
    space = ControlSpace([SMALL, LARGE], {(SMALL, 1): 10.0})
    assert space.fits(LARGE, 1, 1.0)
    assert not space.fits(LARGE, 1, 0.0)
    assert not space.fits(SMALL, 1, 9.0)
    with pytest.raises(InputError, match="version=large"):
        ControlSpace([SMALL], {(LARGE, 1): 1.0})
    with pytest.raises(InputError, match="at least one"):
        ControlSpace([])
