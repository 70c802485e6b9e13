"""The weights of an ONNX model: what of a node's constants is trained, and what several nodes have of one constant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from slotool.graphs.capture.onnx.reading import Constant, Node
from slotool.graphs.capture.onnx.recurrent import RECURRENT, TRAINED

# One number next to their data is a setting, such as the 2 of a square, no weight.
TAKE_NUMBERS = ("Add", "Sub", "Mul", "Div", "Pow", "Mod", "Min", "Max", "Clip", "Pad", "Where", "Dropout")
# So are all of these' numbers.
TAKE_SIZES = ("Resize", "Upsample")


def weights_of(node: Node, constants: Mapping[int, Constant]) -> int:
    """How many weights a node has in its constants, by their positions."""
    return sum(constant.weights for at, constant in constants.items() if _is_trained(node, at, constant))


class Origins:
    """What the constants of a model are made of, those of its nodes that compute with constants alone."""

    def __init__(self) -> None:
        self._of: dict[str, frozenset[str]] = {}

    def add(self, made: str, sources: Iterable[str]) -> None:
        """``made`` is computed from these constants."""
        self._of[made] = frozenset[str]().union(*(self.of(source) for source in sources))

    def of(self, name: str) -> frozenset[str]:
        """The constants that the model holds from which this one is computed, or itself."""
        return self._of.get(name, frozenset((name,)))


def weights_apart(nodes: Sequence[Node], constants: Mapping[str, Constant], origins: Origins) -> tuple[int, int]:
    """How many weights several nodes have in common, each time but the first, and how many no node has, of constants of
    which others have a part: positions of longer texts than the model takes."""
    shared = left = 0
    for sources, used in _by_origin(_uses(nodes, constants), origins):
        whole = sum(constants[name].weights for name in sources if not constants[name].single)
        shared, left = shared + max(0, used - whole), left + max(0, whole - used)
    return shared, left


def _uses(nodes: Sequence[Node], constants: Mapping[str, Constant]) -> Iterator[tuple[str, int]]:
    for node in nodes:
        for at, name in enumerate(node.inputs):
            constant = constants.get(name)
            if constant is not None and not constant.single and _is_trained(node, at, constant):
                yield name, constant.weights


def _by_origin(uses: Iterable[tuple[str, int]], origins: Origins) -> list[tuple[set[str], int]]:
    """Constants from which some of these are made together, and how many weights all uses of these have."""
    groups: dict[str, tuple[set[str], int]] = {}
    for name, weights in uses:
        own = origins.of(name)
        joined = list({id(groups[source]): groups[source] for source in own if source in groups}.values())
        sources = own.union(*(group for group, _ in joined))
        group = (set(sources), weights + sum(used for _, used in joined))
        groups |= dict.fromkeys(sources, group)
    return list({id(group): group for group in groups.values()}.values())


def _is_trained(node: Node, at: int, constant: Constant) -> bool:
    if node.op in TAKE_SIZES or (node.op in RECURRENT and at not in TRAINED):
        return False
    return not (constant.single and node.op in TAKE_NUMBERS)
