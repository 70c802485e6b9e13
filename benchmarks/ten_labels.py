"""What ``adapt-predictor`` makes of ten labels drawn at random: error and coverage on all the others.

One base: the 40 Keras applications in torch and in TensorFlow, and the first of two runs on an H100 (base
``models/predictor-torch``), random architectures in ONNX Runtime (base ``models/predictor-architectures``); of
TensorFlow also the networks left out ten at a time, the other thirty given, which is what ``models/predictor``
(adapted to all 40) would be for networks that it has not seen. All known devices as a base, that of the labels and
its relatives hidden, where ``$SLOTOOL_DATA_DIR`` has the tables: NAS-Bench-201 (21 devices), timm (eight settings,
features of 857 networks) and ncnn (phones and boards); there the networks have labels on the other devices. The least,
the mean and the greatest of all draws are printed, no draw left out. Beside them the base, or its nearest device, times
one factor, and three terms by non-negative least squares; of hidden devices also non-negative least squares over the
other devices, boosted trees of what these predict, and a roofline times one factor. ``--chosen`` has the labels chosen
by ``propose``'s rule among 300 networks, in place of drawn.

The strengths of ``few_labels`` were chosen while looking at other draws of these sets, before labels on other devices
counted, so the rows are somewhat optimistic about others.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd
from scipy.optimize import nnls

from benchmarks.calibrate_shipped import DATASETS, MODELS, applications
from benchmarks.settings import TABLES, cells, timm_features
from slotool.graphs.store import read_graphs
from slotool.predictors.features.network_features import CATEGORIES, FEATURES, network_features
from slotool.predictors.features.type_costs import TypeCosts
from slotool.predictors.labels import LabelledSet, Setting, join_labels
from slotool.predictors.settings.model import SettingsModel
from slotool.predictors.solo.three_term import MIN_SHARE, three_terms
from slotool.predictors.trained.artifact import NOMINAL_COVERAGE, TrainedPredictor
from slotool.predictors.transfer.adaptation import FACTOR, THREE_TERM, adapt, baselines
from slotool.predictors.transfer.adapted import AdaptedPredictor, greedy, held_out_residuals
from slotool.predictors.transfer.few_labels import FewLabels, Networks, covariance_before
from slotool.tables import LatencyTable

FEW, MAX_ASKED, MAX_CANDIDATES = 10, 150, 300
# Of the devices of a table every so many is hidden in turn.
EVERY, DEVICE_DRAWS = {"nb201": 4, "timm": 1, "ncnn": 6}, 5
MIN_LABELS = 20


@dataclass(frozen=True)
class Draw:
    """Of one draw, on the networks that were not given: shares, but for ``width``, the median of high ÷ low."""

    given_interval: float
    covered: float
    width: float
    mape: float
    factor_mape: float
    three_term_mape: float
    least_squares_mape: float = np.nan
    boosted_trees_mape: float = np.nan
    roofline_mape: float = np.nan


def mape(log_answers: np.ndarray, log_s: np.ndarray) -> float:
    return float(np.mean(np.abs(np.expm1(log_answers - log_s))))


def scored(base: TrainedPredictor, labelled: LabelledSet, given: np.ndarray, asked: np.ndarray) -> Draw:
    adapted, _ = adapt(base, labelled.only(given))
    scores = adapted.held_out(labelled, asked).scores()
    predictor = adapted.predictor
    assert isinstance(predictor, AdaptedPredictor)
    graphs, measured_s = labelled.take(asked)
    labels, log_s = predictor.labels, predictor.log_before(graphs, measured_s)
    simple = baselines(labels.networks, labels.log_s, predictor.networks(graphs))
    return Draw(
        given_interval=scores["interval_given"],
        covered=scores["interval_coverage"],
        width=scores["interval_width"],
        mape=scores["mape"],
        factor_mape=mape(simple[FACTOR], log_s),
        three_term_mape=mape(simple[THREE_TERM], log_s),
    )


def few_of(base: TrainedPredictor, labelled: LabelledSet, draws: int) -> Iterator[Draw]:
    """Ten random labels each time; the others are asked."""
    for seed in range(draws):
        order = np.random.default_rng(seed).permutation(len(labelled))
        yield scored(base, labelled, order[:FEW], order[FEW : FEW + MAX_ASKED])


def ten_left_out(base: TrainedPredictor, labelled: LabelledSet, seed: int = 0) -> Iterator[Draw]:
    """Each network left out once."""
    order = np.random.default_rng(seed).permutation(len(labelled))
    for asked in np.array_split(order, len(labelled) // FEW):
        yield scored(base, labelled, np.setdiff1d(order, asked), asked)


def labelled_in(latency: str, graphs: str) -> LabelledSet:
    return join_labels(LatencyTable.load(DATASETS / latency), read_graphs(DATASETS / graphs))


@dataclass(frozen=True)
class Devices:
    """n networks with their labels in S settings, float64 seconds [n, S], NaN where there is none.

    ``related``: of each setting; all of those that share it are hidden together.
    """

    features: np.ndarray
    costs: TypeCosts
    terms: np.ndarray
    settings: Sequence[Setting]
    latency_s: np.ndarray
    related: Sequence[str]

    def draws(self, every: int, draws: int, chosen: bool) -> Iterator[Draw]:
        models: dict[str, SettingsModel] = {}
        for s in range(0, len(self.settings), every):
            known = [i for i, other in enumerate(self.related) if other != self.related[s]]
            if self.related[s] not in models:
                settings = [self.settings[i] for i in known]
                models[self.related[s]] = SettingsModel.fit(self.features, self.latency_s[:, known], settings)
            model, rows = models[self.related[s]], np.flatnonzero(np.isfinite(self.latency_s[:, s]))
            log_answers = model.labels_or_answers(self.features[rows])
            value_bytes = np.exp(self.features[rows, FEATURES.index("log value_bytes")])
            networks = Networks(self.costs.take(rows), self.terms[rows], log_answers, value_bytes)
            for seed in range(draws):
                yield self._scored(networks, np.log(self.latency_s[rows, s]), seed, chosen)

    def _scored(self, networks: Networks, log_s: np.ndarray, seed: int, chosen: bool) -> Draw:
        order = np.random.default_rng(seed).permutation(len(log_s))
        if chosen:
            covariance, noise = covariance_before(networks.take(order[:MAX_CANDIDATES]))
            first = order[greedy(covariance, noise, FEW)]
            order = np.concatenate([first, order[~np.isin(order, first)]])
        given, asked = order[:FEW], order[FEW : FEW + MAX_ASKED]
        labels = FewLabels(networks.take(given), log_s[given])
        held_out, variance = labels.left_out([np.array([row]) for row in range(FEW)])
        residuals = held_out_residuals(held_out - log_s[given], np.sqrt(variance))
        mean, variance = labels.answer(networks.take(asked))
        half = residuals.interval(NOMINAL_COVERAGE)[1] * np.sqrt(variance)
        simple = baselines(labels.networks, labels.log_s, networks.take(asked))
        return Draw(
            given_interval=1.0,
            covered=float(np.mean(np.abs(mean - log_s[asked]) <= half)),
            width=float(np.median(np.exp(2 * half))),
            mape=mape(mean, log_s[asked]),
            factor_mape=mape(simple[FACTOR], log_s[asked]),
            three_term_mape=mape(simple[THREE_TERM], log_s[asked]),
            **over_devices(networks.take(given), log_s[given], networks.take(asked), log_s[asked]),
        )


def over_devices(known: Networks, log_s: np.ndarray, asked: Networks, truth: np.ndarray) -> dict[str, float]:
    """Return the MAPE of three baselines that take what other devices, or a roofline, say of the networks."""
    from sklearn.ensemble import GradientBoostingRegressor

    weights, _ = nnls(np.exp(known.log_answers - log_s[:, None]), np.ones(len(log_s)))
    squares = np.log(np.maximum(np.exp(asked.log_answers) @ weights, MIN_SHARE * np.exp(log_s.min())))
    trees = GradientBoostingRegressor(random_state=0).fit(known.answers, log_s)
    factor = float(np.median(log_s - known.answers[:, -1]))
    return {
        "least_squares_mape": mape(squares, truth),
        "boosted_trees_mape": mape(trees.predict(asked.answers), truth),
        "roofline_mape": mape(asked.answers[:, -1] + factor, truth),
    }


def cells_of(folder: Path) -> Devices:
    """NAS-Bench-201; a device's series is hidden as a whole."""
    networks = cells(folder)
    rows = np.random.default_rng(0).permutation(len(networks.items))[:300]
    graphs = [networks.items[i] for i in rows]
    related = [setting.device.split("_")[0] for setting in networks.settings]
    costs, terms = TypeCosts.of(graphs), three_terms(graphs)
    return Devices(network_features(graphs), costs, terms, networks.settings, networks.latency_s[rows], related)


