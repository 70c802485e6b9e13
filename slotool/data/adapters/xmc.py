"""The text format of the Extreme Classification Repository, plain or gzip: sparse features, many labels.

First line ``examples features labels``, then per example ``l1,l2,… f:v f:v …``, everything numbered from 0. An example
without features is kept: a network answers it by its biases. One without labels is left out and counted.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from slotool.data.adapters.base import DataAdapter, Location
from slotool.data.dataset import LabelSets, MultiLabelDataset, MultiLabelSplit
from slotool.data.options import DataOptions
from slotool.errors import DataError

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

VALIDATION_SHARE = 0.1
SPLIT_SEED = 0
CHUNK_BYTES = 16 << 20
LARGEST_INDEX = 2**31 - 1
# File names, alone or after the set's name (``Wiki10_train.txt``).
TRAIN_NAMES, TEST_NAMES = ("train", "trn"), ("test", "tst")


@dataclass(frozen=True)
class LabelledFile:
    """Content of one file. ``x``: CSR float32 [n, features]; ``y``: labels; ``classes``: from the header."""

    x: csr_matrix
    y: LabelSets
    classes: int


class XmcAdapter(DataAdapter):
    name = "xmc"
    reads = "a folder of train.txt and test.txt (or .gz) of the Extreme Classification Repository's text format"

    def recognises(self, location: Location) -> bool:
        return location.path.is_dir() and find_files(location.path) is not None

    def open(self, location: Location, options: DataOptions) -> MultiLabelDataset:
        return load_xmc(location.path, location.text)


def load_xmc(folder: Path, source: str | None = None) -> MultiLabelDataset:
    """Load ``train.txt`` and ``test.txt``, or ``<name>_train.txt`` …, or ``.gz``, of ``folder``.

    A tenth of the training file, always the same, is held out as the validation split.
    Raises ``DataError`` naming file and line for what is missing, damaged or does not fit together.
    """
    paths = find_files(folder)
    if paths is None:
        raise DataError(f"{folder}: no train.txt and test.txt (or <name>_train.txt …, or .gz) in it")
    first, last = read_xmc(paths[0]), read_xmc(paths[1])
    shapes = [(examples.x.shape[1], examples.classes) for examples in (first, last)]
    if shapes[0] != shapes[1]:
        raise DataError(
            f"{paths[1]}: {shapes[1][0]} features and {shapes[1][1]} labels, "
            f"but {paths[0].name} has {shapes[0][0]} and {shapes[0][1]}"
        )
    learnt, test = _labelled(first), _labelled(last)
    held_out = round(VALIDATION_SHARE * len(learnt))
    if not held_out or not len(test):
        raise DataError(f"{folder}: {len(learnt)} training and {len(test)} test examples with labels are too few")
    order = np.random.default_rng(SPLIT_SEED).permutation(len(learnt))
    return MultiLabelDataset(
        name=folder.resolve().name,
        train=learnt.take(np.sort(order[held_out:])),
        validation=learnt.take(np.sort(order[:held_out])),
        test=test,
        classes=first.classes,
        source=source or str(folder.resolve()),
        unlabelled=len(first.y) + len(last.y) - len(learnt) - len(test),
    )


def find_files(folder: Path) -> tuple[Path, Path] | None:
    """Return the training and the test file in ``folder``, or None. Raises ``DataError`` for several pairs."""
    if not folder.is_dir():
        return None
    pairs = [(path, other) for path in sorted(folder.iterdir()) if (other := _test_file(path)) is not None]
    if len(pairs) > 1:
        names = ", ".join(train.name for train, _ in pairs)
        raise DataError(f"{folder}: several sets in one folder ({names}); give each a folder of its own")
    return pairs[0] if pairs else None


def _test_file(path: Path) -> Path | None:
    """Return the test file next to ``path`` when that is a training file."""
    stem, _, ending = path.name.partition(".")
    if ending not in ("txt", "txt.gz"):
        return None
    for train, test in zip(TRAIN_NAMES, TEST_NAMES, strict=True):
        if stem == train or stem.endswith(f"_{train}"):
            others = (path.with_name(f"{stem.removesuffix(train)}{test}.{end}") for end in (ending, "txt", "txt.gz"))
            return next((other for other in others if other.is_file()), None)
    return None


def read_xmc(path: Path) -> LabelledFile:
    """Return all examples of one file, in its order; the text is never in memory as a whole.

    Labels and features are sorted within an example, a feature that occurs twice is summed.
    Raises ``DataError`` naming file and line.
    """
    from scipy.sparse import csr_matrix

    reader = _Reader(path)
    reader.read()
    x = csr_matrix(
        (_joined(reader.values, np.float32), _joined(reader.columns, np.int32), _starts(reader.feature_counts)),
        shape=(reader.lines, reader.features),
    )
    x.sum_duplicates()
    ids = _joined(reader.labels, np.int32)
    y = csr_matrix((np.ones(len(ids), np.int8), ids, _starts(reader.label_counts)), (reader.lines, reader.classes))
    y.sum_duplicates()
    return LabelledFile(x, LabelSets(y.indptr.astype(np.int64), y.indices), reader.classes)


class _Reader:
    """Reader of a file in one pass, a chunk of whole lines at a time."""

    def __init__(self, path: Path):
        self.path = path
        self.lines = self.features = self.classes = 0
        self.labels: list[np.ndarray] = []
        self.columns: list[np.ndarray] = []
        self.values: list[np.ndarray] = []
        self.label_counts: list[np.ndarray] = []
        self.feature_counts: list[np.ndarray] = []

    def read(self) -> None:
        chunks = self._chunks()
        head, _, rest = next(chunks, b"").partition(b"\n")
        promised = self._read_header(head)
        self._parse(rest)
        for chunk in chunks:
            self._parse(chunk)
        self._drop_blank_end(promised)
        if self.lines != promised:
            raise DataError(f"{self.path}: {self.lines} examples, but its first line promises {promised}")

    def _chunks(self) -> Iterator[bytes]:
        """Yield the whole lines, each ended by a newline."""
        rest_of_line = b""
        try:
            with gzip.open(self.path) if self.path.suffix == ".gz" else self.path.open("rb") as file:
                # read1 hands over what can be read before it meets the damage, so that its line can be named.
                while chunk := file.read1(CHUNK_BYTES):
                    whole, newline, rest = chunk.rpartition(b"\n")
                    if newline:
                        yield rest_of_line + whole + newline
                        rest_of_line = rest
                    else:
                        rest_of_line += chunk
        except FileNotFoundError as error:
            raise DataError(f"{self.path}: no such file") from error
        except (OSError, EOFError, zlib.error) as error:
            last = self.lines + 1 if self.classes else 0
            raise DataError(f"{self.path}: cut short or damaged; it can be read up to line {last} ({error})") from error
        if rest_of_line:
            yield rest_of_line + b"\n"

    def _read_header(self, line: bytes) -> int:
        fields = line.split()
        if len(fields) != 3 or not all(field.isdigit() and len(field) < 19 for field in fields):
            raise DataError(f"{self.path}, line 1: expected 'examples features labels', found {_shown(line)}")
        examples, self.features, self.classes = map(int, fields)
        for count, what in ((self.features, "features"), (self.classes, "labels")):
            if not 0 < count <= LARGEST_INDEX:
                raise DataError(f"{self.path}, line 1: {count} {what} cannot be")
        return examples

    def _parse(self, chunk: bytes) -> None:
        from slotool.data.adapters import xmc_parsing

        text = np.frombuffer(chunk, dtype=np.uint8)
        colons, commas, newlines = (int(np.count_nonzero(text == ord(c))) for c in ":,\n")
        labels, columns = np.empty(commas + newlines, np.int32), np.empty(colons, np.int32)
        values = np.empty(colons, np.float32)
        label_counts, feature_counts = np.empty(newlines, np.int64), np.empty(newlines, np.int64)
        lines, label_count, feature_count, fault, at = xmc_parsing.parse_lines(
            text, self.features, self.classes, labels, columns, values, label_counts, feature_counts
        )
        if fault != xmc_parsing.NO_FAULT:
            token = chunk[at : at + 200].split()[0]
            raise DataError(f"{self.path}, line {self.lines + lines + 2}: {self._sentence(fault, token)}")
        self.labels.append(labels[:label_count])
        self.columns.append(columns[:feature_count])
        self.values.append(values[:feature_count])
        self.label_counts.append(label_counts)
        self.feature_counts.append(feature_counts)
        self.lines += lines

    def _sentence(self, fault: int, token: bytes) -> str:
        from slotool.data.adapters import xmc_parsing

        return {
            xmc_parsing.BAD_LABEL: f"{_shown(token)} is no list of labels",
            xmc_parsing.BAD_FEATURE: f"{_shown(token)} is no feature:value",
            xmc_parsing.BAD_VALUE: f"the value of {_shown(token)} is no finite number",
            xmc_parsing.LABEL_RANGE: f"a label of {_shown(token)} is beyond the {self.classes} that line 1 promises",
            xmc_parsing.FEATURE_RANGE: f"the feature of {_shown(token)} is beyond the {self.features} that line 1 "
            "promises",
        }[fault]

    def _drop_blank_end(self, promised: int) -> None:
        """Drop empty lines after the last promised example."""
        counts = [_joined(parts, np.int64) for parts in (self.label_counts, self.feature_counts)]
        if self.lines > promised and not any(count[promised:].any() for count in counts):
            counts = [count[:promised] for count in counts]
            self.lines = promised
        self.label_counts, self.feature_counts = [counts[0]], [counts[1]]


def _labelled(examples: LabelledFile) -> MultiLabelSplit:
    split = MultiLabelSplit(examples.x, examples.y)
    with_labels = np.flatnonzero(examples.y.counts)
    return split if len(with_labels) == len(split) else split.take(with_labels)


def _joined(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    """Return the parts as one array, and empty the list to free memory."""
    joined = np.concatenate([np.empty(0, dtype), *parts])
    parts.clear()
    return joined


def _starts(counts: list[np.ndarray]) -> np.ndarray:
    return np.concatenate([np.zeros(1, np.int64), np.cumsum(np.concatenate(counts))])


def _shown(text: bytes) -> str:
    return repr(text[:40].decode("utf-8", "replace"))
