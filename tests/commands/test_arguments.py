"""Errors of functions name arguments in Python, and options on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import pytest

import slotool
from slotool import profile
from slotool.commands.outputs import writes
from slotool.commands.values import at_least, inside
from slotool.errors import ArgumentError


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"outcomes": "o.csv", "tolerance": [0.1]},
            "keyword argument 'tolerance'; did you mean 'tolerances'?",
        ),
        ({"outcomes": "o.csv", "colour": 1}, "got an unexpected keyword argument 'colour'"),
        ({"colour": 1}, "got an unexpected keyword argument 'colour'"),
        ({}, "missing a required argument: 'outcomes'"),
    ],
)
def test_a_call_that_does_not_fit_names_the_function(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TypeError) as raised:
        slotool.gen_rules(**arguments)
    assert str(raised.value).startswith("gen_rules() ")
    assert str(raised.value).endswith(sentence)


@writes()
def scaled(by: float, *, times: int = 1) -> float:
    """Scaled."""
    return by * times


def test_a_function_stays_itself() -> None:
    assert scaled(2, times=3) == 6
    assert (scaled.__name__, scaled.__doc__) == ("scaled", "Scaled.")
    with pytest.raises(TypeError, match="missing a required argument"):
        scaled()  # type: ignore[call-arg]


def test_an_error_names_its_argument_in_python_and_its_option_on_the_command_line(slotool: Any) -> None:
    with pytest.raises(ArgumentError, match="batch_sizes: ") as raised:
        profile("nets.jsonl", "l.parquet", batch_sizes=[0])
    assert raised.value.argument == "batch_sizes"
    refused = slotool("profile", "solo", "nets.jsonl", "-o", "l.parquet", "--batch-size", "0")
    assert refused.exit_code == 2
    assert "--batch-size" in refused.stderr


@writes()
def bounded(
    count: Annotated[int, at_least(1)] | None = None,
    *,
    sizes: Annotated[int | Sequence[int], at_least(2)] | None = (2,),
    sure: Annotated[float, inside(0, 1)] = 0.5,
) -> list[object]:
    """Bounded."""
    return [count, sizes, sure]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"count": 0}, "count: 0 is too few, at least 1"),
        ({"sizes": 1}, "sizes: 1 is too few, at least 2"),
        ({"sizes": [3, 1]}, "sizes: 1 is too few, at least 2"),
        ({"sure": 1.0}, "sure: 1 does not lie between 0 and 1, both excluded"),
        ({"sure": float("nan")}, "sure: nan does not lie between 0 and 1, both excluded"),
    ],
)
def test_bounds_of_the_signature_hold_in_python_too(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        bounded(**arguments)
    assert str(raised.value) == sentence
    assert bounded(None, sizes=[2, 3], sure=0.1) == [None, [2, 3], 0.1]


def test_one_number_stands_for_a_list_of_one(tmp_path: Path) -> None:
    rows = [
        f"{i},{v},{int(i % 9 == 0)},0.{i % 7 + 1},{t}\n" for i in range(40) for v, t in (("small", 0.1), ("large", 0.4))
    ]
    outcomes = tmp_path / "o.csv"
    outcomes.write_text("example,version,error,confidence,latency_s\n" + "".join(rows))
    alone, listed = (slotool.gen_rules(outcomes, tolerances=given, method="naive") for given in (0.1, [0.1]))
    assert alone.document == listed.document
    assert [rule.tolerance for rule in alone.rules.rules] == [0.1, 0.1]


def test_a_report_is_written_as_a_page(tmp_path: Path) -> None:
    with pytest.raises(ArgumentError, match=r"out: .*r\.txt.*\.html"):
        slotool.report(tmp_path, tmp_path / "r.txt")
    assert not list(tmp_path.iterdir())


def test_an_error_of_an_argument_shows_it_as_the_help_does(slotool: Any) -> None:
    refused = slotool("family", "x", "--data", "digits", "-o", "f")
    assert refused.exit_code == 2
    assert "[NAME=]MODEL" in refused.stderr
    assert "VERSIONS" not in refused.stderr
    refused = slotool("predict")
    assert refused.exit_code == 2
    assert "networks: give exactly one of --keras" in refused.stderr
