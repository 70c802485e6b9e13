"""``make predictors``: fit the shipped predictors anew that are not made by a command alone, from what the repository
holds, and keep each only where it is not worse.

``models/predictor``, its part of networks alone: ``models/predictor-torch`` adapted to the Keras applications in
TensorFlow. Both it and the one shipped are judged by what ``ten_labels`` asks: ten of the networks held out at a time.
The shipped one has seen all of them, so its way of adapting is judged, not its file.

``models/predictor-devices``: the ``settings`` predictor, from the features of timm's networks
(``datasets/timm-network-features.parquet``) and the throughputs that it was fitted to, which its own weights hold to
the digit. Judged by families of networks held out, beside the scores of the file shipped.

``--write`` puts the artifacts back. It takes some five minutes of a core.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.calibrate_shipped import DATASETS, MODELS, applications, write
from benchmarks.ten_labels import ten_left_out
from slotool.artifacts import open_artifact
from slotool.graphs import OperatorGraph
from slotool.predictors.features.network_features import FEATURES, WORK, log_seconds
from slotool.predictors.labels import SettingsLabelled
from slotool.predictors.settings.model import JITTER, SettingsModel
from slotool.predictors.settings.predictor import SettingsPredictor
from slotool.predictors.trained.artifact import SCORES, TrainedPredictor
from slotool.predictors.training.many_settings import SettingsRun, hold_out_settings
from slotool.predictors.transfer.adaptation import adapt_and_score

# A score may be worse by so much, as a share of it, before what is shipped stays.
TOLERANCE = 0.02


def labels_of(model: SettingsModel, features: np.ndarray) -> np.ndarray:
    """The labels that a model was fitted to, float64 seconds [n, S], NaN where there is none: each function's weights
    are its labels, less what prices say, by the inverse of the kernel."""
    asked, kernel = model.encode(features), model.encoder.kernel(model.known, model.known)
    by_prices = log_seconds(asked.work[:, : len(WORK)], model.total_prices_s)
    log_s = np.full(model.labelled.shape, np.nan)
    for setting, own in enumerate(model.labelled.T):
        system = kernel[np.ix_(own, own)] + (model.encoder.noise + JITTER) * np.eye(int(own.sum()))
        target = system @ model.weights[own, setting] + model.level[setting]
        log_s[own, setting] = by_prices[own, setting] + target
    return np.asarray(np.exp(log_s))


def devices() -> tuple[SettingsRun, dict[str, Any]]:
    """Fitted anew, and the scores of the one shipped."""
    path = MODELS / "predictor-devices"
    old: TrainedPredictor[OperatorGraph] = TrainedPredictor.load(str(path))
    assert isinstance(old.predictor, SettingsPredictor)
    table, model = pd.read_parquet(DATASETS / "timm-network-features.parquet"), old.predictor.model
    features = table[list(FEATURES)].to_numpy(np.float64)
    latency_s = labels_of(model, features)
    held_out = hold_out_settings(features, latency_s, model.settings, table["kind"].tolist(), 0, print)
    predictor = SettingsPredictor(SettingsModel.fit(features, latency_s, model.settings))
    predictor.known_residuals = held_out.of_settings()
    first = np.isfinite(latency_s[:, 0])
    error_s = np.mean(np.abs(np.expm1(-held_out.errors[first, 0])) * latency_s[first, 0])
    assert old.domain is not None
    # The graphs are not there: bounds and domain stay as they are, and timm's networks take images.
    domain = replace(old.domain, inputs=("images",))
    trained = replace(old, predictor=predictor, residuals=predictor.residuals, dev_mae_s=float(error_s), domain=domain)
    nameless: Any = tuple(table["name"])
    run = SettingsRun(SettingsLabelled(nameless, model.settings, latency_s), trained, held_out)
    return run, open_artifact(path).json(SCORES)


def refit_devices(keep: bool) -> None:
    run, before = devices()
    worse = False
    for old, new in zip(before["settings"], run.scores()["settings"], strict=True):
        setting = new["setting"]
        print(f"{setting['device']}, {setting['backend']}: shipped → anew", flush=True)
        for key in ("mape", "interval_coverage"):
            print(f"   {key} {old[key]:.1%} → {new[key]:.1%}", flush=True)
        worse |= new["mape"] > (1 + TOLERANCE) * old["mape"]
    if keep and not worse:
        old_config = open_artifact(MODELS / "predictor-devices").manifest["config"]
        run.save(MODELS / "predictor-devices", config=old_config, seed=0, force=True)
    print("it is worse: the shipped one stays" if worse else "it is not worse", flush=True)


def refit_adapted(keep: bool) -> None:
    """``models/predictor``."""
    base: TrainedPredictor[OperatorGraph] = TrainedPredictor.load(str(MODELS / "predictor-torch"))
    here = applications("keras")
    left_out = list(ten_left_out(base, here))
    mape, covered = (float(np.mean([getattr(each, name) for each in left_out])) for name in ("mape", "covered"))
    run = adapt_and_score(base, here)
    before = open_artifact(MODELS / "predictor").json(SCORES)
    shipped = before["predictors"][before["chosen"]]["held_out_mape"]
    anew = run.held_out.mape()
    print(f"models/predictor: {before['chosen']} {shipped:.1%} → {anew:.1%}, each network held out")
    print(f"   ten of them held out at a time: MAPE {mape:.1%}, covered {covered:.1%}", flush=True)
    worse = anew > (1 + TOLERANCE) * shipped
    if keep and not worse:
        write("predictor", replace(run.adapted, facts=base.facts), run.scores())
    print("it is worse: the shipped one stays" if worse else "it is not worse", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.refit", description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", choices=("predictor", "predictor-devices"))
    wanted = parser.parse_args()
    if wanted.only != "predictor":
        refit_devices(wanted.write)
    if wanted.only != "predictor-devices":
        refit_adapted(wanted.write)


if __name__ == "__main__":
    main()
