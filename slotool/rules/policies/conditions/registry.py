"""The kinds of conditions there are, by name, and reading one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from slotool.errors import InputError
from slotool.rules.policies.conditions.agree import Agree
from slotool.rules.policies.conditions.base import Condition
from slotool.rules.policies.conditions.score import Score
from slotool.rules.policies.conditions.sure import Sure
from slotool.rules.policies.conditions.sure_by_label import SureByLabel

CONDITIONS: dict[str, type[Condition]] = {kind.kind: kind for kind in (Sure, SureByLabel, Agree, Score)}


def condition_of(document: Mapping[str, Any]) -> Condition:
    """The inverse of ``document``. Raises ``InputError`` for an unknown kind, and what ``from_settings`` raises."""
    kind = document.get("if")
    if kind not in CONDITIONS:
        raise InputError(f"no condition {kind!r}; there are {', '.join(CONDITIONS)}")
    return CONDITIONS[str(kind)].from_settings(document)
