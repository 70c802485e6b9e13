"""Errors of functions name arguments in Python, and options on the command line."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

import slotool
from slotool.commands.arguments import naming_options, typed
from slotool.errors import ArgumentError, InputError

FUNCTIONS = [name for name in slotool.__all__ if inspect.isfunction(getattr(slotool, name))]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            {"outcomes": "o.csv", "tolerance": [0.1]},
            "keyword argument 'tolerance'; did you mean 'tolerances'?",
        ),
        ({"outcomes": "o.csv", "colour": 1}, "got an unexpected keyword argument 'colour'"),
        ({}, "missing a required argument: 'outcomes'"),
    ],
)
def test_a_call_that_does_not_fit_names_the_function(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(TypeError) as raised:
        slotool.gen_rules(**arguments)
    assert str(raised.value).startswith("gen_rules() ")
    assert str(raised.value).endswith(sentence)


@typed
def scaled(by: float, *, times: int = 1) -> float:
    """Scaled."""
    return by * times


def test_a_function_stays_itself() -> None:
    assert scaled(2, times=3) == 6
    assert (scaled.__name__, scaled.__doc__) == ("scaled", "Scaled.")
    with pytest.raises(TypeError, match="missing a required argument"):
        scaled()  # type: ignore[call-arg]


@typed
def raising(text: str, *, slo_s: float = 1.0, min_accuracy: float = 0.0, force: bool = False) -> None:
    raise ArgumentError("force", text) if force else InputError(text)


@pytest.mark.parametrize(
    ("said", "read"),
    [
        ("add --force to begin again", "add force=True to begin again"),
        ("it contradicts --min-accuracy 0.9 and --slo", "it contradicts min_accuracy 0.9 and slo_s"),
        ("another --co-runners or a-b--c", "another co_runners or a-b--c"),
        ("next: slotool capture --keras net -o a.jsonl", "next: slotool capture --keras net -o a.jsonl"),
    ],
)
def test_sentences_name_arguments_in_python_and_options_on_the_command_line(said: str, read: str) -> None:
    with pytest.raises(InputError) as raised:
        raising(said)
    assert str(raised.value) == read
    with pytest.raises(ArgumentError) as wrong:
        raising(said, force=True)
    assert (str(wrong.value), wrong.value.problem) == (f"force: {read}", read)
    with naming_options(), pytest.raises(InputError) as raised:
        raising(said)
    assert str(raised.value) == said


def test_a_sentence_of_a_function() -> None:
    with pytest.raises(InputError, match="which output holds the answers\\? Name it with output; there are a"):
        slotool.family({"a": (lambda x: x, "x=FP32[-1,2] -> a=FP32[-1,2] b=FP32[-1,2]")}, "digits")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_every_function_checks_its_arguments(name: str) -> None:
    """Those without arguments have none to check."""
    function = getattr(slotool, name)
    assert hasattr(function, "__wrapped__") or not inspect.signature(function).parameters, f"{name}: @typed or @writes"
