"""Files that other programs wrote, and wrong ones: a sentence that names the file and what is wrong with it."""

from __future__ import annotations

import json
import struct
import zipfile
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from slotool.data import load_dataset
from slotool.data.adapters import npz
from slotool.errors import DataError

FRAME = pd.DataFrame({"a": np.arange(12.0), "b": np.arange(12) % 5, "label": np.arange(12) % 3})
LABELS = np.arange(40) % 3


def test_a_large_array_that_is_not_compressed_is_mapped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for order in ("C", "F"):
        x = np.asarray(np.random.default_rng(0).normal(size=(40, 3, 2)), order=order)
        np.savez(tmp_path / "data.npz", x=x, y=LABELS)
        whole = load_dataset(str(tmp_path / "data.npz"))
        with monkeypatch.context() as patched:
            patched.setattr(npz, "MAPPED_BYTES", 1)
            with zipfile.ZipFile(tmp_path / "data.npz") as archive:
                mapped = npz._array(tmp_path / "data.npz", archive, archive.getinfo("x.npy"))
            assert isinstance(mapped, np.memmap)
            stored = load_dataset(str(tmp_path / "data.npz"), stored=True)
        np.testing.assert_array_equal(stored.train.x[:5], whole.train.x[:5])
        np.testing.assert_array_equal(stored.test.y, whole.test.y)


def test_a_mapped_array_is_as_long_as_its_header_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(npz, "MAPPED_BYTES", 1)
    np.save(tmp_path / "x.npy", np.ones((40, 2)))
    with zipfile.ZipFile(tmp_path / "data.npz", "w") as archive:
        archive.writestr("x.npy", (tmp_path / "x.npy").read_bytes()[:-8])
    with pytest.raises(DataError, match=r"data\.npz: cannot be read \(x\.npy: its header promises another number"):
        load_dataset(str(tmp_path / "data.npz"))


def write_wrong_npz(folder: Path, what: str) -> Path:
    path = folder / "data.npz"
    if what == "npy":
        np.save(folder / "data.npy", LABELS)
        (folder / "data.npy").rename(path)
    else:
        with zipfile.ZipFile(path, "w") as archive:
            if what == "text":
                archive.writestr("notes.txt", "no array")
    return path


@pytest.mark.parametrize(("what", "said"), [("npy", "not a zip file"), ("text", "notes.txt"), ("empty", "no array")])
def test_an_npz_without_arrays(tmp_path: Path, what: str, said: str) -> None:
    path = write_wrong_npz(tmp_path, what)
    with pytest.raises(DataError, match=rf"data\.npz: .*{said}"):
        load_dataset(str(path))


def test_an_idx_header_of_sizes_whose_product_is_beyond_64_bits(tmp_path: Path) -> None:
    for part in ("train", "t10k"):
        (tmp_path / f"{part}-images-idx3-ubyte").write_bytes(struct.pack(">4BIII", 0, 0, 8, 3, 2**31, 2**31, 4))
        (tmp_path / f"{part}-labels-idx1-ubyte").write_bytes(struct.pack(">4BI", 0, 0, 8, 1, 0))
    with pytest.raises(DataError, match=r"16 bytes, but its header promises 18446744073709551632"):
        load_dataset(str(tmp_path))


@pytest.mark.parametrize("name", ["data.tsv.gz", "DATA.TSV"])
def test_tabs_between_columns_whatever_the_suffix_is_written_like(tmp_path: Path, name: str) -> None:
    FRAME.to_csv(tmp_path / name, index=False, sep="\t")
    assert load_dataset(str(tmp_path / name)).input_shape == (2,)


def test_csv_with_another_separator_or_encoding(tmp_path: Path) -> None:
    FRAME.to_csv(tmp_path / "data.csv", index=False, sep=";")
    with pytest.raises(DataError, match="its only column is called 'a;b;label'; a comma between columns is expected"):
        load_dataset(str(tmp_path / "data.csv"))
    named = FRAME.assign(label=["tea", "café", "tea"] * 4)
    named.to_csv(tmp_path / "data.csv", index=False, encoding="latin-1")
    with pytest.raises(DataError, match="row 2, column 'label': this is no UTF-8"):
        load_dataset(str(tmp_path / "data.csv"))


def test_a_class_number_without_a_name(tmp_path: Path) -> None:
    table = pa.Table.from_pandas(FRAME, preserve_index=False)
    with pa.OSFile(str(tmp_path / "data.arrow"), "wb") as file, pa.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data.arrow"}]}))
    features = {"label": {"_type": "ClassLabel", "names": ["tea", "milk"]}}
    (tmp_path / "dataset_info.json").write_text(json.dumps({"features": features}))
    with pytest.raises(DataError, match="row 3, column 'label': class 2, but there are names for 2"):
        load_dataset(str(tmp_path))
