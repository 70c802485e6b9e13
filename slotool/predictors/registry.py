"""The predictors there are, by name: a new one is one file and one line here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slotool.errors import ArtifactError
from slotool.graphs import OperatorGraph
from slotool.predictors.adapted import AdaptedPredictor
from slotool.predictors.additive import AdditivePredictor
from slotool.predictors.base import Predictor
from slotool.predictors.colocations import Colocation
from slotool.predictors.dnn import DnnColocatedPredictor, DnnPredictor
from slotool.predictors.ensemble import EnsemblePredictor
from slotool.predictors.graph_network import GraphNetworkPredictor
from slotool.predictors.linear import LinearColocatedPredictor, LinearPredictor
from slotool.predictors.ridge import RidgePredictor
from slotool.predictors.scaled import ScaledPredictor
from slotool.predictors.sharing import SharingPredictor
from slotool.predictors.three_term import ThreeTermPredictor

_CLASSES = (LinearPredictor, ThreeTermPredictor, DnnPredictor, AdditivePredictor, GraphNetworkPredictor)
_COLOCATED = (LinearColocatedPredictor, DnnColocatedPredictor, RidgePredictor, SharingPredictor)
PREDICTORS: dict[str, type[Predictor[OperatorGraph]]] = {kind.name: kind for kind in _CLASSES}
# Trained beside whatever else was asked for: they cost nothing, and show what the elaborate one buys.
SIMPLE_RIVALS = (LinearPredictor.name, ThreeTermPredictor.name)
# Of solo latencies too, but made from other predictors.
_TRANSFERRED: tuple[type[Predictor[OperatorGraph]], ...] = (AdaptedPredictor, ScaledPredictor, EnsemblePredictor)
# Of co-located latencies.
COLOCATED_PREDICTORS: dict[str, type[Predictor[Colocation]]] = {kind.name: kind for kind in _COLOCATED}


def predictor_class(name: str, *, colocated: bool = False) -> type[Predictor[Any]]:
    """``colocated``: one of co-located latencies.

    Raises ``ArtifactError`` for a name that an artifact holds but this slotool does not know.
    """
    alone: dict[str, type[Predictor[Any]]] = {**PREDICTORS, **{kind.name: kind for kind in _TRANSFERRED}}
    known: Mapping[str, type[Predictor[Any]]] = COLOCATED_PREDICTORS if colocated else alone
    if name not in known:
        raise ArtifactError(f"{name!r} is no predictor of this slotool, which has {', '.join(known)}")
    return known[name]
