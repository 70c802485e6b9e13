"""When an answer goes out without asking a further version: one file per kind of condition.

A condition is data: ``document()`` is what a rule file holds of it, ``condition_of`` reads that. It looks at what the
versions asked so far answered, and at the request, through ``Asked``; so a table's replay and a server share it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slotool.errors import InputError
from slotool.rules.policies.conditions.agree import Agree
from slotool.rules.policies.conditions.base import Asked, AskedOne, Condition
from slotool.rules.policies.conditions.score import Score
from slotool.rules.policies.conditions.sure import Sure
from slotool.rules.policies.conditions.sure_by_label import SureByLabel

__all__ = ["CONDITIONS", "Asked", "AskedOne", "Condition", "condition_of"]


CONDITIONS: dict[str, type[Condition]] = {kind.kind: kind for kind in (Sure, SureByLabel, Agree, Score)}


def condition_of(document: Mapping[str, Any]) -> Condition:
    """The inverse of ``document``. Raises ``InputError`` for an unknown kind, and what ``from_settings`` raises."""
    kind = document.get("if")
    if kind not in CONDITIONS:
        raise InputError(f"no condition {kind!r}; there are {', '.join(CONDITIONS)}")
    return CONDITIONS[str(kind)].from_settings(document)
