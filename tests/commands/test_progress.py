"""``progress=`` in its forms."""

from __future__ import annotations

import sys
from threading import Event

import pytest

from slotool import progress
from slotool.cli import output
from slotool.errors import SlotoolWarning
from slotool.progress import named_if_slow, reporter_of


def work(wanted: object) -> None:
    reporter = reporter_of(wanted)
    with reporter.progress("counting", total=2) as steps:
        steps.advance()
        steps.say("counting on")
        steps.advance()
    reporter.note("done")
    with pytest.warns(SlotoolWarning, match="late"):
        reporter.warn("late")


@pytest.mark.parametrize("wanted", ["auto", None, False])
def test_a_script_hears_of_warnings_only(wanted: object, capsys: pytest.CaptureFixture[str]) -> None:
    work(wanted)
    assert capsys.readouterr() == ("", "")


def test_a_function_is_called_after_each_step(capsys: pytest.CaptureFixture[str]) -> None:
    heard: list[tuple[str, int, int | None]] = []
    work(lambda *step: heard.append(step))
    assert heard == [("counting", 1, 2), ("counting on", 1, 2), ("counting on", 2, 2)]
    assert capsys.readouterr() == ("", "")


def test_a_notebook_gets_one_line_that_rewrites_itself(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class IPython:
        @staticmethod
        def get_ipython() -> object:
            return type("Shell", (), {"kernel": object()})()

    monkeypatch.setitem(sys.modules, "IPython", IPython)
    work("auto")
    printed = capsys.readouterr().err
    assert "counting on" in printed
    assert "2/2" in printed
    assert printed.endswith("done\n")


def test_anything_else_is_refused() -> None:
    with pytest.raises(TypeError, match="progress is"):
        reporter_of(3)


def test_off_a_terminal_a_long_phase_prints_how_far_it_is(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "LINE_S", 0.0)
    with output.Output().progress("counting", total=2) as steps:
        steps.advance()
        steps.advance()
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "counting (2)"
    assert ["1 of 2" in lines[1], "2 of 2" in lines[2], len(lines)] == [True, True, 3]


@pytest.mark.parametrize("slow_s", [0.01, 3_600.0])
def test_only_a_slow_step_is_named(slow_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SLOW_S", slow_s)
    named, texts = Event(), list[str]()

    def note(text: str) -> None:
        texts.append(text)
        named.set()

    with named_if_slow(note, "loading"):
        if slow_s < 1:
            assert named.wait(60)
    assert [text.startswith("loading since ") for text in texts] == [True] * (slow_s < 1)
