"""``slotool.export_rules``: routing rules for where slotool does not run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from slotool.commands.command_line import command_line
from slotool.commands.display import Part
from slotool.commands.outputs import writes
from slotool.commands.result import Result, output, result, unlisted
from slotool.errors import ArgumentError
from slotool.sources import FilePath, loaded

if TYPE_CHECKING:
    from slotool.rules import RuleSet


@command_line(required=("out",))
@writes("out")
def export_rules(
    rules: FilePath | RuleSet,
    out: FilePath | None = None,
    *,
    to: Literal["python", "json"] = "python",
    force: bool = False,
) -> ExportedRules:
    """Write rules as plain Python or JSON.

    Both make the decisions of the rules, where slotool does not run. A Python file needs no package; it has
    ``route(request, versions, tolerance, objective)``, where ``versions`` are functions by name that return an answer
    and its confidence.

    Example: slotool export-rules rules.json --to python -o router.py

    Args:
        rules: Rules, as ``gen_rules`` writes them.
        out: File to write.
        to: ``"python"``: a file without dependencies; or ``"json"``.
        force: Replace ``out`` if it exists.

    Returns:
        ``text``, what was written; ``frame()`` has a row per tier.

    Raises:
        ArgumentError: ``to`` is neither.
        InputError: The rules cannot be read, or a policy among them has no such form.
        AlreadyExistsError: ``out`` exists.
    """
    from slotool.atomic import whole_file
    from slotool.rules import RuleSet
    from slotool.rules.ruleset.exporting import as_python, routes

    if to not in ("python", "json"):
        raise ArgumentError("to", f"{to!r} is neither python nor json")
    document = routes(loaded(RuleSet, rules))
    text = as_python(document) if to == "python" else json.dumps(document, indent=1, ensure_ascii=False) + "\n"
    if out is not None:
        with whole_file(Path(out), replace=force) as partial:
            partial.write_text(text, encoding="utf-8")
    return ExportedRules(text, document, None if out is None else Path(out))


@result
class ExportedRules(Result):
    """``text`` as written into ``out``, if any; ``routes``: the JSON form."""

    text: str = unlisted()
    routes: dict[str, Any] = unlisted()
    out: Path | None = output(default=None)

    schema = "export-rules"
    rows_key = "tiers"

    def records(self) -> list[dict[str, Any]]:
        return [
            {"id": tier["id"], "versions": [step["ask"] for step in tier["route"]["steps"]]}
            for tier in self.routes["tiers"]
        ]

    def shown(self) -> list[Part]:
        tiers = self.records()
        versions = dict.fromkeys(name for tier in tiers for name in tier["versions"])
        return [f"{len(tiers)} {'tier' if len(tiers) == 1 else 'tiers'}, of {', '.join(versions)}"]
