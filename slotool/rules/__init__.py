"""Routing rules: which ensemble of service versions keeps which tolerance, and on what evidence."""

from typing import TYPE_CHECKING

from slotool.names_on_demand import names_on_demand

if TYPE_CHECKING:
    from slotool.rules.base import Assessment, Problem, RuleGenerator
    from slotool.rules.generator import METHODS, generate_rules
    from slotool.rules.losses import TOLERANCE_KINDS
    from slotool.rules.points import from_point
    from slotool.rules.policies import (
        OSFA,
        POLICIES,
        Conc,
        Replayed,
        RoutingPolicy,
        Seq,
        consults_second,
        takes_second,
    )
    from slotool.rules.ruleset import OBJECTIVES, Rule, RuleSet

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

# Where each is, imported when asked for: processes that compute answers need policies, and neither pandas nor SciPy.
_MODULES = {
    "METHODS": "generator",
    "OBJECTIVES": "ruleset",
    "OSFA": "policies",
    "POLICIES": "policies",
    "TOLERANCE_KINDS": "losses",
    "Assessment": "base",
    "Conc": "policies",
    "Problem": "base",
    "Replayed": "policies",
    "RoutingPolicy": "policies",
    "Rule": "ruleset",
    "RuleGenerator": "base",
    "RuleSet": "ruleset",
    "Seq": "policies",
    "consults_second": "policies",
    "from_point": "points",
    "generate_rules": "generator",
    "takes_second": "policies",
}

__getattr__ = names_on_demand(__name__, _MODULES)
