"""Hooks of mkdocs: pages that are generated from code and from recorded benchmarks."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

sys.path.insert(0, str(Path(__file__).parents[1]))

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

PAGES = {
    "reference/commands.md": commands.page,
    "reference/json.md": json_documents.page,
    "reference/results.md": results.page,
    "reference/tables.md": tables.page,
    "reference/metrics.md": metrics.page,
    "results/benchmarks.md": benchmarks.page,
}


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages to those that lie in ``docs/``."""
    pages = {uri: page() for uri, page in PAGES.items()} | python_api.pages() | papers.pages()
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    for uri, path in papers.plots().items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Put recorded figures into the results pages, and versions into theirs."""
    return (
        gpu.filled(benchmarks.filled(markdown))
        if page.file.src_uri.startswith("results/")
        else versions.filled(markdown)
    )
