"""Classes by their names and by their numbers."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def class_numbers(answers: np.ndarray, names: Sequence[str]) -> np.ndarray:
    """The class that each answer names, text or a number: int64 [n], from 0; −1 where it is none of ``names``. Where no
    answer is a name, a number is the class's own."""
    texts = [value.decode(errors="replace") if isinstance(value, bytes) else str(value) for value in answers.flat]
    at = {name: number for number, name in enumerate(names)}
    if not any(text in at for text in texts):
        at = {str(number): number for number in range(len(names))}
    return np.array([at.get(text, -1) for text in texts], dtype=np.int64)
