"""What typer says of a wrong value, in the words of the other messages: its own are those of the library below it."""

from __future__ import annotations

import re

_BOUNDS = {
    "greater than or equal to": ">=",
    "less than or equal to": "<=",
    "greater than": ">",
    "less than": "<",
}
_KINDS = {
    "a valid integer": "a whole number",
    "a valid number": "a number",
    "a finite number": "a finite number",
    "a valid boolean": "true or false",
    "a valid string": "text",
}
_BOUND = re.compile(rf"^Input should be ({'|'.join(_BOUNDS)}) (\S+)$")
# Of typer before 0.27.
_OTHER_KINDS = {"integer": "a whole number", "float": "a number"}
_OTHER_KIND = re.compile(rf"^.* is not a valid ({'|'.join(_OTHER_KINDS)})(?: range)?\.?$")
_RANGE = re.compile(r"^.* is not in the range (\S+?)\.?$")
_KIND = re.compile(rf"^Input should be ({'|'.join(_KINDS)})(?:,.*)?$")


def plain(message: str) -> str:
    """``a number <= 65535 is expected`` of ``Input should be less than or equal to 65535``; other messages as they
    are."""
    if bound := _BOUND.match(message):
        return f"a number {_BOUNDS[bound[1]]} {bound[2]} is expected"
    if kind := _KIND.match(message):
        return f"{_KINDS[kind[1]]} is expected"
    if other := _OTHER_KIND.match(message):
        return f"{_OTHER_KINDS[other[1]]} is expected"
    if between := _RANGE.match(message):
        return f"a number {between[1]} is expected"
    if message == "Input is not a valid path":
        return "a path is expected"
    return message.removeprefix("Value error, ")
