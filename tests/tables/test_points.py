"""Operating points: one canonical text per combination of settings."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slotool.errors import InputError
from slotool.tables import FULL, OperatingPoint

names = st.from_regex(r"[a-z][a-z0-9_]{0,8}", fullmatch=True)
texts = st.from_regex(r"[A-Za-z][A-Za-z0-9._:/-]{0,8}", fullmatch=True).filter(lambda t: not _reads_as_number(t))
values = st.one_of(st.integers(), st.floats(allow_nan=False, allow_infinity=False), texts)


def _reads_as_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@given(st.dictionaries(names, values, max_size=4))
def test_key_and_parse_are_inverse(settings: dict[str, int | float | str]) -> None:
    point = OperatingPoint.of(settings)
    assert OperatingPoint.parse(point.key) == point


def test_a_share_of_nodes_that_no_short_number_gives_is_found_again() -> None:
    point = OperatingPoint.of(k=8 / 300)
    assert OperatingPoint.parse(point.key) == point == OperatingPoint.of(k=8 / 300)


@pytest.mark.parametrize("text", ["GitHub(CNN)", "a%28", "%(", "100%25)", "((", "a,b=(c),d"])
def test_a_name_with_parentheses_is_found_again(text: str) -> None:
    point = OperatingPoint.of(version=text, k=2)
    assert OperatingPoint.parse(point.key) == point
    assert point.get("version") == text


def test_order_of_settings_does_not_matter() -> None:
    assert OperatingPoint.of(width=0.5, depth=2) == OperatingPoint.of(depth=2, width=0.5)
    assert OperatingPoint.of(width=0.5, depth=2).key == "depth=2,width=0.5"


def test_the_full_model_has_no_settings() -> None:
    assert OperatingPoint.parse("full") == FULL
    assert FULL.key == "full"


@pytest.mark.parametrize("text", ["", "k", "k=", "=1", "K=1", "k=a b", "k=1,,j=2"])
def test_what_is_no_point_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="operating point"):
        OperatingPoint.parse(text)
