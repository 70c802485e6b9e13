"""The same fruit in every form that an adapter reads: 60 examples of 3 classes, an image or four numbers each."""

from __future__ import annotations

import csv
import gzip
import io
import json
import struct
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
from PIL import Image

N, CLASSES = 60, ("apple", "fig", "pear")
X = np.random.default_rng(0).normal(size=(N, 4)).astype(np.float32)
Y = np.arange(N) % len(CLASSES)
PIXELS = np.random.default_rng(1).integers(0, 256, (N, 6, 8), dtype=np.uint8)


@dataclass(frozen=True)
class Case:
    """``write(folder)`` writes the set and returns where it is. ``adapter``: its name. ``input_shape``: of one example.
    ``options``: of ``load_dataset``."""

    adapter: str
    write: Callable[[Path], str]
    input_shape: tuple[int, ...]
    options: dict[str, Any] = field(default_factory=dict)


def frame() -> pd.DataFrame:
    return pd.DataFrame(X, columns=list("abcd")).assign(label=[CLASSES[y] for y in Y])


def png(pixels: np.ndarray) -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def write_parquet(folder: Path) -> str:
    frame().to_parquet(folder / "fruit.parquet", row_group_size=7)
    return str(folder / "fruit.parquet")


def write_lists(folder: Path) -> str:
    pd.DataFrame({"embedding": X.tolist(), "kind": Y}).to_parquet(folder / "lists.parquet", row_group_size=25)
    return f"{folder / 'lists.parquet'}:kind"


def write_csv(folder: Path) -> str:
    frame().to_csv(folder / "fruit.csv", index=False)
    return str(folder / "fruit.csv")


def write_tsv(folder: Path) -> str:
    with (folder / "fruit.tsv").open("w", newline="") as file:
        csv.writer(file, delimiter="\t").writerows([[*"abcd", "label"], *(frame().itertuples(index=False))])
    return str(folder / "fruit.tsv")


def write_npz(folder: Path) -> str:
    np.savez_compressed(folder / "fruit.npz", x=X, y=Y)
    return str(folder / "fruit.npz")


def write_npz_splits(folder: Path) -> str:
    np.savez(folder / "mnist.npz", x_train=PIXELS[:48], y_train=Y[:48], x_test=PIXELS[48:], y_test=Y[48:])
    return str(folder / "mnist.npz")


def write_idx(folder: Path) -> str:
    for part, rows in (("train", slice(0, 48)), ("t10k", slice(48, N))):
        for kind, array in (("images", PIXELS[rows]), ("labels", Y[rows].astype(np.uint8))):
            header = struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape)
            path = folder / f"{part}-{kind}-idx{array.ndim}-ubyte.gz"
            path.write_bytes(gzip.compress(header + array.tobytes()))
    return str(folder)


def write_images(folder: Path) -> str:
    return str(image_folder(folder / "photos"))


def write_split_images(folder: Path) -> str:
    for split, rows in (("train", range(0, 36)), ("val", range(36, 48)), ("test", range(48, N))):
        image_folder(folder / "photos" / split, rows)
    return str(folder / "photos")


def image_folder(folder: Path, rows: range = range(N)) -> Path:
    for i in rows:
        below = folder / CLASSES[Y[i]]
        below.mkdir(parents=True, exist_ok=True)
        (below / f"{i:03}.png").write_bytes(png(PIXELS[i]))
        (below / "notes.txt").write_text("not an image")
    return folder


def write_arrow(folder: Path) -> str:
    saved_arrow(folder / "saved", {"x": X.tolist(), "label": Y})
    return str(folder / "saved")


def write_arrow_splits(folder: Path) -> str:
    images = [{"bytes": png(pixels), "path": None} for pixels in PIXELS]
    (folder / "saved").mkdir()
    (folder / "saved" / "dataset_dict.json").write_text(json.dumps({"splits": ["train", "test", "unsupervised"]}))
    saved_arrow(folder / "saved" / "train", {"image": images[:48], "label": Y[:48]})
    saved_arrow(folder / "saved" / "test", {"image": images[48:], "label": Y[48:]})
    return str(folder / "saved")


def saved_arrow(folder: Path, columns: dict[str, Any], batch: int = 17) -> None:
    """As ``save_to_disk`` of Hugging Face's datasets writes it."""
    folder.mkdir()
    table = pa.table(columns)
    path = str(folder / "data-00000-of-00001.arrow")
    with pa.OSFile(path, "wb") as file, pa.ipc.new_stream(file, table.schema) as stream:
        stream.write_table(table, max_chunksize=batch)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": "data-00000-of-00001.arrow"}]}))
    features = {name: {"_type": "Value"} for name in columns} | {"label": {"names": CLASSES, "_type": "ClassLabel"}}
    (folder / "dataset_info.json").write_text(json.dumps({"features": features}))


def made() -> dict[str, np.ndarray]:
    """What ``factory`` cases name."""
    return {"x": X, "y": np.array(CLASSES)[Y]}


CASES: dict[str, Case] = {
    "digits": Case("digits", lambda folder: "digits", (1, 8, 8)),
    "parquet": Case("parquet", write_parquet, (4,)),
    "parquet with lists": Case("parquet", write_lists, (4,)),
    "csv": Case("csv", write_csv, (4,)),
    "tsv": Case("csv", write_tsv, (4,)),
    "npz": Case("npz", write_npz, (4,)),
    "npz of splits": Case("npz", write_npz_splits, (6, 8)),
    "idx": Case("idx", write_idx, (1, 6, 8)),
    "images": Case("images", write_images, (3, 6, 8)),
    "images of splits": Case("images", write_split_images, (3, 6, 8)),
    "datasets": Case("datasets", write_arrow, (4,)),
    "datasets of images": Case("datasets", write_arrow_splits, (3, 6, 8)),
    "factory": Case("factory", lambda folder: "tests.data.dataset_cases:made", (4,)),
}
