"""What is served under one name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from slotool.elastic import ElasticModel
from slotool.rules.ruleset import RuleSet
from slotool.scheduling import Policy


@dataclass(frozen=True)
class ServedModel:
    """A model and the policy that turns its dial.

    ``rules``: the tolerance tiers the policy follows, if any. ``path``: the artifact it came from, for engines that
    load it anew in processes of their own.
    """

    name: str
    model: ElasticModel
    policy: Policy
    rules: RuleSet | None = None
    path: Path | None = None
