"""A sweep over networks of a package: side by side, with a journal that an interrupted one goes on from."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from slotool.commands.inputs import FilePath
from slotool.commands.progress import Reporter
from slotool.errors import SlotoolError

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.graphs.capture import Limits


@contextmanager
def swept(
    package: str,
    names: Sequence[str],
    out: FilePath | None,
    force: bool,
    limits: Limits,
    processes: int,
    reporter: Reporter,
) -> Iterator[tuple[list[OperatorGraph], dict[str, str]]]:
    """The graphs of these networks in order, and why the others failed; the journal goes when the block has ended
    well."""
    from slotool.graphs.capture import Source
    from slotool.graphs.capture.subprocess_capture import captured_side_by_side
    from slotool.profiling.journal import Journal

    with ExitStack() as opened:
        journal = None
        if out is not None:
            path = Path(f"{out}.journal")
            journal = opened.enter_context(Journal(path, {"captures": package}, fresh=force))
        # What failed may have been repaired since, and is tried again.
        rows = {str(row["name"]): row for row in (journal.rows if journal is not None else ()) if "graph" in row}
        rows = {name: row for name, row in rows.items() if name in set(names)}
        left = [Source(package, name) for name in names if name not in rows]
        if rows:
            reporter.note(f"{len(rows)} of {len(names)} networks are in the journal already")
        try:
            with reporter.progress(f"capturing networks of {package}", total=len(left)) as progress:
                for source, answer in captured_side_by_side(left, limits, processes):
                    rows[source.name] = _row(source.name, answer)
                    if journal is not None:
                        journal.append(rows[source.name])
                    if isinstance(answer, SlotoolError):
                        reporter.warn(f"{source.name} is left out: {answer}")
                    progress.advance()
        except KeyboardInterrupt as interruption:
            if rows and journal is not None:
                kept = f"{len(rows)} of {len(names)} networks are kept in {out}.journal"
                interruption.add_note(f"{kept}; the same command goes on with the rest")
            raise
        yield _graphs([rows[name] for name in names])
        if journal is not None:
            journal.remove()


def _row(name: str, answer: OperatorGraph | SlotoolError) -> dict[str, Any]:
    return {"name": name, **({"error": str(answer)} if isinstance(answer, SlotoolError) else {"graph": answer.text})}


def _graphs(rows: Sequence[dict[str, Any]]) -> tuple[list[OperatorGraph], dict[str, str]]:
    """What rows of the journal hold; each graph is checked as one of a file."""
    from slotool import strict_json
    from slotool.graphs import OperatorGraph

    graphs = [
        OperatorGraph.from_document(strict_json.decode(str(row["graph"]).encode())) for row in rows if "graph" in row
    ]
    return graphs, {str(row["name"]): str(row["error"]) for row in rows if "error" in row}