def timm_of(folder: Path) -> Devices:
    """The networks of timm, whose features stand for their graphs: costs go by category, not by type of operator."""
    table, latency_s, _ = timm_features(folder)
    features = table[list(FEATURES)].to_numpy(np.float64)
    at = {name: i for i, name in enumerate(FEATURES)}
    roofline_s = np.exp(features[:, at["log roofline"]])
    columns = tuple(("cost", category) for category in CATEGORIES)
    shares = np.column_stack([features[:, at[f"cost share {category}"]] for category in CATEGORIES])
    costs = TypeCosts(columns, np.maximum(shares, 1e-9) * roofline_s[:, None])
    # Least squares does not mind that bytes stand for elements.
    terms = np.exp(features[:, [at[f"log {name}"] for name in ("flops", "operators", "output_bytes")]])
    settings = tuple(TABLES.values())
    return Devices(features, costs, terms, settings, latency_s, [setting.device for setting in settings])


def phones_of(folder: Path) -> Devices:
    """Phones and boards, a device with all its settings hidden together."""
    with gzip.open(folder / "graphs.jsonl.gz", "rb") as lines:
        scratch = Path(os.environ.get("TMPDIR", "/tmp")) / f"ncnn-{os.getpid()}.jsonl"
        scratch.write_bytes(lines.read())
    graphs = {graph.name or graph.id: graph for graph in read_graphs(scratch)}
    scratch.unlink()
    table = pd.read_csv(folder / "latency.csv.gz")
    facts = ["device", "backend", "threads", "batch_size"]
    wide = table.pivot_table(index="subject", columns=facts, values="latency_s", aggfunc="median")
    wide = wide.loc[[name in graphs for name in wide.index], wide.notna().sum() >= MIN_LABELS]
    named = wide.columns.to_frame(index=False).to_dict("records")
    settings = tuple(Setting.from_document({"machine": "published", **own}) for own in named)
    networks = [graphs[str(name)] for name in wide.index]
    costs, terms, related = TypeCosts.of(networks), three_terms(networks), [setting.device for setting in settings]
    return Devices(network_features(networks), costs, terms, settings, wide.to_numpy(), related)


