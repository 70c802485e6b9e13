"""Groups of examples, such as languages or customers, for each of which a tolerance must hold."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from slotool.errors import InputError
from slotool.tables import OutcomeTable

# Smaller groups share a guarantee, under this name.
MIN_EXAMPLES = 50
OTHERS = "others"
# Names of other rows in results.
RESERVED = ("all", OTHERS)
MAX_GROUPS = 30


@dataclass(frozen=True)
class Groups:
    """Groups of examples by the values of ``column``.

    ``of``: int64 [examples], index into ``names``, −1 where too few examples are left for a guarantee. ``small``:
    values with fewer than ``MIN_EXAMPLES`` examples.
    """

    column: str
    names: tuple[str, ...]
    of: np.ndarray
    small: tuple[str, ...] = ()

    def rows(self, rows: np.ndarray) -> list[np.ndarray]:
        """Split ``rows`` (int [any]) by group."""
        return [rows[self.of[rows] == at] for at in range(len(self.names))]

    def document(self) -> dict[str, Any]:
        """Return the groups as a rule set's settings."""
        sizes = np.bincount(self.of[self.of >= 0], minlength=len(self.names)).tolist()
        return {"group": self.column, "groups": dict(zip(self.names, sizes, strict=True)), "small": list(self.small)}

    @classmethod
    def of_table(cls, outcomes: OutcomeTable, column: str) -> Groups:
        """Find the groups of a table. Small ones become ``OTHERS``, if that is not small too.

        Raises ``TableError`` for a column that is missing or differs between versions, ``InputError`` for one with no
        large group or too many, for examples without a value, and for a value that is a name of ``RESERVED``.
        """
        values = outcomes.text(column)
        if missing := sum(not value.strip() or value == "nan" for value in values):
            raise InputError(
                f"column {column!r} is empty for {missing:,} examples: each needs a group, if only 'unknown'"
            )
        if clash := [name for name in RESERVED if name in values]:
            raise InputError(f"column {column!r} has the value {clash[0]!r}, which results use themselves: rename it")
        names, counts = np.unique(values, return_counts=True)
        large = [str(name) for name in names[counts >= MIN_EXAMPLES]]
        small = tuple(str(name) for name in names[counts < MIN_EXAMPLES])
        pooled = [OTHERS] if counts[counts < MIN_EXAMPLES].sum() >= MIN_EXAMPLES else []
        if not 1 <= len(large) + len(pooled) <= MAX_GROUPS:
            raise InputError(
                f"column {column!r} has {len(large)} groups of {MIN_EXAMPLES} or more examples; 1 to {MAX_GROUPS} are "
                "expected"
            )
        return cls.named(column, values, [*large, *pooled], small)

    @classmethod
    def named(cls, column: str, values: Iterable[str], names: Sequence[str], small: Sequence[str] = ()) -> Groups:
        """Return groups of these names among ``values``, one per example; all others are ``OTHERS``."""
        at = {name: index for index, name in enumerate(names)}
        rest = at.get(OTHERS, -1)
        return cls(column, tuple(names), np.array([at.get(value, rest) for value in values], np.int64), tuple(small))


def parts(
    config: Mapping[str, Any], outcomes: OutcomeTable, groups_of: Sequence[str] | None = None
) -> dict[str, np.ndarray]:
    """Return the examples a guarantee holds for: all under "", then those of each group of a rule set's ``config``.

    ``groups_of``: the group of each example, empty where it is not known; None: as ``outcomes`` has them. Raises
    ``TableError`` where these lack the column.
    """
    every = np.arange(len(outcomes.examples))
    if "group" not in config:
        return {"": every}
    values = outcomes.text(config["group"]) if groups_of is None else groups_of
    groups = Groups.named(config["group"], values, list(config["groups"]))
    stated = every[[value != "" for value in values]]
    return {"": every, **dict(zip(groups.names, groups.rows(stated), strict=True))}
