"""The Extreme Classification Repository's text format: what is written is read; damage is named by its line."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slotool.data import LabelSets, load_dataset, load_multilabel
from slotool.data.adapters import xmc
from slotool.errors import DataError

FEATURES, CLASSES = 50, 30
# As (labels, feature: value); any of them may be missing.
EXAMPLES = st.lists(
    st.tuples(
        st.lists(st.integers(0, CLASSES - 1), unique=True, max_size=6),
        st.dictionaries(
            st.integers(0, FEATURES - 1), st.floats(allow_nan=False, allow_infinity=False, width=32), max_size=6
        ),
    ),
    max_size=20,
)
TINY = "3 4 5\n0,2 1:0.5 3:1\n4 0:2\n1 2:-3e-1\n"


def text_of(examples: list[tuple[list[int], dict[int, float]]]) -> str:
    lines = [f"{len(examples)} {FEATURES} {CLASSES}"]
    for labels, values in examples:
        lines.append(" ".join([",".join(map(str, labels)), *(f"{f}:{np.float32(v)}" for f, v in values.items())]))
    return "\n".join(lines) + "\n"


def write(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


def write_set(folder: Path, train: str = "train.txt", test: str = "test.txt.gz") -> Path:
    """20 examples, two of them without labels, and 2 to test with."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [f"{i % CLASSES} {i % FEATURES}:1" for i in range(18)]
    write(folder / train, "\n".join([f"20 {FEATURES} {CLASSES}", *lines, " 4:1", "5:1 6:1", ""]))
    write(folder / test, f"2 {FEATURES} {CLASSES}\n1 2:0.25\n2 \n")
    return folder


@settings(max_examples=60)
@given(EXAMPLES, st.sampled_from(["a.txt", "a.txt.gz"]), st.integers(1, 200))
def test_what_is_written_is_read(tmp_path_factory: pytest.TempPathFactory, examples, name: str, chunk: int) -> None:
    path = write(tmp_path_factory.mktemp("xmc") / name, text_of(examples))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(xmc, "CHUNK_BYTES", chunk)
        read = xmc.read_xmc(path)
    assert (read.x.shape, read.classes) == ((len(examples), FEATURES), CLASSES)
    assert (read.x.dtype, read.y.indices.dtype) == (np.float32, np.int32)
    assert len(read.y) == len(examples)
    for i, (labels, values) in enumerate(examples):
        assert read.y.of(i).tolist() == sorted(labels)
        row = read.x[i]
        assert dict(zip(row.indices.tolist(), row.data.tolist(), strict=True)) == values


@pytest.mark.parametrize(
    "number", ["1", "+1.5", "-0.25", ".5", "5.", "1e3", "2.5E-7", "123456789012345678901", "1e-60"]
)
def test_numbers_are_read_as_python_reads_them(tmp_path: Path, number: str) -> None:
    read = xmc.read_xmc(write(tmp_path / "a.txt", f"1 2 2\r\n0\t 1:{number} \r\n"))
    assert read.x[0, 1] == np.float32(number)


