"""The predictors there are, by name: a new one is one file and one line here."""

from __future__ import annotations

from slotool.errors import ArtifactError
from slotool.predictors.additive import AdditivePredictor
from slotool.predictors.base import Predictor
from slotool.predictors.dnn import DnnPredictor
from slotool.predictors.graph_network import GraphNetworkPredictor
from slotool.predictors.linear import LinearPredictor

_CLASSES = (LinearPredictor, DnnPredictor, AdditivePredictor, GraphNetworkPredictor)
PREDICTORS: dict[str, type[Predictor]] = {kind.name: kind for kind in _CLASSES}


def predictor_class(name: str) -> type[Predictor]:
    """Raises ``ArtifactError`` for a name that an artifact holds but this slotool does not know."""
    if name not in PREDICTORS:
        raise ArtifactError(f"{name!r} is no predictor of this slotool, which has {', '.join(PREDICTORS)}")
    return PREDICTORS[name]
