"""Float32 or int8 weights for a model with tables: as asked for, or as validation data decide."""

from __future__ import annotations

import numpy as np

from slotool.elastic.activators.build import ALLOWED_LOSS, AnyData, right
from slotool.elastic.activators.slo_nn import SloNN
from slotool.errors import InputError

# What int8 weights may cost on top of ``ALLOWED_LOSS``.
QUANTIZATION_LOSS = 0.0003
# A smaller network gains nothing from int8 in all layers: the call itself takes longest.
MIN_WEIGHTS_TO_QUANTIZE = 1 << 15
# Of the bytes of float32 rows.
INT8_BYTES_SHARE = 0.25


def with_weight_dtype(
    model: SloNN, data: AnyData, weight_dtype: str = "auto", allowed_loss: float = ALLOWED_LOSS
) -> SloNN:
    """``model`` with weights of ``weight_dtype``: float32, int8 or auto. Promises are counted with those weights.

    auto takes int8 where validation accuracy, with k chosen per input at the allowed loss, falls by at most
    ``QUANTIZATION_LOSS``. Where the output layer has no activator, int8 applies to all layers at k = 100 %. Then auto
    also requires that the network is not tiny, and that the float32 rows chosen at the allowed loss are more bytes.
    A model that was loaded and not just built promises no k in int8. Raises ``InputError`` for int8 where inputs are
    negative.
    """
    if weight_dtype == "float32" or (weight_dtype == "auto" and not model.mlp.dense):
        return model
    if len(model.mlp.layers) - 1 not in model.activators:
        return _all_quantized(model, data, weight_dtype)
    quantized = model.at_int8(calibration=model.calibration)
    split = data.validation
    if weight_dtype == "auto":
        target = float(model.calibration.by_point[-1]) - allowed_loss
        own, its = (right(m.top(split.x, accuracy=target)[0], split.y).mean() for m in (model, quantized))
        if its < own - QUANTIZATION_LOSS:
            return model
    if model.calibration.estimates is None:
        return model.at_int8()
    labels = [quantized.top(split.x, point=point)[0] for point in quantized.points]
    return model.at_int8(calibration=model.calibration.counted(right(np.concatenate(labels, axis=1), split.y)))


def _all_quantized(model: SloNN, data: AnyData, weight_dtype: str) -> SloNN:
    """``with_weight_dtype`` where the output layer has no activator."""
    split, size = data.validation, sum(layer.weights.size for layer in model.mlp.layers)
    if weight_dtype == "auto" and (
        model.sparse or size < MIN_WEIGHTS_TO_QUANTIZE or model.mean_k[model.measure] < INT8_BYTES_SHARE
    ):
        return model
    quantized = model.at_int8()
    if min(split.x.min(), data.train.x.min()) < 0:
        if weight_dtype == "auto":
            return model
        raise InputError(f"{data.name}: int8 in all layers needs inputs that are not negative, and some are")
    exact, its = (right(m.forward(split.x, m.full).argmax(axis=1)[:, None], split.y)[:, 0] for m in (model, quantized))
    own, accuracy = float(model.calibration.by_point[-1]), float(its.mean())
    if weight_dtype == "auto" and accuracy < own - QUANTIZATION_LOSS:
        return model
    lost, gained = int((exact & ~its).sum()), int((its & ~exact).sum())
    return model.at_int8(calibration=model.calibration.with_full(accuracy, lost, gained))
