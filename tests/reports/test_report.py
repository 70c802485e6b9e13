"""``slotool report`` end to end: what is found, what is drawn, and a page that asks nobody for anything."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from slotool.errors import InputError
from slotool.reports import collect
from slotool.reports.report import figures_of
from slotool.rules import RuleSet
from slotool.tables import OutcomeTable
from slotool.workloads.requests import RequestLog
from tests.reports.made_tables import family_outcomes, outcomes, request_log, slo_nn_outcomes
from tests.serving.browser import browser_at

PLOTS = {
    "predicted-predictor",
    "accuracy-k-slo-nn",
    "accuracy-latency-digits-test",
    "tiers-rules-response-time",
    "tiers-rules-cost",
    "latency-latency",
    "degradation-latency",
    "switching-plan",
    "switching-load",
    "served-slo-nn",
}


class Page(HTMLParser):
    """Everything of a page that a browser would load, and its pictures by the section that they are in."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.tags: list[str] = []
        self.policy = ""
        self.pictures: dict[str, bytes] = {}
        self._section = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.loads += [given[name] for name in ("src", "href", "data", "action", "srcset") if name in given]
        if given.get("http-equiv") == "Content-Security-Policy":
            self.policy = given["content"]
        if tag == "section":
            self._section = given.get("id", "")
        if tag == "img":
            self.pictures[self._section] = base64.b64decode(given["src"].removeprefix("data:image/png;base64,"))


