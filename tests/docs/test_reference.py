"""Reference pages name what the shipped artifacts and the code hold."""

from __future__ import annotations

import json

from docs.generate import commands, metrics, tables
from slotool.tables import LATENCY_SCHEMA
from tests.docs.pages import ROOT


def test_every_file_and_key_of_the_shipped_artifacts_is_described() -> None:
    page = (ROOT / "docs" / "reference" / "artifacts.md").read_text()
    for manifest in (ROOT / "models").glob("*/manifest.json"):
        described = json.loads(manifest.read_text())
        for word in [described["kind"], *described, *described["files"]]:
            assert f"`{word}`" in page, f"{manifest.parent.name}: {word}"


def test_every_column_command_and_metric_has_its_row() -> None:
    page = tables.page()
    assert all(f"| `{column.name}`" in page for column in LATENCY_SCHEMA.columns)
    page = commands.page()
    assert "## slotool profile solo\n" in page
    assert "| `--deadline-ms` | number ≥ 0.001 | required |" in page
    assert "| `slotool_requests_total` | counter | `model`, `outcome` |" in metrics.page()
