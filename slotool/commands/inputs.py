"""Arguments in several forms: shares of requests by tolerance, and data sets that options describe."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from slotool.commands.command_line import command_line
from slotool.errors import ArgumentError, InputError

if TYPE_CHECKING:
    from slotool.data import DataSource


def tolerance_shares(tolerance: float | Mapping[float, float] | None) -> dict[float, float]:
    """Return the shares of requests by tolerance, empty for none. Raises ``ArgumentError``."""
    if tolerance is None:
        return {}
    shares = dict(tolerance) if isinstance(tolerance, Mapping) else {tolerance: 1.0}
    valid = all(0 <= value < math.inf and share > 0 for value, share in shares.items())
    if not (valid and abs(sum(shares.values()) - 1) <= 1e-6):  # false for NaN
        stated = ",".join(f"{value:g}={share:g}" for value, share in shares.items())
        problem = "is neither a tolerance from 0 on nor shares like 0=0.2,0.05=0.8 that add up to 1"
        raise ArgumentError("tolerance", f"{stated!r} {problem}")
    return {float(value): float(share) for value, share in shares.items()}


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