def test_features_are_sorted_and_a_repeated_one_is_summed(tmp_path: Path) -> None:
    read = xmc.read_xmc(write(tmp_path / "a.txt", "1 9 9\n7,2,7 5:1 3:0.5 5:2\n"))
    assert (read.x.indices.tolist(), read.x.data.tolist()) == ([3, 5], [0.5, 3.0])
    assert read.y.of(0).tolist() == [2, 7]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("", "line 1: expected 'examples features labels', found ''"),
        ("0,1 3:1\n", "line 1: expected 'examples features labels', found '0,1 3:1'"),
        ("3 0 5\n", "line 1: 0 features cannot be"),
        (TINY.replace("3 4 5", "4 4 5"), "3 examples, but its first line promises 4"),
        (TINY + "1 1:1\n", "4 examples, but its first line promises 3"),
        (TINY.replace("4 0:2", "4 4:2"), "line 3: the feature of '4:2' is beyond the 4 that line 1 promises"),
        (TINY.replace("4 0:2", "9,5 0:2"), "line 3: a label of '9,5' is beyond the 5 that line 1 promises"),
        (TINY.replace("-3e-1", "nan"), "line 4: the value of '2:nan' is no finite number"),
        (TINY.replace("-3e-1", "1e39"), "line 4: the value of '2:1e39' is no finite number"),
        (TINY.replace("-3e-1", "1.2.3"), "line 4: the value of '2:1.2.3' is no finite number"),
        (TINY.replace("-3e-1", ""), "line 4: the value of '2:' is no finite number"),
        (TINY.replace("3:1", "3"), "line 2: '3' is no feature:value"),
        (TINY.replace("3:1", "-3:1"), "line 2: '-3:1' is no feature:value"),
        (TINY.replace("0,2", "0,,2"), "line 2: '0,,2' is no list of labels"),
        (TINY.replace("0,2", "0,2x"), "line 2: '2x' is no list of labels"),
        (TINY.replace("0,2", "99999999999999999999"), "line 2: a label of '99999999999999999999' is beyond"),
    ],
)
def test_damage_is_named_by_file_and_line(tmp_path: Path, text: str, sentence: str) -> None:
    path = write(tmp_path / "damaged.txt", text)
    with pytest.raises(DataError) as caught:
        xmc.read_xmc(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_torn_or_false_gzip_is_refused(tmp_path: Path) -> None:
    lines = [f"{i % CLASSES} {i % FEATURES}:{i}" for i in range(40_000)]
    whole = gzip.compress("\n".join([f"40000 {FEATURES} {CLASSES}", *lines, ""]).encode())
    path = tmp_path / "torn.txt.gz"
    for torn, least in ((whole[:-9], 39_000), (whole[: len(whole) // 2], 15_000), (whole[:9000] + whole[9500:], 500)):
        path.write_bytes(torn)
        with pytest.raises(DataError, match=r"torn\.txt\.gz") as caught:
            xmc.read_xmc(path)
        assert int(re.findall(r"line (\d+)", str(caught.value))[0]) > least, caught.value
    path.write_bytes(b"no gzip at all")
    with pytest.raises(DataError, match="cut short or damaged; it can be read up to line 0"):
        xmc.read_xmc(path)


def test_empty_lines_count_as_examples_only_while_some_are_missing(tmp_path: Path) -> None:
    read = xmc.read_xmc(write(tmp_path / "a.txt", "2 3 3\n\n1 2:1\n\n\n"))
    assert (read.x.shape[0], read.y.counts.tolist()) == (2, [0, 1])


@pytest.mark.parametrize(
    "names", [("train.txt", "test.txt.gz"), ("Wiki10_train.txt.gz", "Wiki10_test.txt.gz"), ("trn.txt", "tst.txt")]
)
def test_a_set_is_split_without_overlap_and_always_alike(tmp_path: Path, names: tuple[str, str]) -> None:
    first, second = (load_multilabel(str(write_set(tmp_path / "birds", *names))) for _ in range(2))
    assert (first.name, first.classes, first.input_shape, first.sparse) == ("birds", CLASSES, (FEATURES,), True)
    assert (len(first.train), len(first.validation), len(first.test), first.unlabelled) == (16, 2, 2, 2)
    seen = np.concatenate([first.train.y.indices, first.validation.y.indices])
    assert sorted(seen.tolist()) == list(range(18))
    assert np.array_equal(first.validation.y.indices, second.validation.y.indices)
    assert first.test.x[1].nnz == 0, "an example without features is kept"


def test_a_set_is_found_by_name_in_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_set(tmp_path / "xmc" / "birds")
    monkeypatch.setenv("SLOTOOL_DATA_DIR", str(tmp_path))
    found = load_multilabel("birds")
    assert found.source == "birds"
    assert load_multilabel(str(tmp_path / "xmc" / "birds")).source == str(tmp_path / "xmc" / "birds")
    with pytest.raises(DataError, match=r"no multi-label data set 'fish'.*holds birds"):
        load_multilabel("fish")
    with pytest.raises(DataError, match="birds has any number of labels per example"):
        load_dataset("birds")
    with pytest.raises(DataError, match="digits has one class per example"):
        load_multilabel("digits")


def test_files_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    folder = write_set(tmp_path / "birds")
    write(folder / "test.txt.gz", "1 9 9\n1 1:1\n")
    with pytest.raises(DataError, match="9 features and 9 labels, but train"):
        load_multilabel(str(folder))
    write_set(folder, "other_train.txt", "other_test.txt")
    with pytest.raises(DataError, match="several sets in one folder"):
        load_multilabel(str(folder))
    write(tmp_path / "train.txt", "1 9 9\n1 1:1\n")
    write(tmp_path / "test.txt", "1 9 9\n1 1:1\n")
    with pytest.raises(DataError, match="are too few"):
        load_multilabel(str(tmp_path))


@given(st.lists(st.sets(st.integers(0, 9)), min_size=1, max_size=8), st.lists(st.integers(0, 7), max_size=8), st.data())
def test_label_sets_take_and_contain(sets: list[set[int]], chosen: list[int], data: st.DataObject) -> None:
    ids = [label for labels in sets for label in sorted(labels)]
    labels = LabelSets(np.cumsum([0, *map(len, sets)]), np.array(ids, dtype=np.int32))
    picked = np.array([i % len(sets) for i in chosen], dtype=np.int64)
    taken = labels.take(picked)
    assert [set(taken.of(i).tolist()) for i in range(len(taken))] == [sets[i] for i in picked]
    answers = np.array(
        data.draw(st.lists(st.tuples(*[st.integers(0, 12)] * 3), min_size=len(sets), max_size=len(sets)))
    )
    assert labels.contain(answers).tolist() == [
        [int(a) in s for a in row] for row, s in zip(answers, sets, strict=True)
    ]


def test_the_tate_set(data_dir: Path) -> None:
    data = load_multilabel("tate-16k", data_dir)
    assert (len(data.train) + len(data.validation), len(data.test)) == (49_980, 8_821)
    assert (data.input_shape, data.classes, data.unlabelled) == ((11_790,), 16_455, 0)
    assert data.train.y.counts.mean() == pytest.approx(6.14, abs=0.05)
