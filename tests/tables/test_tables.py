"""Latency and outcome tables: round trips, CSV import, and errors that name file, row and column."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.errors import InputError, TableError
from slotool.tables import FULL, LatencyTable, OutcomeTable, schema_name
from slotool.tables.rounds import median_interval, tail_quantile
from slotool.tables.schema import Column, Schema

ROWS = [
    {"subject": "a", "samples_s": [0.001, 0.002, 0.003], "threads": 2, "first_call_s": 0.5},
    {"subject": "b", "samples_s": [], "status": "failed", "reason": "ran out of memory"},
]
OUTCOMES_CSV = "example,version,error,confidence,latency_s\n1,small,1,0.5,0.001\n1,large,0,0.9,0.002\n"


def test_latency_table_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "latency.parquet"
    LatencyTable.of(ROWS, {"seed": 7}).save(path)
    read = LatencyTable.load(path)
    assert schema_name(path) == "latency"
    assert read.provenance == {"seed": 7}
    assert read.rows["samples_s"][0].tolist() == [0.001, 0.002, 0.003]
    assert read.rows["reason"][1] == "ran out of memory"
    assert read.median_s("a", FULL) == 0.002
    with pytest.raises(InputError, match="no row of b"):
        read.median_s("b", FULL)
    assert [p.name for p in tmp_path.iterdir()] == ["latency.parquet"]


def test_latency_csv_says_the_same_as_parquet(tmp_path: Path) -> None:
    path = tmp_path / "latency.csv"
    path.write_text("subject,samples_s,threads\na,0.001;0.002;0.003,2\n")
    table = LatencyTable.load(path)
    assert table.rows["samples_s"][0].tolist() == [0.001, 0.002, 0.003]
    assert table.rows["threads"][0] == 2
    assert table.rows["point"][0] == "full"


TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"))
ANY_KIND = Schema(
    "any-kind",
    1,
    (
        Column("a", "text", ""),
        Column("b", "number", "", optional=True),
        Column("c", "integer", ""),
        Column("d", "flag", ""),
        Column("e", "numbers", ""),
    ),
)


@given(
    st.lists(
        st.tuples(TEXT, st.floats(), st.integers(-(2**53), 2**53), st.booleans(), st.lists(st.floats(allow_nan=False))),
        min_size=1,
    )
)
def test_every_table_reads_the_same_from_csv_as_it_was_written(rows: list[tuple[Any, ...]]) -> None:
    written = ANY_KIND.frame_of(dict(zip("abcde", row, strict=True)) for row in rows)
    with TemporaryDirectory() as folder:
        ANY_KIND.save(written, Path(folder) / "t.csv")
        read, _ = ANY_KIND.load(Path(folder) / "t.csv")
    for name in "abcd":
        assert read[name].equals(written[name]), name
    assert [row.tolist() for row in read["e"]] == [row.tolist() for row in written["e"]]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "not a CSV table"),
        ("subject,samples_s\n", "no rows"),
        ("subject\na\n", "column samples_s or latency_s is missing"),
        ("subject,latency_s,batchsize\na,1,16\n", "column batchsize is not read; rename it to batch_size"),
        ("subject,lantency_s\na,1\n", "column lantency_s is not read; rename it to latency_s"),
        ("subject,samples_s\na,0.1;x\n", "row 1, column samples_s: '0.1;x' is not a list of numbers"),
        ("subject,samples_s\na,0.1\nb,-0.1\n", "row 2, column samples_s"),
        ("subject,samples_s\na,nan\n", "row 1, column samples_s"),
        ("subject,samples_s,threads\na,0.1,two\n", "row 1, column threads: 'two' is not a whole number"),
        ("subject,samples_s,threads\na,0.1,0\n", "row 1, column threads: '0' must be greater than 0"),
        ("subject,samples_s\na,\n", "samples_s or latency_s: no samples"),
        ("subject,samples_s,predicted\na,0.1,perhaps\n", "'perhaps' is not a true or false"),
    ],
)
def test_a_broken_csv_is_named_by_row_and_column(tmp_path: Path, text: str, sentence: str) -> None:
    path = tmp_path / "broken.csv"
    path.write_text(text)
    with pytest.raises(TableError) as caught:
        LatencyTable.load(path)
    assert sentence in str(caught.value)
    assert "broken.csv" in str(caught.value)


def test_foreign_and_torn_parquet_files_are_refused(tmp_path: Path) -> None:
    torn = tmp_path / "torn.parquet"
    LatencyTable.of(ROWS).save(torn)
    torn.write_bytes(torn.read_bytes()[:-40])
    with pytest.raises(TableError, match="not a readable Parquet file"):
        LatencyTable.load(torn)
    packed = tmp_path / "latency.csv.gz"
    packed.write_bytes(b"packed")
    with pytest.raises(TableError, match=r"no table; expected Parquet, or CSV in a file whose name ends in .csv"):
        LatencyTable.load(packed)
    with pytest.raises(TableError, match="no such file"):
        LatencyTable.load(tmp_path / "absent.parquet")
    with pytest.raises(TableError, match="a folder, but a table is a file"):
        LatencyTable.load(tmp_path)
    outcomes = tmp_path / "outcomes.csv"
    outcomes.write_text(OUTCOMES_CSV)
    OutcomeTable.load(outcomes).save(tmp_path / "outcomes.parquet")
    with pytest.raises(TableError, match="holds an outcome table, not a latency table"):
        LatencyTable.load(tmp_path / "outcomes.parquet")


def test_parquet_of_another_tool_is_read_by_its_columns(tmp_path: Path) -> None:
    pq.write_table(pa.table({"subject": ["a"], "samples_s": [[0.1, 0.2]]}), tmp_path / "foreign.parquet")
    assert LatencyTable.load(tmp_path / "foreign.parquet").rows["subject"].tolist() == ["a"]


def test_a_newer_schema_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "latency.parquet"
    LatencyTable.of(ROWS).save(path)
    table = pq.read_table(path)
    header = table.schema.metadata[b"slotool"].replace(b'"schema_version": 2', b'"schema_version": 9')
    pq.write_table(table.replace_schema_metadata({b"slotool": header}), path)
    with pytest.raises(TableError, match="schema version 9"):
        LatencyTable.load(path)


def test_rows_as_mappings_keep_columns_that_no_schema_names(tmp_path: Path) -> None:
    rows = [
        {"subject": "a", "latency_s": [0.1], "accuracy": 0.5, "note": "cold"},
        {"subject": "b", "latency_s": [0.2], "accuracy": 0.25},
    ]
    table = LatencyTable.of(rows)
    assert table.rows["accuracy"].tolist() == [0.5, 0.25]
    assert [list(samples) for samples in table.rows["samples_s"]] == [[0.1], [0.2]]
    table.save(tmp_path / "kept.parquet")
    kept = LatencyTable.load(tmp_path / "kept.parquet")
    assert kept.rows["accuracy"].tolist() == [0.5, 0.25]
    assert kept.rows["note"][0] == "cold"


def test_statistics_are_views_of_the_samples() -> None:
    samples = np.linspace(0.001, 0.002, 101)
    view = LatencyTable.of([{"subject": "a", "samples_s": samples}, ROWS[1]]).statistics()
    assert len(view) == 1
    row = view.iloc[0]
    assert row["n"] == 101
    assert row["median_s"] == pytest.approx(0.0015)
    assert row["low_s"] < row["median_s"] < row["high_s"]
    assert np.isnan(row["p99_s"])


@given(st.integers(6, 400))
def test_the_median_interval_covers_95_percent(n: int) -> None:
    from scipy.stats import binom

    low, high = median_interval(np.arange(n, dtype=float))
    assert low + high == n - 1
    below = int(low)
    assert 1 - 2 * binom.cdf(below, n, 0.5) >= 0.95 - 1e-9 or below == 0
    assert 1 - 2 * binom.cdf(below + 1, n, 0.5) < 0.95


def test_a_tail_needs_enough_samples() -> None:
    assert np.isnan(tail_quantile(np.ones(661), 0.99))
    assert tail_quantile(np.ones(662), 0.99) == 1.0


def test_outcomes_fill_the_cost_and_make_matrices(tmp_path: Path) -> None:
    path = tmp_path / "outcomes.csv"
    path.write_text(OUTCOMES_CSV)
    table = OutcomeTable.load(path)
    assert table.versions == ["small", "large"]
    assert table.matrix("error").tolist() == [[1.0, 0.0]]
    assert table.matrix("cost").tolist() == [[0.001, 0.002]]
    table.save(tmp_path / "outcomes.parquet")
    assert OutcomeTable.load(tmp_path / "outcomes.parquet").sha256 == table.sha256


@pytest.mark.parametrize(
    ("extra", "sentence"),
    [
        ("2,small,0,0.5,0.001\n", "example '2' of version 'large' is missing"),
        ("1,small,0,0.5,0.001\n", "example '1' of version 'small' appears more than once"),
        ("2,small,-1,0.5,0.001\n", "row 3, column error"),
        ("2,small,0,inf,0.001\n", "row 3, column confidence"),
        ("2,small,0,nan,0.001\n", "column confidence: 'nan' is missing or NaN"),
    ],
)
def test_incomplete_outcomes_are_named(tmp_path: Path, extra: str, sentence: str) -> None:
    path = tmp_path / "outcomes.csv"
    path.write_text(OUTCOMES_CSV + extra)
    with pytest.raises(TableError) as caught:
        OutcomeTable.load(path)
    assert sentence in str(caught.value)
