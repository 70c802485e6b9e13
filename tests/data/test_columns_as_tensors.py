"""Columns of a table as the tensors that a model takes; labels of every kind; values that cannot be used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from slotool.data import Columns, LabelSets, load_dataset, load_multilabel
from slotool.data.columns import RaggedColumns
from slotool.data.options import DataOptions, DataSource, ImageOptions, parse_inputs
from slotool.errors import DataError, InputError
from slotool.models import TensorSpec
from tests.data.dataset_cases import png, saved_arrow

N = 10
LENGTHS = np.arange(N) % 3 + 1
ROWS = pd.DataFrame(
    {
        "age": np.arange(N),
        "height": np.linspace(1.5, 2.0, N),
        "word": [f"w{i}" for i in range(N)],
        "zip": [f"0{i}" for i in range(N)],
        "ids": [list(range(4)) for _ in range(N)],
        "tokens": [list(range(n)) for n in LENGTHS],
        "picture": [png(np.full((4, 6), 20 * i, np.uint8)) for i in range(N)],
        "kind": np.arange(N) % 2,
    }
)


def specs(*texts: str) -> tuple[TensorSpec, ...]:
    return tuple(TensorSpec.parse(text) for text in texts)


@pytest.fixture
def table(tmp_path: Path) -> str:
    ROWS.to_parquet(tmp_path / "rows.parquet")
    return f"{tmp_path / 'rows.parquet'}:kind"


def first(x: Any) -> dict[str, np.ndarray]:
    taken = x[:1]
    assert isinstance(taken, Columns)
    return taken.arrays


def test_each_tensor_takes_the_column_of_its_name(table: str) -> None:
    tensors = specs("ids=INT64[-1,-1]", "age=FP32[-1,1]", "word=BYTES[-1]", "picture=UINT8[-1,2,3,3]")
    x = load_dataset(table, tensors=tensors).train.x
    assert isinstance(x, Columns)
    found = {name: (array.dtype, array.shape[1:]) for name, array in x.arrays.items()}
    assert found == {
        "ids": (np.int64, (4,)),
        "age": (np.float32, (1,)),
        "word": (np.object_, ()),
        "picture": (np.uint8, (2, 3, 3)),
    }
    assert x.arrays["word"][0] == b"w%d" % x.arrays["age"][0, 0]


def test_columns_become_the_tensors_that_they_are_said_to_be(table: str) -> None:
    inputs = parse_inputs(["age=x", "height=x", "word=text"])
    x = load_dataset(table, inputs=inputs, tensors=specs("text=BYTES[-1,1]", "x=FP64[-1,2]")).train.x
    assert {name: array.shape[1:] for name, array in x.arrays.items()} == {"text": (1,), "x": (2,)}
    assert x.arrays["x"].dtype == np.float64
    one = load_dataset(table, inputs={"age": "x", "height": "x"}).train.x
    assert (one.dtype, one.shape[1:]) == (np.float32, (2,))
    assert np.array_equal(one, x.arrays["x"].astype(np.float32))


def test_whole_numbers_stay_whole_for_one_tensor_too(table: str) -> None:
    x = load_dataset(table, tensors=specs("ids=INT32[-1,4]")).train.x
    assert first(x)["ids"].dtype == np.int32
    x = load_dataset(table, tensors=specs("ids=FP32[-1,4]")).train.x
    assert isinstance(x, np.ndarray)


@pytest.mark.parametrize("form", ["parquet", "csv", "npz"])
def test_float64_is_not_rounded_through_float32(tmp_path: Path, form: str) -> None:
    path, numbers = tmp_path / f"big.{form}", np.array([2**24, 2**24 + 1] * 5)
    if form == "npz":
        np.savez(path, x=numbers[:, None].astype(np.float64), label=numbers)
    else:
        rows = pd.DataFrame({"t": numbers, "label": numbers})
        rows.to_parquet(path) if form == "parquet" else rows.to_csv(path, index=False)
    train = load_dataset(str(path), tensors=(TensorSpec("features", "FP64", (-1, 1)),)).train
    taken = train.x.arrays["features"]
    assert taken.dtype == np.float64
    assert (taken[:, 0] == 2**24 + train.y).all()


@pytest.mark.parametrize("stored", [False, True])
def test_sequences_of_different_lengths_are_taken_one_at_a_time(table: str, stored: bool) -> None:
    x = load_dataset(table, tensors=specs("tokens=INT64[-1,-1]"), stored=stored).train.x
    everything = x[:]
    assert isinstance(everything, RaggedColumns)
    assert len(everything) == len(x)
    for row in range(len(x)):
        tokens = first(x[row : row + 1])["tokens"]
        assert tokens.tolist() == [list(range(tokens.shape[1]))]


def test_text_of_a_csv_file_stays_text_where_a_model_takes_text(tmp_path: Path) -> None:
    ROWS[["zip", "age", "kind"]].to_csv(tmp_path / "rows.csv", index=False)
    name = f"{tmp_path / 'rows.csv'}:kind"
    x = load_dataset(name, tensors=specs("zip=BYTES[-1,1]", "age=INT64[-1]")).train.x
    assert first(x)["zip"][0, 0].startswith(b"0")


@pytest.mark.parametrize(
    ("column", "target", "y", "labels"),
    [
        ([2, 7, 2, 5], "class", [0, 2, 0, 1], ("2", "5", "7")),
        (["b", "a", "b", "b"], "class", [1, 0, 1, 1], ("a", "b")),
        ([1, 2, 3, 4.5], "numbers", [1, 2, 3, 4.5], ()),
        ([[1, 2], [3, 4], [5, 6], [7, 8]], "numbers", [[1, 2], [3, 4], [5, 6], [7, 8]], ()),
        (["a b", "", "c", "é"], "text", [b"a b", b"", b"c", "é".encode()], ()),
        ([["x", "z"], [], ["y"], ["z", "z"]], "sets", [[0, 2], [], [1], [2]], ("x", "y", "z")),
        ([[1, 0, 1], [0, 0, 0], [0, 1, 0], [0, 0, 1]], "sets", [[0, 2], [], [1], [2]], ("0", "1", "2")),
    ],
)
def test_labels_are_what_the_caller_asks_for(tmp_path: Path, column: list, target: str, y: list, labels: tuple) -> None:
    rows = pd.DataFrame({"a": np.arange(4), "target": column, "split": ["train"] * 4})
    rows.to_parquet(tmp_path / "rows.parquet")
    data = load_dataset(str(tmp_path / "rows.parquet"), target=target)
    assert (data.labels, data.target, data.classes) == (labels, target, len(labels))
    found = data.train.y
    if target == "sets":
        assert isinstance(found, LabelSets)
        assert [found.of(i).tolist() for i in range(4)] == y
        assert found.matrix(3).sum() == sum(map(len, y))
        assert load_multilabel(str(tmp_path / "rows.parquet")).train.y.counts.tolist() == list(map(len, y))
    else:
        assert found.tolist() == y


def test_rows_without_a_class_are_left_out(tmp_path: Path) -> None:
    """Hugging Face marks them by −1, as all of a test split whose labels are kept back."""
    saved_arrow(
        tmp_path / "saved", {"a": np.arange(30.0), "label": np.where(np.arange(30) < 20, np.arange(30) % 3, -1)}
    )
    data = load_dataset(str(tmp_path / "saved"))
    values = np.concatenate([split.x for split in data.splits.values()])
    assert sorted(values[:, 0].tolist()) == list(range(20))


BIG = {"age": [1e39] + [0.0] * (N - 1)}
BAD: dict[str, tuple[dict[str, Any], tuple[str, ...], dict[str, Any], str]] = {
    "missing column": ({}, ("ids=INT64[-1,-1]", "mask=INT64[-1,-1]"), {}, "as input 'mask'; .*COLUMN=mask"),
    "unknown column": ({}, (), {"inputs": {"weight": "x"}}, "no column is called 'weight'; there are age, height"),
    "text for numbers": ({}, ("word=FP32[-1,1]",), {}, r"column 'word' holds text, input 'word' takes FP32\[-1, 1\]"),
    "numbers for text": ({}, ("age=BYTES[-1]",), {}, "column 'age' holds int64, input 'age' takes BYTES"),
    "fractions for integers": ({}, ("height=INT64[-1]",), {}, "'height' holds float64, input 'height' takes INT64"),
    "beyond an integer": ({"age": 300}, ("age=UINT8[-1]",), {}, "row 1, column 'age': 300 is beyond what uint8 holds"),
    "below an integer": ({"age": -1}, ("age=UINT64[-1]",), {}, "row 1, column 'age': -1 is beyond what uint64 holds"),
    "beyond float32": (BIG, ("age=FP32[-1,1]",), {}, r"row 1, column 'age': 1e\+39 is beyond what float32 holds"),
    "beyond float16": ({"age": 1e6}, ("age=FP16[-1]", "ids=INT64[-1,4]"), {}, "is beyond what float16 holds"),
    "NaN": ({"height": np.nan}, ("height=FP32[-1,1]",), {}, "row 1, column 'height': (nan is|it has) no"),
    "infinity": ({"height": np.inf}, ("height=FP32[-1,1]",), {}, "row 1, column 'height': inf is no finite number"),
    "ragged rows": ({}, ("tokens=INT64[-1,2]",), {}, r"row 1, column 'tokens': .*, input 'tokens' takes \[?2"),
    "too wide": ({}, ("ids=INT64[-1,5]",), {}, r"'ids': an example of shape \[4\], input 'ids' takes \[5\]"),
    "too many columns": ({}, ("x=FP32[-1,3]",), {"inputs": {"age": "x", "height": "x"}}, r"2 columns become \[2\]"),
    "damaged image": ({"picture": b"\x89PNG\r\n\x1a\n"}, ("picture=FP32[-1,3,4,4]",), {}, "'picture': .*cut short"),
    "no image": ({}, ("word=FP32[-1,3,4,4]",), {}, "column 'word': neither a PNG nor a JPEG image"),
    "image of other channels": ({}, ("picture=FP32[-1,4,4,4]",), {}, "1 or 3 channels, not 4"),
    "label of lists": ({"kind": ROWS["ids"].tolist()}, (), {}, r"label column 'kind' holds int64\[4\], one class per"),
    "label that is NaN": ({"kind": np.nan}, (), {}, "row 1, column 'kind': (the label is no finite|it has no value)"),
    "text for regression": ({"kind": "a"}, (), {"target": "numbers"}, "label column 'kind' holds text, numbers are"),
    "dates": ({"age": pd.Timestamp(0)}, ("age=FP32[-1]",), {}, "column 'age' holds timestamp.*features are numbers"),
    "image options of no images": ({}, ("age=FP32[-1]",), {"images": ImageOptions(size=(2, 2))}, "int64, no images"),
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD)
def test_bad_input_is_one_sentence(tmp_path: Path, bad: str) -> None:
    changes, tensors, options, sentence = BAD[bad]
    ROWS.assign(split="train", **changes).to_parquet(tmp_path / "rows.parquet")
    with pytest.raises(DataError, match=f"rows.parquet.*{sentence}") as raised:
        load_dataset(f"{tmp_path / 'rows.parquet'}:kind", tensors=specs(*tensors), **options)
    assert "\n" not in str(raised.value)


def test_what_needs_one_tensor_says_so(table: str) -> None:
    data = load_dataset(table, tensors=specs("ids=INT64[-1,4]", "age=INT64[-1]"))
    with pytest.raises(DataError, match=r"one tensor of floating-point .* have ids \(int64\[4\]\), age \(int64\)"):
        data.input_shape  # noqa: B018


@pytest.mark.parametrize(
    ("form", "text", "sentence"),
    [
        ("csv", "a,label\n1,x\n2\n", "Expected 2 columns, got 1"),
        ("csv", "a,a,label\n1,2,x\n", "two columns are called 'a'"),
        ("csv", "", "cannot be read"),
        ("images", "", "class folder holds no image"),
    ],
)
def test_files_that_are_not_what_they_should_be(tmp_path: Path, form: str, text: str, sentence: str) -> None:
    path = tmp_path / "rows.csv"
    if form == "images":
        path = tmp_path / "photos"
        for folder in ("full", "empty"):
            (path / folder).mkdir(parents=True)
        (path / "full" / "a.png").write_bytes(png(np.zeros((2, 2), np.uint8)))
    else:
        path.write_text(text)
    with pytest.raises(DataError, match=sentence):
        load_dataset(str(path))


def test_a_damaged_image_of_a_folder_is_named(tmp_path: Path) -> None:
    for kind in ("cat", "dog"):
        (tmp_path / kind).mkdir()
        (tmp_path / kind / "1.png").write_bytes(png(np.zeros((4, 4), np.uint8)))
    (tmp_path / "dog" / "2.png").write_bytes(png(np.zeros((4, 4), np.uint8))[:-30])
    with pytest.raises(DataError, match=r"dog/2.png, column 'image': the image cannot be decoded: it is cut short"):
        load_dataset(str(tmp_path))


def test_images_are_scaled_and_laid_out_as_asked(tmp_path: Path) -> None:
    for kind, value in (("cat", 51), ("dog", 204)):
        (tmp_path / kind).mkdir()
        for i in range(5):
            colours = np.full((4, 4, 3), (value, 0, 0), np.uint8)
            (tmp_path / kind / f"{i}.png").write_bytes(png(colours))
    asked = ImageOptions.parse("2x3:0.1,0,0/0.5:hwc")
    data = load_dataset(str(tmp_path), images=asked)
    assert data.input_shape == (2, 3, 3)
    for x, y in zip(data.train.x, data.train.y, strict=True):
        assert x[0, 0] == pytest.approx([(0.8 if y else 0.2) * 2 - 0.2, 0, 0], abs=1e-6)
    swapped = load_dataset(str(tmp_path), images=ImageOptions(size=(2, 2), bgr=True)).train
    assert swapped.x[0, :, 0, 0].tolist() == pytest.approx([0, 0, 0.8 if swapped.y[0] else 0.2], abs=1e-6)


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        (lambda: ImageOptions.parse("big"), "images 'big': a size such as 224"),
        (lambda: ImageOptions.parse("0"), "1 to 16384"),
        (lambda: ImageOptions.parse("8:half"), "images 'half': .*unit, signed, imagenet"),
        (lambda: ImageOptions.parse("8:0/0"), "std is above 0"),
        (lambda: ImageOptions.parse("0,0/1"), "MEAN/STD"),
        (lambda: ImageOptions.parse("chw:hwc"), "layout is given twice"),
        (lambda: ImageOptions(layout="cwh"), "neither chw nor hwc"),
        (lambda: ImageOptions(channels=2), "2 channels"),
        (lambda: parse_inputs(["ids"]), "not COLUMN=TENSOR"),
        (lambda: parse_inputs(["a=x", "a=y"]), "two inputs"),
        (lambda: DataOptions(target="klass"), "target 'klass'"),
        (lambda: DataOptions(inputs={"a": "z"}, tensors=specs("x=FP32[-1]")), "'z'; the model's inputs are x"),
        (lambda: DataOptions.of_document({"images": 3}), "no options of a data set"),
        (lambda: DataSource.of({"name": "a", "images": 3}), "no name of a data set, nor"),
    ],
)
def test_options_that_cannot_be_are_refused(made: Any, sentence: str) -> None:
    with pytest.raises(InputError, match=sentence):
        made()


def test_a_source_is_kept_as_json_and_loads_the_same_again(tmp_path: Path) -> None:
    source = DataSource("a", "kind", {"a": "x"}, ImageOptions.parse("2x3:imagenet:hwc:grey:bgr"))
    assert DataSource.of(json.loads(json.dumps(source.document()))) == source
    assert DataSource("digits").document() == "digits"
    options = DataOptions("kind", "sets", {"a": "x"}, images=source.images)
    assert DataOptions.of_document(json.loads(json.dumps(options.document()))) == options
    ROWS.to_parquet(tmp_path / "rows.parquet")
    data = load_dataset(DataSource(str(tmp_path / "rows.parquet"), "kind", {"height": "x"}))
    again = load_dataset(json.loads(json.dumps(data.source)))
    assert np.array_equal(again.test.x, data.test.x)
    assert again.input_shape == (1,)


@pytest.mark.parametrize("target", ["class", "sets"])
def test_classes_have_the_numbers_that_the_model_knows_them_by(tmp_path: Path, target: str) -> None:
    kinds = ["fig", "apple", "fig"] if target == "class" else [["pear", "fig"], [], ["fig"]]
    rows = pd.DataFrame({"a": [0.0, 1.0, 2.0], "kind": kinds, "split": "test"})
    rows.to_parquet(tmp_path / "rows.parquet")
    source = DataSource(str(tmp_path / "rows.parquet"), "kind")
    data = load_dataset(source, target=target, classes=("pear", "fig", "apple"))
    assert data.labels == ("pear", "fig", "apple")
    found = data.test.y.tolist() if target == "class" else [data.test.y.of(i).tolist() for i in range(3)]
    assert found == ([1, 2, 1] if target == "class" else [[0, 1], [], [1]])
    with pytest.raises(DataError, match="row 1, column 'kind': class 'fig', which the model does not know"):
        load_dataset(source, target=target, classes=("pear", "apple"))


@pytest.mark.parametrize("stored", [False, True])
def test_everything_is_all_splits(table: str, stored: bool) -> None:
    tensors = specs("age=INT64[-1]", "tokens=INT64[-1,-1]")
    whole = load_dataset(table, tensors=tensors, stored=stored).everything
    assert sorted(whole.x[i : i + 1].arrays["age"][0] for i in range(N)) == list(range(N))
    assert [whole.x[i : i + 1].arrays["age"][0] % 2 for i in range(N)] == whole.y.tolist()
