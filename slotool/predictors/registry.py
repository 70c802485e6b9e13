"""The predictors there are, by name: a new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Any

from slotool.errors import ArtifactError
from slotool.predictors.base import Predictor

_SOLO = {
    "linear": "linear:LinearPredictor",
    "three-term": "three_term:ThreeTermPredictor",
    "dnn": "dnn:DnnPredictor",
    "additive": "additive:AdditivePredictor",
    "graph": "graph_network:GraphNetworkPredictor",
}
_COLOCATED = {
    "linear": "linear:LinearColocatedPredictor",
    "dnn": "dnn:DnnColocatedPredictor",
    "ridge": "ridge:RidgePredictor",
    "sharing": "sharing:SharingPredictor",
}
# Of solo latencies too, but made from other predictors.
_TRANSFERRED = {
    "adapted": "adapted:AdaptedPredictor",
    "scaled": "scaled:ScaledPredictor",
    "ensemble": "ensemble:EnsemblePredictor",
}
# Always trained too: they cost nothing, and show what an elaborate predictor adds.
BASELINES = ("linear", "three-term")


class Registry(Mapping[str, type[Predictor[Any]]]):
    """Classes by name, each imported when it is looked up: those made from other predictors look theirs up here.

    ``registry[name] = class`` adds one from elsewhere.
    """

    def __init__(self, places: Mapping[str, str]):
        self._places: dict[str, str | type[Predictor[Any]]] = dict(places)

    def __getitem__(self, name: str) -> type[Predictor[Any]]:
        place = self._places[name]
        return _imported(place) if isinstance(place, str) else place

    def __setitem__(self, name: str, added: type[Predictor[Any]]) -> None:
        self._places[name] = added

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


PREDICTORS = Registry(_SOLO)
COLOCATED_PREDICTORS = Registry(_COLOCATED)
_FROM_OTHERS = Registry(_TRANSFERRED)


def predictor_class(name: str, *, colocated: bool = False) -> type[Predictor[Any]]:
    """The class of a stored predictor; ``colocated``: one of co-located latencies.

    Raises ``ArtifactError`` for a name that this slotool does not know.
    """
    known = (COLOCATED_PREDICTORS,) if colocated else (PREDICTORS, _FROM_OTHERS)
    for registry in known:
        if name in registry:
            return registry[name]
    names = ", ".join(name for registry in known for name in registry)
    raise ArtifactError(f"{name!r} is no predictor of this slotool, which has {names}")


@cache
def _imported(place: str) -> type[Predictor[Any]]:
    module, _, name = place.partition(":")
    found: type[Predictor[Any]] = getattr(import_module(f"slotool.predictors.{module}"), name)
    return found
