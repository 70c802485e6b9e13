"""What the command line does Python does too: a function for every command, and a place in the reference for each."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest

import slotool
from docs.generate import python_api
from slotool.cli.app import command as command_line

# Commands whose function has another name than they have.
OTHERWISE = {
    "profile solo": "profile",
    "generate mlp": "generate_networks",
    "generate cnn": "generate_networks",
    "generate architectures": "generate_networks",
}
# Commands without a function, and why.
WITHOUT = {"demo": "it runs the other commands in a scratch folder and shows what they print"}
FUNCTIONS = [name for name in slotool.__all__ if inspect.isfunction(getattr(slotool, name))]


def commands(group: Any, path: tuple[str, ...] = ()) -> Iterator[str]:
    """Full names of all commands that do something."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, (*path, name))
        else:
            yield " ".join((*path, name))


COMMANDS = [*commands(command_line())]


@pytest.mark.parametrize("command", [name for name in COMMANDS if name not in WITHOUT])
def test_a_command_has_a_function(command: str) -> None:
    name = OTHERWISE.get(command, command.replace(" ", "_").replace("-", "_"))
    assert name in FUNCTIONS, f"slotool {command} has no function slotool.{name}"


def test_no_exception_is_out_of_date() -> None:
    assert {*WITHOUT, *OTHERWISE} <= {*COMMANDS}
    assert not [command for command in WITHOUT if command in FUNCTIONS]


def test_the_reference_describes_every_function() -> None:
    page = python_api.pages()["reference/python/commands.md"].splitlines()
    missing = [name for name in FUNCTIONS if f"::: {getattr(slotool, name).__module__}" not in page]
    assert not missing