def test_a_run_folder_becomes_a_page_and_pngs(slotool: Any, run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    request_log(20, failed=20).save(run_folder / "dead.parquet")
    run = slotool("report", run_folder, "-o", out, "--title", "A run & more", "--json")
    assert run.exit_code == 0, run.stderr
    assert {plot["id"] for plot in run.document["plots"]} == PLOTS
    assert sorted(run.document["not_drawn"].values()) == ["arrivals table", "request log without a single answer"]
    page = Page(out.read_text())
    assert set(page.pictures) == PLOTS
    assert "<h1>A run &amp; more</h1>" in out.read_text()
    for name in PLOTS:
        assert (tmp_path / "report_plots" / f"{name}.png").read_bytes() == page.pictures[name]
        with Image.open(io.BytesIO(page.pictures[name])) as image:
            assert image.width > 1000
            assert len(image.convert("L").getcolors(256) or ()) > 10, "something is drawn on it"


def test_the_page_asks_nobody_for_anything_and_what_a_person_sees(
    slotool: Any, run_folder: Path, tmp_path: Path
) -> None:
    out = tmp_path / "report.html"
    run = slotool("report", run_folder, "-o", out)
    assert run.exit_code == 0
    assert "slo-nn: served latency" in run.stdout
    assert "works offline" in run.stdout
    assert "arrivals.parquet (arrivals table)" in run.stderr
    text = out.read_text()
    for said in ("Machine", "predictor", "seed 3", "endpoint infer", "Each dot is one of 40 networks"):
        assert said in text
    page = Page(text)
    assert not [url for url in page.loads if not url.startswith(("#", "data:"))]
    assert not {"iframe", "object", "embed", "form", "script"} & set(page.tags)
    assert "default-src 'none'" in page.policy
    assert "http" not in page.policy
    assert not re.search(r"@import|url\(\s*['\"]?http", text.partition("</style>")[0])
    assert out.stat().st_size < 1_500_000, "a page that is sent by mail"


def test_names_from_outside_cannot_become_code(slotool: Any, tmp_path: Path) -> None:
    table = slo_nn_outcomes()
    table.provenance["subject"] = "</script><script>alert(1)</script>"
    table.save(tmp_path / "o.parquet")
    run = slotool("report", tmp_path / "o.parquet", "-o", tmp_path / "r.html")
    assert run.exit_code == 0, run.stderr
    assert "alert(1)</script>" not in (tmp_path / "r.html").read_text()


def test_folders_are_searched_one_level_deep(run_folder: Path) -> None:
    request_log(30).save(run_folder / "a" / "b" / "deep.parquet")
    found = collect([run_folder])
    assert [path.name for path, _ in found.of(RequestLog)] == ["requests.parquet"]
    assert [artifact.name for artifact in found.artifacts] == ["predictor"]


def test_what_is_named_twice_is_drawn_once(run_folder: Path) -> None:
    found = collect([run_folder / "slo-nn-outcomes.parquet", run_folder, run_folder / "rules.json"])
    assert (len(found.of(OutcomeTable)), len(found.of(RuleSet))) == (2, 1)


def test_tables_of_other_data_get_a_plot_of_their_own(tmp_path: Path) -> None:
    other = family_outcomes()
    other.provenance["data"] = "fashion-mnist"
    other.save(tmp_path / "a.parquet")
    family_outcomes().save(tmp_path / "b.parquet")
    slo_nn_outcomes().save(tmp_path / "c.parquet")
    titles = [figure.title for figure in figures_of(collect([tmp_path])) if figure.id.startswith("accuracy-latency")]
    assert titles == ["Accuracy against latency, fashion-mnist (test)", "Accuracy against latency, digits (test)"]


def test_the_same_subject_twice_keeps_two_names(tmp_path: Path) -> None:
    for name in ("first", "second"):
        request_log(40).save(tmp_path / f"{name}-load.parquet")
        family_outcomes().save(tmp_path / f"{name}.parquet")
    figures = figures_of(collect([tmp_path]))
    assert [figure.id for figure in figures] == ["accuracy-latency-digits-test", "served-slo-nn", "served-slo-nn-2"]
    names = {curve.name for curve in figures[0].curves}
    assert names == {"Pareto front", "family · first", "family · second"}


def test_csv_tables_are_known_by_their_columns(tmp_path: Path) -> None:
    frame = family_outcomes().rows.drop(columns="cost")
    frame.to_csv(tmp_path / "o.csv", index=False)
    (tmp_path / "other.csv").write_text("name,size\na,1\n")
    found = collect([tmp_path])
    assert len(found.of(OutcomeTable)) == 1
    with pytest.raises(InputError, match="neither a table"):
        collect([tmp_path / "other.csv"])


def torn(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def test_damage_is_a_sentence(slotool: Any, run_folder: Path, tmp_path: Path) -> None:
    sentences = {
        "slo-nn-outcomes.parquet": "not a readable Parquet file",
        "load/requests.parquet": "not a readable Parquet file",
        "predictor/predictions.parquet": "is not what was written",
        "rules.json": "not a JSON file",
        "plan.json": "not a JSON file",
    }
    for damaged in sentences:
        torn(run_folder / damaged)
    run = slotool("report", run_folder, "-o", tmp_path / "all.html", "--json")
    assert run.exit_code == 0
    warnings = [line for line in run.stderr.splitlines() if line.startswith("warning: ")]
    assert len(warnings) == len(sentences)
    assert list(run.document["not_drawn"].values()).count("damaged") == len(sentences)
    for damaged, sentence in sentences.items():
        name = damaged.removesuffix("/predictions.parquet")
        (warning,) = [line for line in warnings if name in line]
        assert sentence in warning
        run = slotool("report", run_folder / name, "-o", tmp_path / "r.html")
        assert run.exit_code == 2
        assert sentence in run.stderr
        assert Path(damaged).parts[0] in run.stderr
        assert not (tmp_path / "r.html").exists()
        assert not (tmp_path / "r_plots").exists()


def test_nothing_to_draw_is_a_sentence(slotool: Any, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    empty.mkdir()
    (empty / "notes.txt").write_text("nothing")
    for given, sentence in (
        (empty, "nothing to draw"),
        (empty / "notes.txt", "neither a table, a rule set, a plan nor an artifact"),
        (tmp_path / "nowhere", "no such file or folder"),
    ):
        run = slotool("report", given, "-o", tmp_path / "r.html")
        assert run.exit_code == 2
        assert sentence in run.stderr
        assert not (tmp_path / "r.html").exists()


def test_a_report_is_replaced_only_when_told(slotool: Any, run_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.html"
    assert slotool("report", run_folder / "plan.json", "-o", out).exit_code == 0
    before = out.read_bytes()
    again = slotool("report", run_folder / "rules.json", "-o", out)
    assert again.exit_code == 2
    assert "--force" in again.stderr
    assert out.read_bytes() == before
    assert slotool("report", run_folder / "rules.json", "-o", out, "--force").exit_code == 0
    assert sorted(path.stem for path in (tmp_path / "r_plots").iterdir()) == [
        "tiers-rules-cost",
        "tiers-rules-response-time",
    ], "no plot of the old report is left"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["r.html", "r_plots", "run"], "nor anything else"


def test_a_folder_of_somebody_elses_is_never_replaced(slotool: Any, run_folder: Path, tmp_path: Path) -> None:
    (tmp_path / "r_plots").mkdir()
    (tmp_path / "r_plots" / "thesis.tex").write_text("years of work")
    run = slotool("report", run_folder, "-o", tmp_path / "r.html", "--force")
    assert run.exit_code == 2
    assert (tmp_path / "r_plots" / "thesis.tex").exists()


def test_every_plot_is_drawn_within_the_window(slotool: Any, run_folder: Path, tmp_path: Path) -> None:
    versions = {f"depth=1-{i},expand=0.25-0.5,width=0.75": (20 - i, 1e-6 * (10 + i)) for i in range(6)}
    supernet = {"subject": "supernet", "kind": "supernet", "data": "digits", "split": "validation"}
    outcomes(versions, supernet).save(run_folder / "supernet-outcomes.parquet")
    slotool("report", run_folder, "-o", tmp_path / "r.html")
    for width in (390, 1280):
        with browser_at("data:text/html,") as browser:
            size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
            browser.call("Emulation.setDeviceMetricsOverride", **size)
            browser.call("Page.navigate", url=(tmp_path / "r.html").as_uri())
            browser.until("document.readyState === 'complete' && document.querySelectorAll('img').length > 0")
            assert browser.value("document.documentElement.scrollWidth") <= width
            widths = browser.value("[...document.querySelectorAll('img')].map(e => e.naturalWidth && e.clientWidth)")
            frames = browser.value("[...document.querySelectorAll('img')].map(e => e.parentElement.clientWidth)")
            # On a phone a picture keeps a size at which it can be read, and scrolls in its frame.
            assert 600 < min(widths) <= max(widths) <= max(width, 640)
            assert max(frames) <= width
            assert not browser.complaints
            assert not browser.asked_elsewhere
