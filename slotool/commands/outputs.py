"""What functions write: never over what they read, and found to be writable before the work begins."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from slotool.atomic import replaceable
from slotool.commands.arguments import Parameters, Returned, by_name, naming_arguments
from slotool.errors import ArgumentError
from slotool.extras import require

# Types, as annotations name them, of parameters that may name what a function reads.
_READ = ("Path", "DataSource", "Network")


def writes(
    *files: str, folders: tuple[str, ...] = (), resumes: bool = False
) -> Callable[[Callable[Parameters, Returned]], Callable[Parameters, Returned]]:
    """Of a function whose parameters ``files`` and ``folders`` name what it writes; None writes nothing.

    Before it runs, the function raises ``ArgumentError`` where an output is also an input, or holds one, or is given
    twice, or cannot be written, and ``AlreadyExistsError`` where one exists without ``force``, unless it ``resumes``.
    Plots are replaced.
    """

    def checking(function: Callable[Parameters, Returned]) -> Callable[Parameters, Returned]:
        signature = inspect.signature(function)
        reads = {
            name
            for name, parameter in signature.parameters.items()
            if any(kind in str(parameter.annotation) for kind in _READ)
        }

        @wraps(function)
        def checked(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Returned:
            from slotool.artifacts.bundle import refuse_existing

            with naming_arguments(signature):
                given = by_name(function, signature, args, kwargs)
                outputs = {name: Path(given[name]) for name in (*files, *folders) if _is_path(given.get(name))}
                read = {name: given[name] for name in given if name not in outputs and name in reads}
                require_kept(outputs, inputs_among(read))
                for name, path in outputs.items():
                    _require_writable(name, path, is_folder=name in folders)
                    if "force" in signature.parameters and name != "plots" and not resumes:
                        refuse_existing(path, bool(given.get("force")))
                return function(*args, **kwargs)

        checked.writes = (*files, *folders)  # type: ignore[attr-defined]  # for the test that every function has it
        return checked

    return checking


def require_kept(outputs: Mapping[str, Path], inputs: Iterator[Path]) -> None:
    """Raises ``ArgumentError`` naming the one of ``outputs`` that is given twice, or would destroy one of ``inputs``,
    by whatever name or link."""
    existing = {name: output for name, output in outputs.items() if os.path.exists(output)}
    for name, output in outputs.items():
        if output in [path for other, path in outputs.items() if other != name]:
            raise ArgumentError(name, f"{output} is given as two outputs")
    for path in inputs if existing else ():
        for name, output in existing.items():
            if problem := _loss(path, output):
                raise ArgumentError(name, f"{problem}; name another output")


def inputs_among(given: Mapping[str, Any]) -> Iterator[Path]:
    """Yield what a function may read that is given these paths, data sets and models."""
    for value in given.values():
        for one in _flat(value):
            if isinstance(one, str | Path):
                yield Path(one)
            if isinstance(one, str):
                yield from (path for path in _paths_in(one) if os.path.isfile(path))


def _flat(value: Any) -> Iterator[Any]:
    """``value``, or what it holds; of a ``DataSource`` its name."""
    if isinstance(value, Mapping):
        for one in value.values():
            yield from _flat(one)
    elif isinstance(value, list | tuple):
        for one in value:
            yield from _flat(one)
    else:
        yield getattr(value, "name", value) if type(value).__name__ == "DataSource" else value


def _paths_in(text: str) -> Iterator[Path]:
    """Every path that ``text`` may name: PATH, PATH:LABEL, KIND:PATH:LABEL, MODULE:FACTORY or NAME=PATH, in the data
    folder too."""
    whole = (text, text.partition("=")[2])
    unprefixed = (*whole, *(part.partition(":")[2] for part in whole))
    searched = os.environ.get("SLOTOOL_DATA_DIR", "")
    for part in (*unprefixed, *(part.rpartition(":")[0] for part in unprefixed)):
        if part:
            yield from (Path(part), Path(f"{part}.py"), Path(searched, part))


def _loss(path: Path, output: Path) -> str:
    """How writing ``output`` would destroy ``path``; empty when it does not."""
    if not os.path.exists(path):
        return ""
    if os.path.samefile(path, output):
        return f"{output} is also an input"
    if output.is_dir() and path.resolve().is_relative_to(output.resolve()):
        return f"the input {path} lies in {output}"
    return ""


def _is_path(value: Any) -> bool:
    return isinstance(value, str | Path)


def _require_writable(name: str, path: Path, *, is_folder: bool) -> None:
    """Raises ``ArgumentError`` where nothing can be written at ``path``; what stands there is left to the function
    unless nothing may replace it."""
    replaceable(path)
    if name in ("plot", "plots"):
        require("matplotlib", needed_by="drawing plots")
    if is_folder and path.is_file():
        raise ArgumentError(name, f"{path} is a file; a folder is written, choose another name")
    if not is_folder and path.is_dir():
        raise ArgumentError(name, f"{path} is a folder; a file is written, choose another name")
    if name == "plot" and path.suffix != ".png":
        raise ArgumentError(name, f"{path}: a plot is a PNG file; give a name that ends in .png")
    if name == "plot" and not path.absolute().parent.is_dir():
        raise ArgumentError(name, f"{path}: there is no folder {path.parent} to write it into")
    above = next(parent for parent in path.absolute().parents if os.path.lexists(parent))
    probe = above / f".slotool-{os.getpid()}.probe"
    try:
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        raise ArgumentError(name, f"{path} cannot be written: {above}: {error.strerror}") from None
