"""Elastic models: families of networks, SLO-aware networks, and the one interface they share."""

from slotool.elastic.model import ElasticModel, confidence, load_model

__all__ = ["ElasticModel", "confidence", "load_model"]
