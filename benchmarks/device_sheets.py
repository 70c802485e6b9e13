"""Devices without labels: a family of GPUs is hidden, and its latencies are scaled from others by device sheets.

Labels are those in ``models/predictor-devices``. *nearest × both* is what ``predict --device-sheet`` does: the labels
of the nearest GPU with the same backend ÷ the geometric mean of the ratios of peak bandwidth and FLOPs. Beside it each
ratio alone, and *both* over the mean of all GPUs. ``covered``: share of labels in the 90 % interval by errors of the
families that are not hidden.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from slotool.predictors.labels import Setting
from slotool.predictors.settings.model import SettingsModel
from slotool.predictors.settings.predictor import SettingsPredictor
from slotool.predictors.settings.sheets import DeviceSheet, device_errors, nearest_known, shipped_sheets
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.trained.residuals import Residuals

SHIPPED = Path(__file__).parents[1] / "models" / "predictor-devices"


def shipped_model() -> SettingsModel:
    predictor = TrainedPredictor.load(str(SHIPPED)).predictor
    assert isinstance(predictor, SettingsPredictor)
    assert predictor.model is not None
    return predictor.model


def mape(predicted: np.ndarray, log_s: np.ndarray) -> float:
    return float(np.nanmean(np.abs(np.expm1(predicted - log_s))))


def scaled(model: SettingsModel, sheet: DeviceSheet, among: list[int], share: float) -> np.ndarray:
    """log(seconds) on a device, float64 [n]: the mean of what the settings ``among`` say, ``share`` by FLOPs."""
    every = []
    for number in among:
        bandwidth, flops = sheet.speedups(shipped_sheets()[model.settings[number].device], "amp")
        every.append(model.log_s[:, number] - share * flops - (1 - share) * bandwidth)
    return np.asarray(np.nanmean(every, axis=0))


def report(model: SettingsModel) -> Mapping[str, Mapping[str, float]]:
    sheets, figures = shipped_sheets(), {}
    gpus = [i for i, setting in enumerate(model.settings) if sheets[setting.device].kind == "gpu"]

    def alike(setting: Setting, number: int) -> bool:
        return model.settings[number].backend == setting.backend

    for target in gpus:
        setting, log_s = model.settings[target], model.log_s[:, target]
        sheet = sheets[setting.device]
        strange = [i for i in gpus if sheets[model.settings[i].device].family != sheet.family]
        among = [i for i in strange if alike(setting, i)]
        near = nearest_known(sheet, model.settings, among)
        if near is None:
            continue
        errors = device_errors([model.settings[i] for i in strange], model.log_s[:, strange])
        low, high = Residuals.of(np.exp(errors), np.ones(len(errors))).interval(0.9)
        own = log_s - scaled(model, sheet, [near[0]], 0.5)
        own = own[np.isfinite(own)]
        figures[f"{setting.device} {setting.backend}"] = {
            "nearest × bandwidth": mape(scaled(model, sheet, [near[0]], 0.0), log_s),
            "nearest × FLOPs": mape(scaled(model, sheet, [near[0]], 1.0), log_s),
            "nearest × both": mape(scaled(model, sheet, [near[0]], 0.5), log_s),
            "mean of all × both": mape(scaled(model, sheet, among, 0.5), log_s),
            "covered": float(np.mean((low <= own) & (own <= high))),
            "high ÷ low": float(np.exp(high - low)),
        }
    return figures


def main() -> None:
    model = shipped_model()
    figures = report(model)
    for name, scores in figures.items():
        shown = (f"{key} {value:.2f}" if key == "high ÷ low" else f"{key} {value:.1%}" for key, value in scores.items())
        print(f"{name}, its family hidden: " + ", ".join(shown))
    print(json.dumps({"benchmark": "device_sheets", "networks": len(model.known), "settings": figures}))


if __name__ == "__main__":
    main()
