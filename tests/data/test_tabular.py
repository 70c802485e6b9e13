"""Data sets in a file of the user's: Parquet, CSV and npz."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from slotool.data import load_dataset
from slotool.errors import DataError, TableError
from slotool.tables import OutcomeTable

ROWS = pd.DataFrame({"a": [1.0, 2.0, 3.0, 4.0, 5.0], "b": [1, 0, 1, 0, 1], "kind": ["x", "y", "x", "z", "y"]})


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_columns_become_features_and_classes(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        ROWS.to_parquet(path)
    else:
        ROWS.to_csv(path, index=False)
    dataset = load_dataset(f"{path}:kind")
    assert (dataset.input_shape, dataset.classes, dataset.labels) == ((2,), 3, ("x", "y", "z"))
    parts = [dataset.train, dataset.validation, dataset.test]
    rows = sorted(
        (*example.tolist(), dataset.labels[c]) for part in parts for example, c in zip(part.x, part.y, strict=True)
    )
    assert rows == sorted((a, float(b), kind) for a, b, kind in ROWS.itertuples(index=False))
    again = load_dataset(f"{path}:kind")
    assert np.array_equal(again.test.x, dataset.test.x)


def test_a_row_has_one_number_as_an_example_and_as_an_outcome(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("example,version,error,confidence,latency_s,kind\n1,small,0,0.9,0.1,x\n2,small,-1,0.9,0.1,\n")
    with pytest.raises(TableError, match="row 2, column error"):
        OutcomeTable.load(path)
    with pytest.raises(DataError, match="row 2, column 'kind'"):
        load_dataset(f"{path}:kind")


@pytest.mark.parametrize("suffix", ["parquet", "csv"])
def test_a_row_without_its_label_is_named(tmp_path: Path, suffix: str) -> None:
    rows, path = ROWS.assign(kind=["x", "y", "x", None, "y"]), tmp_path / f"rows.{suffix}"
    if suffix == "parquet":
        rows.to_parquet(path)
    else:
        rows.to_csv(path, index=False)
    with pytest.raises(DataError, match="row 4, column 'kind': it has no value"):
        load_dataset(f"{path}:kind")


def test_a_split_column_says_where_a_row_belongs(tmp_path: Path) -> None:
    path = tmp_path / "rows.parquet"
    ROWS.assign(split=["test", "train", "test", "validation", "train"]).rename(columns={"kind": "label"}).to_parquet(
        path
    )
    dataset = load_dataset(str(path))
    assert dataset.test.x[:, 0].tolist() == [1.0, 3.0]
    assert dataset.input_shape == (2,)


def test_npz_of_images(tmp_path: Path) -> None:
    path = tmp_path / "images.npz"
    np.savez(path, x=np.arange(48, dtype=np.uint8).reshape(4, 3, 2, 2), y=np.array([1, 0, 1, 0]))
    dataset = load_dataset(str(path))
    assert (dataset.input_shape, dataset.classes) == ((3, 2, 2), 2)
    assert dataset.train.x.dtype == np.float32


@pytest.mark.parametrize(
    ("rows", "label", "sentence"),
    [
        (ROWS, "", "which column holds the labels is unclear; write rows.parquet:COLUMN, there are a, b, kind"),
        (
            pd.concat([ROWS[["a"]].rename(columns={"a": f"c{at}"}) for at in range(30)] + [ROWS[["kind"]]], axis=1),
            "",
            r"there are c0, c1, .*c18, … \(11 more\), kind",
        ),
        (ROWS, ":colour", "no column is called 'colour'; write rows.parquet:COLUMN"),
        (ROWS.assign(a=[1.0, None, 3.0, 4.0, 5.0]), ":kind", "row 2, column 'a': it has no value"),
        (ROWS.assign(kind=["x", None, "x", "z", "y"]), ":kind", "row 2, column 'kind': it has no value"),
        (ROWS.assign(more=list("abcde")), ":kind", r"one tensor .* is needed here, .*more \(text\)"),
        (ROWS[["kind"]], ":kind", "it has no feature beside kind"),
        (ROWS[:0], ":kind", "it has no rows"),
        (ROWS.assign(split="tset"), ":kind", "row 1 has split 'tset', expected train, validation, test"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, rows: pd.DataFrame, label: str, sentence: str) -> None:
    path = tmp_path / "rows.parquet"
    rows.to_parquet(path)
    with pytest.raises(DataError, match=sentence):
        load_dataset(f"{path}{label}").input_shape  # noqa: B018


@pytest.mark.parametrize("name", ["torn.parquet", "torn.csv", "torn.npz"])
def test_torn_files_and_missing_ones(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    with pytest.raises(DataError, match="no such file"):
        load_dataset(str(path))
    path.write_bytes(b"\x00\xff\x93PAR1 nothing")
    with pytest.raises(DataError, match=name):
        load_dataset(str(path))


def test_a_file_that_holds_no_data_is_not_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mk.py").write_text("open('ran', 'w').close()")
    with pytest.raises(DataError, match=r"^mk\.py: this is no data file; files that end in .*\.csv"):
        load_dataset("mk.py:kind")
    assert not Path("ran").exists()


def test_pickled_arrays_are_never_read(tmp_path: Path) -> None:
    path = tmp_path / "objects.npz"
    np.savez(path, x=np.array([[{}]], dtype=object), y=np.array([0]))
    with pytest.raises(DataError, match="cannot be read"):
        load_dataset(str(path))
