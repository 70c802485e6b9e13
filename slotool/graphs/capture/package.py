"""Capture of the networks of a package side by side, with a journal from which an interrupted one goes on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from slotool import strict_json
from slotool.errors import SlotoolError
from slotool.graphs.capture.networks import PackageNetworks
from slotool.graphs.capture.sources import Source
from slotool.graphs.capture.subprocess_capture import Limits, captured_side_by_side
from slotool.graphs.graph import OperatorGraph
from slotool.journal import Journal
from slotool.printable import counted
from slotool.progress import Reporter, short_phase


@contextmanager
def captured_package(
    networks: PackageNetworks, out: Path | None, force: bool, limits: Limits, processes: int, reporter: Reporter
) -> Iterator[tuple[list[OperatorGraph], dict[str, str]]]:
    """Capture networks of a package side by side, with a journal that an interrupted sweep goes on from.

    Yields the graphs in order, and why the others failed; the journal goes when the block has ended well.
    """
    package = networks.package
    # torch and a package of a thousand networks are imported, which takes seconds.
    with short_phase(reporter, f"looking for networks of {networks.title}"):
        names = networks.chosen()
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
            reporter.note(f"{len(rows)} of {counted(len(names), 'network')} are in the journal already")
        try:
            with reporter.progress(f"capturing networks of {networks.title}", total=len(left)) as progress:
                for source, answer in captured_side_by_side(left, limits, processes):
                    if isinstance(answer, SlotoolError):
                        rows[source.name] = {"name": source.name, "error": str(answer)}
                        reporter.warn(f"{source.name} is left out: {answer}")
                    else:
                        assert isinstance(answer, OperatorGraph)  # a package's names are of one network each
                        rows[source.name] = {"name": source.name, "graph": answer.text}
                    if journal is not None:
                        journal.append(rows[source.name])
                    progress.advance()
        except KeyboardInterrupt as interruption:
            if rows and journal is not None:
                journaled = f"{len(rows)} of {counted(len(names), 'network')} are kept in {out}.journal"
                interruption.add_note(f"{journaled}; the same command goes on with the rest")
            raise
        in_order = [rows[name] for name in names]
        # Each graph is checked as one of a file.
        texts = [str(row["graph"]).encode() for row in in_order if "graph" in row]
        graphs = [OperatorGraph.from_document(strict_json.decode(text)) for text in texts]
        yield graphs, {str(row["name"]): str(row["error"]) for row in in_order if "error" in row}
        if journal is not None:
            journal.remove()
