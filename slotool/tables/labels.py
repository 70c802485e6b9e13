"""Text of an answer, equal for the label 1 of one file and the label 1.0 of another."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

# A whole number with a point, as tools write it in a column that has a gap.
_WHOLE = re.compile(r"([-+]?[0-9]+)\.0*")


def label_text(answer: Any) -> str:
    """Return an answer as tables and rules write it: stripped, whole numbers without a point, None and NaN empty.

    Exported rules do the same (``rules.exports.standalone_router``).
    """
    if answer is None or (isinstance(answer, float) and math.isnan(answer)):
        return ""
    text = str(answer).strip()
    whole = _WHOLE.fullmatch(text)
    if whole is None:
        return text
    return "0" if whole[1] == "-0" else whole[1]


def label_texts(answers: pd.Series) -> pd.Series:
    """Return ``label_text`` of each answer."""
    texts = answers.astype(object).where(answers.notna(), "").astype(str)
    return texts.map({text: label_text(text) for text in texts.unique()}).astype(object)
