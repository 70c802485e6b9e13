"""Operator graphs: the common language of generators, captured models, profiles and predictors."""

from typing import TYPE_CHECKING

from slotool.names_on_demand import names_on_demand

if TYPE_CHECKING:
    from slotool.graphs.graph import GraphBuilder, OperatorGraph
    from slotool.graphs.operators import OPERATORS, Effect, Operator

__all__ = ["OPERATORS", "Effect", "GraphBuilder", "Operator", "OperatorGraph"]

__getattr__ = names_on_demand(__name__)
