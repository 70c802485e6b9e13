"""Whether a model reads its rows as float32 or int8: as asked for, or as validation data tell."""

from __future__ import annotations

import numpy as np

from slotool.elastic.activators.build import ALLOWED_LOSS, AnyData, right
from slotool.elastic.activators.slo_nn import SloNN
from slotool.errors import InputError

# What int8 rows may cost on top of ``ALLOWED_LOSS``.
ROUNDING_LOSS = 0.0003
# A smaller network is not worth rounding in full: what it takes is the call.
MIN_WEIGHTS_TO_QUANTIZE = 1 << 15
# Of the bytes of float32 rows.
INT8_BYTES_SHARE = 0.25


def with_rows(model: SloNN, data: AnyData, rows: str = "auto", allowed_loss: float = ALLOWED_LOSS) -> SloNN:
    """``model`` with rows read as ``rows`` says: float32, int8, or auto; what it promises counted with those rows.

    auto: int8 where validation accuracy, with k chosen per input at the allowed loss, is not lower by more than
    ``ROUNDING_LOSS``. Where the output layer has no activator int8 means all layers in full; then auto asks as well
    that the network is not tiny, and that as many float32 rows as are chosen at the allowed loss are more to read.
    A model that was loaded and not just built promises no k in int8. Raises ``InputError`` for int8 where inputs are
    negative.
    """
    if rows == "float32" or (rows == "auto" and not model.mlp.dense):
        return model
    if len(model.mlp.layers) - 1 not in model.activators:
        return _all_rounded(model, data, rows)
    rounded = model.at_int8(calibration=model.calibration)
    split = data.validation
    if rows == "auto":
        target = float(model.calibration.by_point[-1]) - allowed_loss
        own, its = (right(m.top(split.x, accuracy=target)[0], split.y).mean() for m in (model, rounded))
        if its < own - ROUNDING_LOSS:
            return model
    if model.calibration.estimates is None:
        return model.at_int8()
    labels = [rounded.top(split.x, point=point)[0] for point in rounded.points]
    return model.at_int8(calibration=model.calibration.counted(right(np.concatenate(labels, axis=1), split.y)))


def _all_rounded(model: SloNN, data: AnyData, rows: str) -> SloNN:
    """``with_rows`` where the output layer has no activator."""
    split, size = data.validation, sum(layer.weights.size for layer in model.mlp.layers)
    if rows == "auto" and (
        model.sparse or size < MIN_WEIGHTS_TO_QUANTIZE or model.mean_k[model.measure] < INT8_BYTES_SHARE
    ):
        return model
    rounded = model.at_int8()
    if min(split.x.min(), data.train.x.min()) < 0:
        if rows == "auto":
            return model
        raise InputError(f"{data.name}: int8 in all layers asks for inputs that are not negative, and some are")
    exact, its = (right(m.forward(split.x, m.full).argmax(axis=1)[:, None], split.y)[:, 0] for m in (model, rounded))
    own, accuracy = float(model.calibration.by_point[-1]), float(its.mean())
    if rows == "auto" and accuracy < own - ROUNDING_LOSS:
        return model
    lost, gained = int((exact & ~its).sum()), int((its & ~exact).sum())
    return model.at_int8(calibration=model.calibration.with_full(accuracy, lost, gained))
