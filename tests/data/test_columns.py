"""Examples of several named tensors."""

import numpy as np
import pytest

from slotool.data import Columns, concatenate
from slotool.errors import InputError

TOKENS = Columns({"ids": np.arange(12).reshape(4, 3), "text": np.array([b"a", b"bc", b"", b"def"], dtype=object)})


def test_rows_are_taken_from_every_array() -> None:
    taken = TOKENS[np.array([2, 0])]
    assert (len(TOKENS), len(taken), taken.names) == (4, 2, ("ids", "text"))
    assert taken.arrays["ids"].tolist() == [[6, 7, 8], [0, 1, 2]]
    assert taken.arrays["text"].tolist() == [b"", b"a"]
    assert TOKENS.nbytes == 12 * 8 + 6


def test_parts_join_where_one_example_has_the_same_shape() -> None:
    joined = concatenate([TOKENS[:1], TOKENS[1:]])
    assert isinstance(joined, Columns)
    assert all(np.array_equal(joined.arrays[name], TOKENS.arrays[name]) for name in TOKENS.names)
    wider = Columns({"ids": np.zeros((1, 4), dtype=np.int64), "text": np.array([b""], dtype=object)})
    assert wider.batch_key != TOKENS.batch_key
    with pytest.raises(InputError, match=r"ids int64\[1, 4\].* cannot be joined with .*ids int64\[4, 3\]"):
        concatenate([TOKENS, wider])
    with pytest.raises(InputError, match="one tensor cannot be joined with examples of several"):
        concatenate([TOKENS, np.zeros((1, 3))])


@pytest.mark.parametrize(
    ("arrays", "said"),
    [
        ({}, "at least one named tensor"),
        ({"a": np.zeros(2), "b": np.zeros((3, 1))}, "tensor b has 3 examples, a has 2"),
        ({"a": np.float32(1.0)}, "tensor a: a single value"),
    ],
)
def test_arrays_that_are_no_examples_are_refused(arrays: dict[str, np.ndarray], said: str) -> None:
    with pytest.raises(InputError, match=said):
        Columns(arrays)
