"""The adapter, held to slotool's conformance suite: of a model that has to be opened from a file first."""

from pathlib import Path

import pytest
from slotool_example.model import LinearModel

from slotool.errors import InputError
from slotool.testing.models import ModelConformance


class TestLinear(ModelConformance):
    make = staticmethod(lambda: LinearModel(Path(__file__).parent / "two.linear"))


def test_a_file_that_is_no_table_is_named(tmp_path):
    (tmp_path / "words.linear").write_text("one,two\n")
    with pytest.raises(InputError, match=r"words\.linear: no table"):
        LinearModel(tmp_path / "words.linear")
