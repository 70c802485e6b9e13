"""Routing rules: which ensemble of service versions keeps which tolerance, and by what evidence."""

from typing import TYPE_CHECKING

from slotool.names_on_demand import names_on_demand

# Imported on demand: processes that compute answers need policies, and neither pandas nor SciPy.
if TYPE_CHECKING:
    from slotool.rules.evidence.losses import TOLERANCE_KINDS
    from slotool.rules.generate.base import Assessment, Problem, RuleGenerator
    from slotool.rules.generate.generator import METHODS, generate_rules
    from slotool.rules.policies.points import from_point
    from slotool.rules.policies.routing import (
        OSFA,
        POLICIES,
        Conc,
        Replayed,
        RoutingPolicy,
        Seq,
        consults_second,
        takes_second,
    )
    from slotool.rules.ruleset.rules import OBJECTIVES, Rule, RuleSet

__all__ = [
    "METHODS",
    "OBJECTIVES",
    "OSFA",
    "POLICIES",
    "TOLERANCE_KINDS",
    "Assessment",
    "Conc",
    "Problem",
    "Replayed",
    "RoutingPolicy",
    "Rule",
    "RuleGenerator",
    "RuleSet",
    "Seq",
    "consults_second",
    "from_point",
    "generate_rules",
    "takes_second",
]

__getattr__ = names_on_demand(__name__)
