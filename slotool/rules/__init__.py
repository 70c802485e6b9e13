"""Routing rules: which ensemble of service versions keeps which tolerance, and on what evidence."""

from typing import TYPE_CHECKING

from slotool.names_on_demand import names_on_demand

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

# Where each is, imported when asked for: processes that compute answers need policies, and neither pandas nor SciPy.
_MODULES = {
    "METHODS": "generate.generator",
    "OBJECTIVES": "ruleset.rules",
    "OSFA": "policies.routing",
    "POLICIES": "policies.routing",
    "TOLERANCE_KINDS": "evidence.losses",
    "Assessment": "generate.base",
    "Conc": "policies.routing",
    "Problem": "generate.base",
    "Replayed": "policies.routing",
    "RoutingPolicy": "policies.routing",
    "Rule": "ruleset.rules",
    "RuleGenerator": "generate.base",
    "RuleSet": "ruleset.rules",
    "Seq": "policies.routing",
    "consults_second": "policies.routing",
    "from_point": "policies.points",
    "generate_rules": "generate.generator",
    "takes_second": "policies.routing",
}

__getattr__ = names_on_demand(__name__, _MODULES)
