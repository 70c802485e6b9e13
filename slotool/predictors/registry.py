"""The predictors there are, by name: a new one is one file and one line here."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

import numpy as np

from slotool.errors import ArtifactError
from slotool.plugins import Registry
from slotool.predictors.base import COLOCATED, FROM_OTHERS, SOLO, Document, Predictor, Tensors
from slotool.printable import printable

# Each class, or where it lies: those made from other predictors look theirs up here. And its ``fitted_to``: none is
# imported before it is asked for.
PREDICTORS: dict[str, tuple[str | type[Predictor[Any]], tuple[str, ...]]] = {
    "linear": ("solo.linear:LinearPredictor", (SOLO, COLOCATED)),
    "three-term": ("solo.three_term:ThreeTermPredictor", (SOLO,)),
    "dnn": ("solo.dnn:DnnPredictor", (SOLO, COLOCATED)),
    "additive": ("solo.additive:AdditivePredictor", (SOLO,)),
    "costs": ("solo.operator_costs:OperatorCostPredictor", (SOLO,)),
    "graph": ("solo.graph_network:GraphNetworkPredictor", (SOLO,)),
    "ridge": ("colocated.ridge:RidgePredictor", (COLOCATED,)),
    "sharing": ("colocated.sharing:SharingPredictor", (COLOCATED,)),
    "adapted": ("transfer.adapted:AdaptedPredictor", (FROM_OTHERS,)),
    "settings": ("settings.predictor:SettingsPredictor", (FROM_OTHERS,)),
}
registry: Registry[type[Predictor[Any]]] = Registry("predictors", PREDICTORS, Predictor)
# Names of earlier ways to adapt a predictor, which artifacts may hold.
_EARLIER = ("scaled", "other-backend", "residual", "composition", "ensemble")
ADAPTED_BEFORE = (
    "the predictor was adapted in a way that slotool no longer has; adapt its base again: "
    "slotool adapt-predictor BASE LATENCIES --graphs GRAPHS -o OUT, or slotool calibrate --force"
)
# Always trained too: they cost nothing, and show what an elaborate predictor adds.
BASELINES = ("linear", "three-term")


def names_of(*fitted_to: str) -> list[str]:
    """Names of slotool's own predictors that are fitted to one of these."""
    return [name for name, (_, own) in PREDICTORS.items() if set(fitted_to) & set(own)]


def predictor_class(name: str, *, colocated: bool = False, package: str | None = None) -> type[Predictor[Any]]:
    """The class of a predictor of solo latencies, or of co-located ones. ``package``: what had it, where that is known.

    A name that is not slotool's own is that of a plugin: also from an artifact a class is loaded by its entry point
    alone. Raises ``ArtifactError`` for a name that nothing here has, or a predictor of the other kind of latencies;
    ``PluginError`` for a plugin that cannot be used.
    """
    fitted_to = (COLOCATED,) if colocated else (SOLO, FROM_OTHERS)
    own = names_of(*fitted_to)
    if name in own:
        place = PREDICTORS[name][0]
        return _imported(place) if isinstance(place, str) else place
    if name in registry.plugins:
        return _of_plugin(name, fitted_to)
    if name in _EARLIER:
        raise ArtifactError(ADAPTED_BEFORE)
    known = ", ".join([*own, *registry.plugins])
    missing = "" if name in PREDICTORS else f"; install {printable(package or 'the package that has it')}"
    raise ArtifactError(f"{name!r} is no predictor of this slotool, which has {known}{missing}")


def _of_plugin(name: str, fitted_to: tuple[str, ...]) -> type[Predictor[Any]]:
    found = registry.load(name)
    if not set(fitted_to) & set(found.fitted_to):
        raise ArtifactError(f"{name!r} predicts {' and '.join(found.fitted_to)} latencies, not {fitted_to[0]} ones")
    return found


def nested_state(predictor: Predictor[Any], prefix: str) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """State of a predictor that is part of another: its tensors with ``prefix``, and a JSON document."""
    tensors, document = predictor.state()
    return {prefix + name: value for name, value in tensors.items()}, {"name": predictor.name, "state": document}


def from_nested_state(tensors: Tensors, document: Document, prefix: str) -> Predictor[Any]:
    """The predictor whose ``nested_state`` is among these. Raises ``ArtifactError`` as ``predictor_class`` does."""
    own = {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}
    return predictor_class(document["name"]).from_state(own, document["state"])


@cache
def _imported(place: str) -> type[Predictor[Any]]:
    module, _, name = place.partition(":")
    found: type[Predictor[Any]] = getattr(import_module(f"slotool.predictors.{module}"), name)
    return found
