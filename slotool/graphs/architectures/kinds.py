"""What a kind of network is: sizes to draw from, and how a graph is built of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from slotool.graphs.graph import GraphBuilder, OperatorGraph


@dataclass(frozen=True)
class Architecture:
    """A kind of network that people use.

    ``sizes``: what each of its sizes may be, smallest first; together they are the search space, and every
    combination is a network. ``build`` appends the whole network to a builder; it takes the sizes by name.
    ``source``: the paper that the kind is from.
    """

    name: str
    source: str
    sizes: Mapping[str, tuple[Any, ...]]
    build: Callable[..., object]

    @property
    def size(self) -> int:
        """How many different networks there are."""
        return math.prod(map(len, self.sizes.values()))

    def graph(self, choices: tuple[int, ...]) -> OperatorGraph:
        """The network of these choices, one position in each of ``sizes``."""
        builder = GraphBuilder(self.name)
        self.build(
            builder, **{name: values[at] for (name, values), at in zip(self.sizes.items(), choices, strict=True)}
        )
        return builder.graph()
