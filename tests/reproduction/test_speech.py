"""A speech recogniser's beam widths as versions; the recording is the voice of a synthesiser."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.reproduction.speech import VERSIONS, asr_outcomes, word_error_rate
from slotool.errors import DataError

RECORDINGS = Path(__file__).with_name("voxforge")


@pytest.mark.parametrize(
    ("said", "heard", "rate"),
    [
        ("one two three", "one two three", 0.0),
        ("one two three four", "one too three four", 0.25),
        ("one two", "one or two", 0.5),
        ("one two", "one", 0.5),
        ("one", "won or lost", 1.0),
        ("one", "", 1.0),
    ],
)
def test_the_word_error_rate_counts_words_to_change(said: str, heard: str, rate: float) -> None:
    assert word_error_rate(said.split(), heard.split()) == rate


@pytest.mark.long
def test_every_beam_width_is_a_version_and_the_widest_hears_the_words() -> None:
    pytest.importorskip("pocketsphinx", reason="the speech extra is not installed")
    table = asr_outcomes(RECORDINGS)
    assert table.examples == ["synthetic/a0004"]
    assert table.versions == [f"beam {number}" for number in VERSIONS]
    widest = table.rows["version"] == table.versions[-1]
    assert table.rows.loc[widest, "answer"].tolist() == ["one two three four five"]
    assert table.matrix("error")[0, -1] == 0.0
    assert table.matrix("latency_s").min() > 0


def test_what_is_no_recording_is_named(tmp_path: Path) -> None:
    pytest.importorskip("pocketsphinx", reason="the speech extra is not installed")
    with pytest.raises(DataError, match="no recordings; expected SPEAKER/etc/PROMPTS"):
        asr_outcomes(tmp_path)
    for folder in ("etc", "wav"):
        (tmp_path / "someone" / folder).mkdir(parents=True)
    (tmp_path / "someone" / "etc" / "PROMPTS").write_text("someone/mfc/a1 HELLO\n")
    (tmp_path / "someone" / "wav" / "a1.wav").write_bytes(b"RIFF no sound")
    with pytest.raises(DataError, match=r"a1\.wav: not a WAV file"):
        asr_outcomes(tmp_path)
