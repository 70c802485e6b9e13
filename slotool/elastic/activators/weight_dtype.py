"""Float32 or int8 weights for a model with tables: as asked for, or as validation data decide."""

from __future__ import annotations

import numpy as np

from slotool.elastic.activators.build import ALLOWED_LOSS, AnyData, right
from slotool.elastic.activators.slo_nn import SloNN

# What int8 weights may cost on top of ``ALLOWED_LOSS``.
QUANTIZATION_LOSS = 0.0003


def with_weight_dtype(
    model: SloNN, data: AnyData, weight_dtype: str = "auto", allowed_loss: float = ALLOWED_LOSS
) -> SloNN:
    """``model`` with weights of ``weight_dtype``: float32, int8 or auto. Promises are counted with those weights.

    auto takes int8 where the output layer has an activator, and validation accuracy, with k chosen per input at the
    allowed loss, falls by at most ``QUANTIZATION_LOSS``. A model that was loaded and not just built promises no k in
    int8. Raises ``InputError`` for int8 where the output layer has no activator.
    """
    if weight_dtype == "float32" or (weight_dtype == "auto" and len(model.mlp.layers) - 1 not in model.activators):
        return model
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
