"""Checks of outputs before a function begins: they are writable, and no input is overwritten."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

from slotool.atomic import replaceable
from slotool.commands.signatures import require_bounds
from slotool.errors import ArgumentError, InputError
from slotool.factories import is_factory, source_file
from slotool.printable import did_you_mean

Parameters = ParamSpec("Parameters")
Returned = TypeVar("Returned")
# Entries of ``Args`` and of ``Raises`` that docstrings leave out, as they are the same for most functions.
ARGS = {
    "seed": "Same seed, same result.",
    "threads": "Compute threads; None: all usable cores.",
    "force": "Replace ``out`` if it exists.",
    "progress": 'Progress display: ``"auto"``, True, None, or a callback; see ``slotool.progress``.',
}
INVALID = "ArgumentError: An argument has a value that it cannot have."
EXISTING = "AlreadyExistsError: ``out`` exists."


def writes(
    *files: str, folders: tuple[str, ...] = (), resumes: bool = False
) -> Callable[[Callable[Parameters, Returned]], Callable[Parameters, Returned]]:
    """Decorate a function whose parameters ``files`` and ``folders`` name its outputs; None writes nothing.

    Before it runs, the function raises ``ArgumentError`` if a number is beyond the bounds in the signature, or an
    output is given twice, cannot be written, or is or holds an input; and ``AlreadyExistsError`` if one exists without
    ``force``, unless it ``resumes``. Its docstring gets the entries that it shares with others.
    """

    def checking(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
        signature = inspect.signature(function)

        def refuse(arguments: Mapping[str, Any], *others: Path) -> None:
            from slotool.artifacts.bundle import refuse_existing

            named = {name: arguments.get(name) for name in (*files, *folders)}
            outputs = {name: Path(path) for name, path in named.items() if isinstance(path, str | Path)}
            existing = {name: path for name, path in outputs.items() if os.path.exists(path)}
            read = {name: value for name, value in arguments.items() if existing and name not in outputs}
            kinds = {name: str(signature.parameters[name].annotation) for name in read}
            inputs = [path for name, value in read.items() for path in _files(kinds[name], value)]
            _require_kept(outputs, existing, [*inputs, *others])
            for name, path in outputs.items():
                _require_writable(name, path, is_folder=name in folders)
                if "force" in signature.parameters and not resumes:
                    refuse_existing(path, bool(arguments.get("force")))

        @wraps(function)
        def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
            arguments = _arguments(function, signature, args, kwargs)
            require_bounds(function, arguments)
            refuse(arguments)
            return function(*args, **kwargs)

        checked.__doc__ = _documented(function, signature)
        checked.writes = (*files, *folders)  # type: ignore[attr-defined]  # for the test that every function has it
        checked.refuse = refuse  # type: ignore[attr-defined]  # for commands that read options from a file too
        return checked

    return checking


def _documented(function: Callable[..., Any], signature: inspect.Signature) -> str | None:
    """Return the docstring with the entries of ``ARGS``, ``INVALID`` and ``EXISTING`` that apply and are not stated."""
    text = inspect.getdoc(function)
    if text is None or "\n\nRaises:\n" not in text:
        return text
    parameters = signature.parameters
    missing = [name for name in ARGS if name in parameters and f"\n    {name}: " not in text]
    entries = "".join(f"\n    {name}: {ARGS[name]}" for name in missing)
    invalid = f"\n    {INVALID}" if parameters and "ArgumentError: " not in text else ""
    existing = f"\n    {EXISTING}" if "force" in parameters and "AlreadyExistsError: " not in text else ""
    text = text.replace("\n\nReturns:", f"{entries}\n\nReturns:").replace("\n\nRaises:", f"\n\nRaises:{invalid}")
    return f"{text}{existing}"


def _arguments(
    function: Callable[..., Any], signature: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> Mapping[str, Any]:
    """Return the arguments of a call of ``function``, defaults included.

    Raises ``TypeError``, as Python does, for a call that does not fit, with a similar name for a misspelt one.
    """
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        sentence, unknown = str(error), next((name for name in kwargs if name not in signature.parameters), None)
        if unknown is not None:
            meant = did_you_mean(unknown, signature.parameters)
            sentence = f"got an unexpected keyword argument {unknown!r}{meant}"
        raise TypeError(f"{function.__name__}() {sentence}") from None
    bound.apply_defaults()
    return bound.arguments


def _require_kept(outputs: Mapping[str, Path], existing: Mapping[str, Path], inputs: Sequence[Path]) -> None:
    """Raise ``ArgumentError`` for an output that is given twice, or would destroy an input, links included."""
    for name, output in outputs.items():
        if output in [path for other, path in outputs.items() if other != name]:
            raise ArgumentError(name, f"{output} is given as two outputs")
    for path in inputs:
        for name, output in existing.items():
            if problem := _loss(path, output):
                raise ArgumentError(name, f"{problem}; name another output")


def _files(kind: str, value: Any) -> Iterator[Path]:
    """Yield the files that a parameter of this annotation reads."""
    if isinstance(value, Mapping | list | tuple):
        for member in value.values() if isinstance(value, Mapping) else value:
            yield from _files(kind, member)
        return
    from slotool.data.options import DataSource
    from slotool.graphs.capture.sources import Source

    if isinstance(value, DataSource | Source):
        value = value.name
    if isinstance(value, str) and "DataSource" in kind:
        yield from _data_files(value)
    elif isinstance(value, str | Path) and ("Path" in kind or "Network" in kind):
        yield Path(value)
    if isinstance(value, str) and is_factory(value):
        with suppress(InputError):
            yield source_file(value)


def _data_files(name: str) -> Iterator[Path]:
    """Yield the path of the data set of this name."""
    from slotool.data.options import DataOptions
    from slotool.data.registry import locate

    with suppress(InputError):
        yield locate(name, DataOptions())[1].path


def _loss(path: Path, output: Path) -> str:
    """Describe how writing ``output`` would destroy ``path``; empty if it does not."""
    if not os.path.exists(path):
        return ""
    if os.path.samefile(path, output):
        return f"{output} is also an input"
    if output.is_dir() and path.resolve().is_relative_to(output.resolve()):
        return f"the input {path} lies in {output}"
    return ""


def _require_writable(name: str, path: Path, *, is_folder: bool) -> None:
    """Raise ``ArgumentError`` if ``path`` cannot be written; replacing an existing one is left to the function."""
    replaceable(path)
    if is_folder and path.is_file():
        raise ArgumentError(name, f"{path} is a file; a folder is written, choose another name")
    if not is_folder and path.is_dir():
        raise ArgumentError(name, f"{path} is a folder; a file is written, choose another name")
    above = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    probe = above / f".slotool-{os.getpid()}.probe"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise ArgumentError(name, f"{path} cannot be written: {above}: {error.strerror}") from None
