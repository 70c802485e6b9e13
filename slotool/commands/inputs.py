"""What functions take in more than one form: tables as objects or files, several of a thing or one."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from slotool.commands.command_line import command_line
from slotool.errors import ArgumentError, InputError
from slotool.machine import given_cores, usable_cores

if TYPE_CHECKING:
    from slotool.data import DataSource

FilePath = str | Path


class Loadable(Protocol):
    @classmethod
    def load(cls, path: Any) -> Self: ...


Kind = TypeVar("Kind", bound=Loadable)
Number = TypeVar("Number", int, float)


def loaded(kind: type[Kind], source: FilePath | Kind) -> Kind:
    """``source`` itself where it is a ``kind`` already, else read from that file."""
    return source if isinstance(source, kind) else kind.load(Path(str(source)))


def paths_of(sources: FilePath | Iterable[FilePath]) -> list[Path]:
    """One path or several."""
    return [Path(sources)] if isinstance(sources, str | Path) else [Path(source) for source in sources]


def name_of(source: Any) -> str:
    """The path of ``source``; of an object, what sort of object it is."""
    return str(source) if isinstance(source, str | Path) else type(source).__name__


def as_list(given: str | Sequence[str]) -> list[str]:
    """Names in a sequence, or in one text with commas."""
    return [name.strip() for name in given.split(",")] if isinstance(given, str) else list(given)


def numbers_in(given: Number | Sequence[Number]) -> list[Number]:
    """Numbers of a sequence, or one number alone."""
    return [given] if isinstance(given, int | float) else list(given)


def tolerance_shares(tolerance: float | Mapping[float, float] | None) -> dict[float, float]:
    """Shares of the requests by tolerance, empty for none. Raises ``ArgumentError``."""
    if tolerance is None:
        return {}
    shares = dict(tolerance) if isinstance(tolerance, Mapping) else {tolerance: 1.0}
    meant = all(0 <= each < math.inf and share > 0 for each, share in shares.items())
    if not (meant and abs(sum(shares.values()) - 1) <= 1e-6):  # nothing of this holds for NaN
        stated = ",".join(f"{each:g}={share:g}" for each, share in shares.items())
        problem = "is neither a tolerance from 0 on nor shares like 0=0.2,0.05=0.8 that add up to 1"
        raise ArgumentError("tolerance", f"{stated!r} {problem}")
    return {float(each): float(share) for each, share in shares.items()}


def prices_of(prices: FilePath | Mapping[str, float] | None) -> tuple[dict[str, float], str]:
    """Prices of a call by version, or those of a price list, and their currency; none and "" of None."""
    from slotool.tables.importing import read_prices

    return (dict(prices or {}), "") if prices is None or isinstance(prices, Mapping) else read_prices(Path(prices))


def devices_of(device: str | None) -> tuple[str, ...]:
    """The device whose rows of a latency table count; none where a table is to have but one. ``cuda`` is ``cuda:0``."""
    return () if device is None else ("cuda:0" if device == "cuda" else device,)


def cores_given(threads: int | None) -> int:
    """Return ``threads``, or as many as there are usable cores.

    Raises ``ArgumentError`` for more than the cores given to this process.
    """
    if threads is not None and threads > given_cores():
        raise ArgumentError("threads", f"{threads} threads, but only {given_cores()} cores are given to this process")
    return threads or usable_cores()


@contextmanager
def torch_threads(threads: int) -> Iterator[None]:
    """So many compute threads of torch meanwhile."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@command_line(python_only=("data",), metavars={"label": "COLUMN", "input": "COLUMN=TENSOR", "images": "SIZE:SCALE"})
def source_in(
    data: str | None, *, label: str | None = None, input: Sequence[str] = (), images: str | None = None
) -> DataSource | None:
    """Return the data set that these options describe; None where none is named.

    Args:
        data: Data set: a name, file or folder, also with :LABEL.
        label: Its labels; None: by usual names.
        input: A column and the input it becomes; repeatable.
        images: Conversion of images, such as 224:imagenet.

    Raises:
        ArgumentError: An option cannot be read, or describes no data set.
    """
    from slotool.data.options import DataSource, ImageOptions, parse_inputs

    if not data:
        for argument, value in (("label", label), ("input", input), ("images", images)):
            if value:
                raise ArgumentError(argument, "describes how a data set is read: name one")
        return None
    try:
        columns = parse_inputs(list(input))
    except InputError as error:
        raise ArgumentError("input", str(error)) from error
    try:
        read = ImageOptions() if images is None else ImageOptions.parse(images)
    except InputError as error:
        raise ArgumentError("images", str(error)) from error
    return DataSource(data, label, columns, read)
