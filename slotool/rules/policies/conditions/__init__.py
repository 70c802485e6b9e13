"""When an answer goes out without asking a further version: one file per kind of condition.

A condition is data: ``document()`` is what a rule file holds of it, ``condition_of`` reads that. It looks at what the
versions asked so far answered, and at the request, through ``Asked``; so a table's replay and a server share it.
"""

from slotool.rules.policies.conditions.base import Asked, AskedOne, Condition
from slotool.rules.policies.conditions.registry import CONDITIONS, condition_of

__all__ = ["CONDITIONS", "Asked", "AskedOne", "Condition", "condition_of"]
