"""Lines of the Extreme Classification Repository's text format to numbers, compiled.

Import this module only where such a file is read: it brings in Numba.
"""

from __future__ import annotations

import numpy as np

from slotool.compilation import njit

NO_FAULT, BAD_LABEL, BAD_FEATURE, BAD_VALUE, LABEL_RANGE, FEATURE_RANGE = range(6)

_NEWLINE, _RETURN, _SPACE, _TAB, _COMMA, _COLON = (ord(c) for c in "\n\r \t,:")
_ZERO, _NINE, _PLUS, _MINUS, _POINT, _SMALL_E, _LARGE_E = (ord(c) for c in "09+-.eE")
# Decimal digits of an int64; more cannot change a float32.
_DIGITS = 18
_TOO_LARGE = np.int64(1) << 40


@njit(cache=True, nogil=True)
def parse_lines(
    text: np.ndarray,
    features: int,
    classes: int,
    labels: np.ndarray,
    columns: np.ndarray,
    values: np.ndarray,
    label_counts: np.ndarray,
    feature_counts: np.ndarray,
) -> tuple[int, int, int, int, int]:
    """Parse whole lines ``l1,l2,… f:v f:v …`` (uint8 [bytes], each ended by a newline) into the arrays given.

    ``labels`` and ``columns``: int32, ``values``: float32, one entry after the other; ``label_counts`` and
    ``feature_counts``: int64, one per line. A line that begins with a space, or with ``f:v``, has no labels.
    Returns (lines, labels, features, fault, position): a fault ends parsing at that byte, in that line. Raises
    ``ValueError`` for text that does not end with a newline, where every loop stops.
    """
    if len(text) > 0 and text[-1] != _NEWLINE:
        raise ValueError("text without a newline at its end")
    at, lines, label_count, feature_count, fault = 0, 0, 0, 0, NO_FAULT
    while at < len(text):
        labels_before, features_before = label_count, feature_count
        label_count, at, fault = _labels(text, at, classes, labels, label_count)
        if fault == NO_FAULT:
            feature_count, at, fault = _features(text, at, features, columns, values, feature_count)
        if fault != NO_FAULT:
            break
        label_counts[lines] = label_count - labels_before
        feature_counts[lines] = feature_count - features_before
        lines += 1
    return lines, label_count, feature_count, fault, at


@njit(cache=True)
def _labels(text: np.ndarray, at: int, classes: int, labels: np.ndarray, count: int) -> tuple[int, int, int]:
    """Parse labels up to the first blank; return their number, the text's next position, and the fault."""
    first = count
    while _is_digit(text[at]):
        number, end = _integer(text, at)
        if text[end] == _COLON and count == first:
            break  # no labels: this is the first feature already
        followed = text[end] == _COMMA
        if followed != _is_digit(text[end + followed]) or not (followed or _is_blank(text[end])):
            return count, at, BAD_LABEL
        if number >= classes:
            return count, at, LABEL_RANGE
        labels[count] = number
        count += 1
        at = end + followed
    return count, at, NO_FAULT


@njit(cache=True)
def _features(
    text: np.ndarray, at: int, features: int, columns: np.ndarray, values: np.ndarray, count: int
) -> tuple[int, int, int]:
    """Parse features up to the end of the line; return as ``_labels``."""
    while True:
        while text[at] != _NEWLINE and _is_blank(text[at]):
            at += 1
        if text[at] == _NEWLINE:
            return count, at + 1, NO_FAULT
        number, end = _integer(text, at)
        if end == at or text[end] != _COLON:
            return count, at, BAD_FEATURE
        if number >= features:
            return count, at, FEATURE_RANGE
        value, end = _decimal(text, end + 1)
        if not np.isfinite(value) or not _is_blank(text[end]):
            return count, at, BAD_VALUE
        columns[count] = number
        values[count] = value
        count += 1
        at = end


@njit(cache=True)
def _is_digit(byte: int) -> bool:
    return _ZERO <= byte <= _NINE


@njit(cache=True)
def _is_blank(byte: int) -> bool:
    return byte in (_SPACE, _NEWLINE, _TAB, _RETURN)


@njit(cache=True)
def _integer(text: np.ndarray, at: int) -> tuple[np.int64, int]:
    """Return the digits from ``at`` on, and where they end; one too large for any index stays too large."""
    number = np.int64(0)
    while _is_digit(text[at]):
        if number < _TOO_LARGE:
            number = 10 * number + np.int64(text[at] - _ZERO)
        at += 1
    return number, at


@njit(cache=True)
def _decimal(text: np.ndarray, at: int) -> tuple[np.float32, int]:
    """Return a number such as ``-0.25`` or ``3e-05`` and where it ends; NaN when there is none."""
    negative = text[at] == _MINUS
    if negative or text[at] == _PLUS:
        at += 1
    mantissa, digits, exponent, any_digit, fraction = np.int64(0), 0, 0, False, False
    while _is_digit(text[at]) or (text[at] == _POINT and not fraction):
        if text[at] == _POINT:
            fraction = True
        else:
            any_digit = True
            if digits < _DIGITS:
                mantissa = 10 * mantissa + np.int64(text[at] - _ZERO)
                digits += int(mantissa > 0)
                exponent -= fraction
            elif not fraction:
                exponent += 1
        at += 1
    if not any_digit:
        return np.float32(np.nan), at
    if text[at] == _SMALL_E or text[at] == _LARGE_E:
        sign = 1
        at += 1
        if text[at] == _MINUS or text[at] == _PLUS:
            sign = -1 if text[at] == _MINUS else 1
            at += 1
        if not _is_digit(text[at]):
            return np.float32(np.nan), at
        power, at = _integer(text, at)
        exponent += sign * min(int(power), 1000)
    value = _scaled(np.float64(mantissa), exponent)
    return np.float32(-value if negative else value), at


@njit(cache=True)
def _scaled(mantissa: float, exponent: int) -> float:
    """Return mantissa · 10^exponent; exactly rounded for the short numbers that such files hold."""
    if mantissa == 0.0:
        return 0.0
    if -22 <= exponent < 0:
        return mantissa / 10.0 ** (-exponent)
    if exponent < 0:
        return mantissa / 1e22 * 10.0 ** max(exponent + 22, -300)
    return mantissa * 10.0 ** min(exponent, 300)
