"""``slotool.export_rules``: routing rules for other routers."""

from __future__ import annotations

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
    to: Literal["python", "json", "litellm", "vllm-semantic-router", "envoy"] = "python",
    force: bool = False,
) -> ExportedRules:
    """Write rules for routers other than slotool.

    A Python file needs no package. Its ``route(request, versions, tolerance, objective)`` takes ``versions`` as
    functions by name, each of which returns an answer and its confidence. Other formats name tiers by their ids.

    Example: slotool export-rules rules.json --to python -o router.py

    Example: slotool export-rules rules.json --to litellm -o tiers.py

    Args:
        rules: Rules, as ``gen_rules`` writes them.
        out: File to write.
        to: ``"python"``: a file without dependencies; ``"json"``: a document of all decisions; ``"litellm"``: a custom
            provider; ``"vllm-semantic-router"`` and ``"envoy"``: configurations.

    Returns:
        ``text`` of the file; ``frame()`` has a row per tier.

    Raises:
        ArgumentError: ``to`` is none of these.
        InputError: The rules cannot be read, or a policy among them has no such form.
    """
    from slotool.atomic import whole_file
    from slotool.rules import RuleSet
    from slotool.rules.exports import FORMATS
    from slotool.rules.exports.routes import routes

    if to not in FORMATS:
        raise ArgumentError("to", f"{to!r} is no format; available: {', '.join(FORMATS)}")
    rule_set = loaded(RuleSet, rules)
    text, document = FORMATS[to](rule_set), routes(rule_set)
    if out is not None:
        with whole_file(Path(out), replace=force) as partial:
            partial.write_text(text, encoding="utf-8")
    return ExportedRules(text, document, None if out is None else Path(out))


@result
class ExportedRules(Result):
    """Exported ``text``, as in ``out``; ``routes``: the JSON form."""

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