def summary(what: str, draws: Iterator[Draw]) -> dict[str, float]:
    """Print each draw; mean, least and greatest of all."""
    print(what, flush=True)
    rows = []
    for draw in draws:
        rows.append(vars(draw))
        print(f"   covered {draw.covered:.1%}, MAPE {draw.mape:.1%}, high ÷ low {draw.width:.2f}", flush=True)
    table = pd.DataFrame(rows)
    shown, figures = [f"{len(table)} draws"], {"draws": len(table), "width": float(table["width"].median())}
    for name in table.columns.drop("width"):
        own = table[name].dropna()
        if own.empty:
            continue
        figures |= {name: float(own.mean()), f"{name}_min": float(own.min()), f"{name}_max": float(own.max())}
        shown.append(f"{name} {own.mean():.1%} ({own.min():.0%} to {own.max():.0%})")
    print("; ".join([*shown, f"high ÷ low, median {figures['width']:.2f}"]), flush=True)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--draws", type=int, default=14)
    parser.add_argument("--only", choices=("torch", "keras", "left-out", "h100", "onnx", *EVERY))
    parser.add_argument("--chosen", action="store_true")
    wanted, _ = parser.parse_known_args()
    bases = [TrainedPredictor.load(str(MODELS / f"predictor-{name}")) for name in ("torch", "architectures")]
    h100, onnx = "keras-applications-h100-eager-launches-first.parquet", "random-architectures-onnx-latency.parquet"
    sets: dict[str, tuple[str, Callable[[], Iterator[Draw]]]] = {
        "torch": ("Keras applications in torch", lambda: few_of(bases[0], applications("torch"), wanted.draws)),
        "keras": ("Keras applications in TensorFlow", lambda: few_of(bases[0], applications("keras"), wanted.draws)),
        "left-out": (
            "Keras applications in TensorFlow, all but ten labelled",
            lambda: ten_left_out(bases[0], applications("keras")),
        ),
        "h100": (
            "Keras applications on an H100",
            lambda: few_of(bases[0], labelled_in(h100, "keras-applications-graphs.parquet"), wanted.draws),
        ),
        "onnx": (
            "Random architectures in ONNX Runtime",
            lambda: few_of(bases[1], labelled_in(onnx, "random-architectures.parquet"), wanted.draws),
        ),
    }
    data = Path(os.environ.get("SLOTOOL_DATA_DIR", ""))
    devices = {
        "nb201": ("NAS-Bench-201, devices hidden", cells_of),
        "timm": ("timm, devices hidden", timm_of),
        "ncnn": ("phones and boards, devices hidden", phones_of),
    }
    for key, (what, table) in devices.items():
        if (data / key).is_dir() and str(data) != ".":
            sets[key] = (
                what,
                lambda key=key, table=table: table(data / key).draws(EVERY[key], DEVICE_DRAWS, wanted.chosen),
            )
    figures = {what: summary(what, draws()) for key, (what, draws) in sets.items() if wanted.only in (None, key)}
    print(json.dumps({"benchmark": "ten_labels", "sets": figures}))


if __name__ == "__main__":
    main()
