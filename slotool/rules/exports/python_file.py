"""A Python file without dependencies that makes the decisions of rules."""

from __future__ import annotations

import pprint
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slotool.rules.exports import standalone_router
from slotool.rules.exports.routes import routes
from slotool.rules.ruleset.rules import RuleSet

_PLACE = 'ROUTES: dict[str, Any] = {"tiers": []}\n'


def as_python(rules: RuleSet) -> str:
    """Return the source of ``standalone_router`` with the tiers of ``rules``."""
    return router_source(routes(rules))


def router_source(document: Mapping[str, Any]) -> str:
    """Return the source of ``standalone_router`` with the tiers of ``routes`` in ``document``."""
    source = Path(standalone_router.__file__).read_text(encoding="utf-8")
    before, _, after = source.partition(_PLACE)
    literal = pprint.pformat(dict(document), width=110, sort_dicts=False)
    return f"{before}ROUTES: dict[str, Any] = {literal}\n{after}"
