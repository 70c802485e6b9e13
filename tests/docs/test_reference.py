"""Reference pages name what the shipped artifacts and the code hold."""

from __future__ import annotations

import json
import re

import pytest

import slotool
from docs.generate import commands, json_documents, metrics, results, tables, versions
from slotool.serving.request_options import OPTIONS
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


def test_every_environment_variable_has_its_row() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "slotool").rglob("*.py"))
    # Of the tests.
    read = set(re.findall(r"\bSLOTOOL_[A-Z_]+\b", sources)) - {"SLOTOOL_MACHINE_FACTS"}
    assert read == set(re.findall(r"^\| `(SLOTOOL_\w+)` \|", commands.page(), re.MULTILINE))


def test_every_result_and_package_is_described() -> None:
    page = results.page()
    functions = {name for name in slotool.__all__ if name.islower()} - {
        "__version__",
        "errors",
        "load",
        "pareto",
        "save",
    }
    assert {line.removeprefix("## slotool.") for line in page.splitlines() if line.startswith("## ")} == functions
    assert "| `latency_s` | Predicted latencies, float64 [n], seconds. |" in page
    assert "| torch | 2.6 | " in versions.filled(versions.MARK)


def test_every_option_of_a_request_is_on_the_page_of_the_protocol() -> None:
    page = (ROOT / "docs" / "reference" / "protocol.md").read_text()
    for option in OPTIONS:
        for name in filter(None, (option.parameter, option.header.title())):
            assert f"`{name}`" in page, f"docs/reference/protocol.md, Request options: no {name}"


def test_every_json_document_is_described_and_nothing_else() -> None:
    """That real documents have these keys and types, each test that prints one shows (``slotool`` in conftest.py)."""
    printed = {"plan", "plan-models"} | {  # of one class
        name
        for room in ("commands", "cli", "demo")
        for path in (ROOT / "slotool" / room).rglob("*.py")
        for name in re.findall(r"(?:^    schema = |\.result\(\s*)\"([a-z-]+)\"", path.read_text(), re.MULTILINE)
    }
    described = set(json_documents.DOCUMENTS)
    assert printed == described - {name for name in described if name.startswith("profile-")}
    page = json_documents.page()
    assert "## profile-colocated-plan\n" in page
    assert "| `tiers[].p_value` | number | of no violation, adjusted for tiers and folds |" in page


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"alarms": None}, "alarms is None, not integer"),
        ({"alarms": True}, "alarms is True, not integer"),
        ({"alarm": 1}, "alarm is not described"),
        ({"ensembles": [{"point": "a"}]}, "ensembles[].tolerance is missing"),
    ],
)
def test_a_document_that_is_not_as_described_is_noticed(change: dict[str, object], said: str) -> None:
    document = {
        "schema": "slotool/evaluate-drift",
        "requests": 1,
        "confidence": 0.9,
        "evidence_wanted": 10,
        "alarms": 0,
        "confirmed": 0,
    }
    document |= {"ensembles": []}
    assert not json_documents.differences(document)
    assert any(said in sentence for sentence in json_documents.differences(document | change))
