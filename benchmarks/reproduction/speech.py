"""A speech recogniser whose beam widths are service versions, as in the Tolerance Tiers paper: its outcome table.

``python speech.py RECORDINGS -o asr-outcomes.parquet`` decodes recordings in the layout of
VoxForge (``SPEAKER/wav/NAME.wav`` of 16 kHz and ``SPEAKER/etc/PROMPTS``) with pocketsphinx and the English model that
comes with it, at seven beam widths.
"""

from __future__ import annotations

import argparse
import wave
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from slotool.errors import DataError
from slotool.extras import require
from slotool.tables import OutcomeTable
from slotool.timing.turns import in_turns, timing_columns

# Beams of states and of words as powers of ten, from narrow to beyond pocketsphinx's default, which is the sixth.
VERSIONS = {
    "1": (-30, -18),
    "2": (-33, -20),
    "3": (-36, -22),
    "4": (-40, -24),
    "5": (-44, -26),
    "6": (-48, -28),
    "7": (-56, -34),
}
SAMPLE_RATE_HZ = 16_000


@dataclass(frozen=True)
class Utterance:
    """``name``: the speaker's folder and the recording; ``text``: what was said, in lower case."""

    name: str
    file: Path
    text: str


def asr_outcomes(
    folder: Path, *, limit: int | None = None, seed: int = 0, progress: Callable[[], None] = lambda: None
) -> OutcomeTable:
    """The outcome table of ``folder``'s recordings: the word error rate of each version, 1 where it is more.

    ``limit``: so many recordings, drawn by the seed. ``progress`` is called after each. The confidence is the decoder's
    posterior probability of its hypothesis, the latency the seconds of decoding.

    Raises ``DataError`` for a folder without recordings or one that is not in this layout, ``MissingPackageError``
    without pocketsphinx and rapidfuzz.
    """
    require("pocketsphinx", "rapidfuzz", needed_by="a speech recogniser")
    utterances = sorted(_utterances(folder), key=lambda utterance: utterance.name)
    if not utterances:
        raise DataError(f"{folder}: no recordings; expected SPEAKER/etc/PROMPTS with SPEAKER/wav/NAME.wav")
    if limit is not None and limit < len(utterances):
        chosen = np.random.default_rng(seed).choice(len(utterances), limit, replace=False)
        utterances = [utterances[at] for at in sorted(chosen)]
    decoders = {version: _decoder(*beams) for version, beams in VERSIONS.items()}
    answers: list[list[dict[str, Any]]] = [[{}] * len(utterances) for _ in decoders]

    def queries(block: range) -> list[list[tuple[Any, bytes]]]:
        sounds = [_sound(utterances[i].file) for i in block]
        return [[(decoder, sound) for sound in sounds] for decoder in decoders.values()]

    def received(version: int, utterance: int, hypothesis: Any) -> None:
        answers[version][utterance] = _answer(utterances[utterance], hypothesis)

    turns = in_turns([_decode] * len(decoders), queries, len(utterances), received=received, progress=progress)
    parts = [
        pd.DataFrame(answers[at]).assign(version=f"beam {version}", **timing_columns(turns, at))
        for at, version in enumerate(decoders)
    ]
    return OutcomeTable(pd.concat(parts, ignore_index=True))


def _utterances(folder: Path) -> Iterator[Utterance]:
    for prompts in folder.glob("*/etc/PROMPTS"):
        speaker = prompts.parents[1]
        for line in prompts.read_text(encoding="utf-8", errors="replace").splitlines():
            path, _, text = line.strip().partition(" ")
            file = speaker / "wav" / f"{path.rpartition('/')[2]}.wav"
            if text and file.is_file():
                yield Utterance(f"{speaker.name}/{file.stem}", file, text.lower())


def _decoder(beam: int, word_beam: int) -> Any:
    from pocketsphinx import Config, Decoder

    return Decoder(Config(beam=10.0**beam, wbeam=10.0**word_beam, loglevel="FATAL"))


def _sound(file: Path) -> bytes:
    try:
        with wave.open(str(file)) as opened:
            form = (opened.getnchannels(), opened.getsampwidth(), opened.getframerate())
            if form != (1, 2, SAMPLE_RATE_HZ):
                raise DataError(f"{file}: expected one channel of 16 bits at {SAMPLE_RATE_HZ:,} Hz, got {form}")
            return bytes(opened.readframes(opened.getnframes()))
    except (wave.Error, EOFError) as error:
        raise DataError(f"{file}: not a WAV file ({error})") from error


def _decode(decoder: Any, sound: bytes) -> Any:
    decoder.start_utt()
    decoder.process_raw(sound, full_utt=True)
    decoder.end_utt()
    return decoder.hyp()


def _answer(utterance: Utterance, heard: Any) -> dict[str, Any]:
    words = "" if heard is None else heard.hypstr
    return {
        "example": utterance.name,
        "error": word_error_rate(utterance.text.split(), words.split()),
        "confidence": 0.0 if heard is None else float(heard.prob),
        "answer": words,
    }


def word_error_rate(said: Sequence[str], heard: Sequence[str]) -> float:
    """Words to insert, delete or replace, over the words said; 1 where that is more."""
    from rapidfuzz.distance import Levenshtein

    changed: int = Levenshtein.distance(said, heard)
    return min(1.0, changed / max(1, len(said)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("recordings", type=Path)
    parser.add_argument("-o", "--out", type=Path, default=Path("asr-outcomes.parquet"))
    parser.add_argument("--limit", type=int)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    asr_outcomes(given.recordings, limit=given.limit, seed=given.seed).save(given.out)


if __name__ == "__main__":
    main()
