"""A small multi-label set in the Extreme Classification Repository's text format: records of animals."""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np

SPECIES, WORDS = 40, 160


def write_animals(folder: Path, examples: int = 1_500) -> Path:
    """``train.txt`` and ``test.txt.gz`` of records that name one or two species.

    A species shows in one of three words of its own amid common words. The first is in every second record, so the
    baseline that always answers the most popular label is right half the time. One record has no words, one no labels.
    """
    folder.mkdir(parents=True)
    (folder / "train.txt").write_text(_text(np.random.default_rng(0), examples))
    (folder / "test.txt.gz").write_bytes(gzip.compress(_text(np.random.default_rng(1), 400).encode()))
    return folder


def _text(rng: np.random.Generator, examples: int) -> str:
    records = [_record(rng) for _ in range(examples - 2)]
    return "\n".join([f"{examples} {WORDS} {SPECIES}", *records, "7 ", " 3:1", ""])


def _record(rng: np.random.Generator) -> str:
    species = sorted({int(rng.integers(1, SPECIES))} | ({0} if rng.random() < 0.5 else set()))
    words = {3 * one + int(rng.integers(3)): 0.5 + rng.random() / 2 for one in species}
    words |= {int(word): rng.random() / 4 for word in rng.integers(3 * SPECIES, WORDS, 6)}
    return f"{','.join(map(str, species))} " + " ".join(f"{word}:{value:.3f}" for word, value in sorted(words.items()))
