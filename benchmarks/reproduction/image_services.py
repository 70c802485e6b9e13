"""Image recognition by others, for Tolerance Tiers: published ImageNet networks, and recorded answers of services."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from benchmarks.reproduction.paper import Found
from benchmarks.reproduction.plots import curves
from benchmarks.reproduction.workspace import Workspace
from slotool.errors import InputError
from slotool.reports.figure import duration, percent
from slotool.tables import OutcomeTable

# Tables of pytorch-image-models, by their names there: accuracy of weights, and latencies of networks.
ACCURACIES = "results-imagenet.csv.gz"
LATENCIES = "benchmark-infer-fp32-nchw-pt240-cpu-i9_10940x-dynamo.csv.gz"
# The paper's kinds of networks, all with the weights that torchvision trained in one way; images of so many pixels.
NETWORKS = ("resnet18", "resnet34", "resnet50", "resnet101", "resnet152", "vgg16", "vgg19")
WEIGHTS, PIXELS = "tv_in1k", 224
# Answers of four services to the images of FER+, as FrugalML publishes them.
ANSWERS, OUTCOMES = "ferplus.csv.gz", "image-services.parquet"


@dataclass(frozen=True)
class Version:
    """``error``: share of ImageNet's validation images whose first class is wrong; ``latency_s`` of one image."""

    name: str
    error: float
    latency_s: float


def published_versions(workspace: Workspace) -> Found:
    """Error and latency of ImageNet networks, as their authors measured them: nothing is run here."""
    accuracies, latencies = (pd.read_csv(workspace.data_set([name])) for name in (ACCURACIES, LATENCIES))
    versions = sorted((_version(name, accuracies, latencies) for name in NETWORKS), key=lambda v: v.latency_s)
    front = [v for v in versions if all(v.error < other.error for other in versions if other.latency_s < v.latency_s)]
    fast, accurate = front[0], front[-1]
    beaten = [v.name for v in versions if v not in front]
    return Found(
        says=f"{accurate.name} takes {accurate.latency_s / fast.latency_s:.1f} × the time of {fast.name} and has "
        f"{1 - accurate.error / fast.error:.0%} less error ({percent(fast.error)} to {percent(accurate.error)}); not "
        f"on the Pareto front: {', '.join(beaten) or 'none'}",
        agrees=accurate.latency_s > 2 * fast.latency_s and {"vgg16", "vgg19"} <= {*beaten},
        columns=("network", "top-1 error", "latency of one image", "Pareto"),
        rows=[(v.name, percent(v.error), duration(v.latency_s), "yes" if v in front else "no") for v in versions],
        data=f"published tables of pytorch-image-models: weights `{WEIGHTS}`, images of {PIXELS} × {PIXELS}, one image "
        "on an i9-10940X in float32, compiled; without a network in between",
        plot=curves(
            "Error by latency",
            "One point a network, as published.",
            ("latency of one image, ms", "log"),
            ("top-1 error", "share"),
            {"on the front": _line(front), "others": _line([v for v in versions if v not in front])},
            style="dots",
        ),
    )


def recorded_answers(workspace: Workspace) -> tuple[str, OutcomeTable, str]:
    """The outcome table of recorded services: its path for a command, the table, and what it is."""
    workspace.slotool(f"import-outcomes {workspace.data_set([ANSWERS])} -o {OUTCOMES}")
    table = OutcomeTable.load(workspace.path(OUTCOMES))
    what = f"answers that {len(table.versions)} services gave to {len(table.examples):,} faces of FER+ (FrugalML)"
    return OUTCOMES, table, what


def _version(name: str, accuracies: pd.DataFrame, latencies: pd.DataFrame) -> Version:
    right = accuracies[(accuracies["model"] == f"{name}.{WEIGHTS}") & (accuracies["img_size"] == PIXELS)]
    timed = latencies[(latencies["model"] == name) & (latencies["infer_img_size"] == PIXELS)]
    if not len(right) or not len(timed):
        raise InputError(f"the published tables lack {name} with weights {WEIGHTS} at {PIXELS} pixels")
    return Version(name, float(right["top1_err"].iloc[0]) / 100, float(timed["infer_step_time"].iloc[0]) / 1e3)


def _line(versions: list[Version]) -> tuple[list[float], list[float]]:
    return [1e3 * version.latency_s for version in versions], [version.error for version in versions]
