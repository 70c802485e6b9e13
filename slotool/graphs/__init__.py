"""Operator graphs: the common language of generators, captured models, profiles and predictors."""

from slotool.graphs.graph import GraphBuilder, OperatorGraph
from slotool.graphs.operators import OPERATORS, Effect, Operator

__all__ = ["OPERATORS", "Effect", "GraphBuilder", "Operator", "OperatorGraph"]
