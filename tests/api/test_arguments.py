"""Values of another type than a function takes end in one sentence that names the argument."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import slotool
from slotool.api.arguments import _fits, naming_options, typed
from slotool.errors import ArgumentError, InputError

FUNCTIONS = [name for name in slotool.__all__ if inspect.isfunction(getattr(slotool, name))]


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda: slotool.gen_rules(pd.DataFrame({"a": [1]})),
            "outcomes: a DataFrame is given, str | Path | Out",
        ),
        (lambda: slotool.gen_rules("o.csv", tolerances="0:0.1"), "tolerances: '0:0.1' is given, Sequence[float] is"),
        (lambda: slotool.gen_rules("o.csv", tolerances=[0.1, "a"]), "tolerances: [0.1, 'a'] is given"),
        (lambda: slotool.estimate_rules(3), "outcomes: 3 is given"),
        (lambda: slotool.family({"a": "a.onnx"}, "d.csv", task=None), "task: None is given, str is expected"),
        (lambda: slotool.family({"a": "a.onnx"}, "d.csv", cost={"a": "x"}), "cost: {'a': 'x'} is given"),
        (lambda: slotool.family({"a": "a.onnx"}, "d.csv", repeats="3"), "repeats: '3' is given, int is expected"),
        (lambda: slotool.evaluate("m", out=7), "out: 7 is given"),
        (lambda: slotool.simulate("p.csv", ["a"], deadline_ms=1), "arrivals: ['a'] is given"),
        (lambda: slotool.load(None), "path: None is given, str | Path is expected"),
        (lambda: slotool.train_mlp(hidden=64), "hidden: 64 is given"),
    ],
)
def test_a_wrong_type_is_one_sentence(call: Callable[[], Any], sentence: str) -> None:
    with pytest.raises(ArgumentError) as raised:
        call()
    assert str(raised.value).startswith(sentence)
    assert "\n" not in str(raised.value)


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


@pytest.mark.parametrize(
    ("annotation", "value"),
    [("int", np.int64(3)), ("float", 3), ("float", np.float32(0.5)), ("float | None", None),
     ("Sequence[int]", range(3)), ("Sequence[float]", np.arange(3.0)), ("FilePath | Frame", Path("a")),
     ("FilePath | DataFrame", pd.DataFrame()),
     ("Mapping[str, float] | None", {"a": 1}), ("Reporting", print), ("Literal['a', 'b']", "c"),
     ("tuple[int, int]", (1, 2)), ("Sequence[int | None]", [1, None]), ("str | DataSource", {"name": "digits"})],
)  # fmt: skip
def test_what_a_function_takes_passes(annotation: str, value: Any) -> None:
    from slotool.api import family

    assert _fits(annotation, value, vars(family))


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


@pytest.mark.parametrize("name", FUNCTIONS)
def test_what_only_type_checkers_import_is_a_class(name: str) -> None:
    """Its name is looked for among an argument's classes; that of an alias would be found in none."""
    function = inspect.unwrap(getattr(slotool, name))
    annotations = " ".join(str(each.annotation) for each in inspect.signature(function).parameters.values())
    nodes = ast.walk(ast.parse(Path(inspect.getfile(function)).read_text()))
    for node in [node for node in nodes if isinstance(node, ast.ImportFrom)]:
        for alias in node.names:
            if alias.name in annotations.replace("[", " ").split() and alias.name not in function.__globals__:
                assert isinstance(getattr(import_module(node.module or ""), alias.name), type), alias.name
