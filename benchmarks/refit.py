"""``make predictors``: fit the shipped predictors anew that are not made by a command alone, from what the repository
holds, and keep each only where it is not worse.

``models/predictor``, its part of networks alone: ``models/predictor-torch`` adapted to the Keras applications in
TensorFlow. Both it and the one shipped are judged by what ``ten_labels`` asks: ten of the networks held out at a time.
The shipped one has seen all of them, so its way of adapting is judged, not its file.

``models/predictor-devices``: the ``settings`` predictor, from the features of timm's networks
(``datasets/timm-network-features.parquet``) and the labels that it holds. Judged by families of networks held out. The
one shipped is what its file has learnt of the other families, asked by the same features: scores in its file may be of
features that today's capture does not give.

``--write`` puts the artifacts back. It takes some five minutes of a core.
"""

from __future__ import annotations

import argparse
from dataclasses import replace

import numpy as np
import pandas as pd

from benchmarks.calibrate_shipped import DATASETS, MODELS, applications, write
from benchmarks.settings import settings_run
from benchmarks.ten_labels import ten_left_out
from slotool.artifacts import open_artifact
from slotool.graphs import OperatorGraph
from slotool.predictors.features.network_features import FEATURES
from slotool.predictors.settings.model import SettingsModel
from slotool.predictors.settings.predictor import SettingsPredictor
from slotool.predictors.trained.artifact import TrainedPredictor
from slotool.predictors.training.many_settings import HeldOutSettings, SettingsRun, hold_out_settings
from slotool.predictors.transfer.adaptation import HeldOut, adapt_and_score, folds_of, hold_out
from slotool.predictors.transfer.adapted import AdaptedPredictor

# A score may be worse by so much, as a share of it, before what is shipped stays.
TOLERANCE = 0.02


def devices() -> tuple[SettingsRun, HeldOutSettings]:
    """Fitted anew, and the one shipped on the same families."""
    path = MODELS / "predictor-devices"
    old: TrainedPredictor[OperatorGraph] = TrainedPredictor.load(str(path))
    assert isinstance(old.predictor, SettingsPredictor)
    table, model = pd.read_parquet(DATASETS / "timm-network-features.parquet"), old.predictor.model
    assert model is not None
    run = settings_run(old, table, np.exp(model.log_s), model.settings)
    return run, shipped(model, table[list(FEATURES)].to_numpy(np.float64), table["kind"].tolist())


def shipped(model: SettingsModel, features: np.ndarray, kinds: list[str]) -> HeldOutSettings:
    """What a stored model, without the families held out, answers for them by these features, float64 [n, features]."""
    return hold_out_settings(model.known, np.exp(model.log_s), model.settings, kinds, test_features=features)


def refit_devices(keep: bool) -> None:
    run, old = devices()
    worse = False
    for s, setting in enumerate(run.labelled.settings):
        before, anew = old.score(s), run.held_out.score(s)
        print(f"{setting.device}, {setting.backend}: shipped → anew", flush=True)
        for key in ("mape", "interval_coverage"):
            print(f"   {key} {before[key]:.1%} → {anew[key]:.1%}", flush=True)
        worse |= anew["mape"] > (1 + TOLERANCE) * before["mape"]
    if keep and not worse:
        old_config = open_artifact(MODELS / "predictor-devices").manifest["config"]
        run.save(MODELS / "predictor-devices", config=old_config, seed=0, force=True)
    print("it is worse: the shipped one stays" if worse else "it is not worse", flush=True)


def shipped_adapted() -> HeldOut:
    """The errors of the file's way of adapting on the labels that it holds, each held out."""
    predictor = TrainedPredictor.load(str(MODELS / "predictor")).predictor
    assert isinstance(predictor, AdaptedPredictor)
    networks, log_s = predictor.labels.networks, predictor.labels.log_s
    return hold_out(networks, log_s, folds_of(len(log_s)))


def refit_adapted(keep: bool) -> None:
    """``models/predictor``."""
    base: TrainedPredictor[OperatorGraph] = TrainedPredictor.load(str(MODELS / "predictor-torch"))
    here = applications("keras")
    left_out = list(ten_left_out(base, here))
    mape, covered = (float(np.mean([getattr(each, name) for each in left_out])) for name in ("mape", "covered"))
    run = adapt_and_score(base, here)
    before, anew = shipped_adapted().mape(), run.held_out.mape()
    print(f"models/predictor: shipped {before:.1%} → {anew:.1%}, each network held out")
    print(f"   ten of them held out at a time: MAPE {mape:.1%}, covered {covered:.1%}", flush=True)
    worse = anew > (1 + TOLERANCE) * before
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
