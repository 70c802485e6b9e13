"""Elastic models: families of networks, SLO-aware networks, and the one interface they share."""

from slotool.elastic.loading import load_model, load_served
from slotool.elastic.model import ElasticModel
from slotool.models.tasks import confidence

__all__ = ["ElasticModel", "confidence", "load_model", "load_served"]
