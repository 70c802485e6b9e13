"""``python -m docs.generate``: write every page, and every place of a page, that is made of code and of records."""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from docs.generate import (
    benchmarks,
    commands,
    gpu,
    json_documents,
    metrics,
    papers,
    python_api,
    results,
    tables,
    versions,
)

DOCS = Path(__file__).parents[1]
PAGES = {
    "reference/commands.md": commands.page,
    "reference/json.md": json_documents.page,
    "reference/results.md": results.page,
    "reference/tables.md": tables.page,
    "reference/metrics.md": metrics.page,
    "results/benchmarks.md": benchmarks.page,
}


@cache
def generated() -> dict[Path, str]:
    """Return the text of each page that is generated as a whole."""
    pages = {uri: page() for uri, page in PAGES.items()} | python_api.pages() | papers.pages()
    return {DOCS / uri: text for uri, text in pages.items()}


def texts() -> dict[Path, str]:
    """Return the text that each page has to have, for generated pages and pages with generated places."""
    made = generated()
    written = {path: path.read_text() for path in sorted(DOCS.rglob("*.md")) if path not in made}
    filled = {path: versions.filled(gpu.filled(benchmarks.filled(text))) for path, text in written.items()}
    return made | {path: text for path, text in filled.items() if text != written[path]}


def main() -> int:
    """Write the pages that are stale, and print their names."""
    for path, text in texts().items():
        if not path.is_file() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(path.relative_to(DOCS.parent))
    return 0


if __name__ == "__main__":
    sys.exit(main())
