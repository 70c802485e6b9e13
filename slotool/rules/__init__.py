"""Routing rules: which ensemble of service versions keeps which tolerance, and on what evidence."""

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
