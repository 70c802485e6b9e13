"""Devices without labels: a family of GPUs is hidden, and its latencies are scaled from others by device sheets.

Labels are those in ``models/predictor-devices``. *nearest × both* is what ``predict --device-sheet`` does: the labels
of the nearest GPU with the same backend ÷ the geometric mean of the ratios of peak bandwidth and FLOPs. Beside it each
ratio alone, *both* over the mean of all GPUs, and a roofline: the share of each ratio is a linear function of FLOPs per
byte, compute-bound cost and FLOPs of a network, fitted to differences between the other GPUs, around a half.
``covered``: share of labels in the 90 % interval by errors of the families that are not hidden.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from slotool.predictors.features.network_features import FEATURES
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


def scaled(model: SettingsModel, sheet: DeviceSheet, among: list[int], share: np.ndarray | float) -> np.ndarray:
    """log(seconds) on a device, float64 [n]: the mean of what the settings ``among`` say, ``share`` by FLOPs."""
    every = []
    for number in among:
        bandwidth, flops = sheet.speedups(shipped_sheets()[model.settings[number].device], "amp")
        every.append(model.log_s[:, number] - share * flops - (1 - share) * bandwidth)
    return np.asarray(np.nanmean(every, axis=0))


def roofline_share(model: SettingsModel, among: list[int]) -> np.ndarray:
    """Share of FLOPs in the speed of each network, float64 [n], from pairs of the settings ``among``."""
    names = [FEATURES.index(name) for name in ("log flops", "log moved_bytes", "compute_bound")]
    flops, moved, bound = model.known[:, names].T
    facts = np.column_stack([np.ones(len(flops)), flops - moved, bound, flops])
    rows, targets = [], []
    for first in among:
        for second in among:
            pair = [model.settings[number] for number in (first, second)]
            if first < second and pair[0].backend == pair[1].backend and pair[0].device != pair[1].device:
                sheets = [shipped_sheets()[setting.device] for setting in pair]
                bandwidth, gained = sheets[1].speedups(sheets[0], "amp")
                labels = model.log_s[:, first] - model.log_s[:, second] - bandwidth
                known = np.isfinite(labels)
                rows.append(facts[known] * (gained - bandwidth))
                targets.append(labels[known])
    if not rows:
        return np.full(len(facts), 0.5)
    together, target = np.vstack(rows), np.concatenate(targets)
    half = np.array([0.5, 0, 0, 0])
    ridge = 1e-5 * len(target) * np.eye(4)
    fitted = half + np.linalg.solve(together.T @ together + ridge, together.T @ (target - together @ half))
    # The level of two GPUs says little of a third; how networks differ says more.
    return np.clip(facts @ np.array([0.5, *fitted[1:]]), 0, 1)


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
            "mean of all × roofline": mape(scaled(model, sheet, among, roofline_share(model, strange)), log_s),
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
