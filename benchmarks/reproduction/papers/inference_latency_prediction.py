"""Mendoza and Wang: *Predicting Latency of Neural Network Inference* (2020)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from benchmarks.reproduction.paper import Figure, Found, Paper
from benchmarks.reproduction.workspace import Workspace
from slotool.demo import Document
from slotool.process import cores_by_preference
from slotool.reports.figure import duration, percent

# The paper's predictors, and two of today's: three coefficients, and slotool's for so few labels.
PREDICTORS = ("linear", "dnn", "three-term", "additive")
# Linear regression's error over the DNN's, where the paper has the least (Figure 5).
MIN_RATIO = 1.24
_BETTER = f"linear regression's mean absolute error is at least {MIN_RATIO} times the DNN's, the paper's least ratio"
_FEWER = (
    "two cores instead of sixteen, far fewer networks, and smaller ones; the ratio of error to mean latency compares"
)
_SETS = {
    "mlps": ("mlp", (200, 320_000), "--depth 3:6 --units 4:9"),
    "cnns": ("cnn", (200, 100_000), "--depth 2:4 --channels 2:5 --input-shape 3,32,32"),
}
# Of co-located networks, which take milliseconds each: shorter ones fit between two turns of a core's processes, and
# are not slowed down. Of their pairs and trios so many are measured: train-predictor wants 120 rows.
_MEMBERS, _OF_EACH_SIZE = 9, 32
COLOCATION_PREDICTORS = ("linear", "dnn", "sharing")


def _measured(workspace: Workspace, name: str) -> tuple[str, str]:
    """Files of random networks and of their latencies."""
    kind, counts, shape = _SETS[name]
    count = workspace.pick(*counts)
    workspace.slotool(f"generate {kind} --count {count} {shape} -o {name}.parquet --seed {workspace.seed}")
    workspace.slotool(
        f"profile solo {name}.parquet -o {name}-latency.parquet --threads {workspace.pick(1, 2)} "
        f"--max-seconds-per-item {workspace.pick('0.02', '0.5')} --seed {workspace.seed}"
    )
    return f"{name}.parquet", f"{name}-latency.parquet"


def _predicted(workspace: Workspace, names: Sequence[str], papers: tuple[float, float, float]) -> Found:
    """The paper's linear regression and DNN beside two simpler predictors, on networks held out at random.

    ``papers``: its mean latency, and the mean absolute errors of its linear regression and DNN, seconds.
    """
    files = [_measured(workspace, name) for name in names]
    graphs = " ".join(f"--graphs {graph}" for graph, _ in files)
    document = workspace.slotool(
        f"train-predictor {' '.join(latency for _, latency in files)} {graphs} -o predictor-{'-'.join(names)} "
        f"--model dnn,additive --depths {workspace.pick('2,4', '1:20')} --seed {workspace.seed}"
    )
    scores = {name: document["predictors"][name] for name in PREDICTORS if name in document["predictors"]}
    dnn, linear = scores["dnn"], scores["linear"]
    theirs = [error / papers[0] for error in papers[1:]]
    rows = document["rows"]
    return Found(
        says=f"mean error {percent(linear['mae_over_mean'])} of the mean latency by linear regression, "
        f"{percent(dnn['mae_over_mean'])} by the DNN, {percent(scores['three-term']['mae_over_mean'])} by three "
        f"coefficients, {percent(scores['additive']['mae_over_mean'])} by slotool's additive predictor",
        agrees=dnn["mae_s"] * MIN_RATIO <= linear["mae_s"],
        columns=("predictor", "MAE", "÷ mean", "the paper's ÷ mean", "MAPE", "rank correlation"),
        rows=[
            (
                name, duration(s["mae_s"]), percent(s["mae_over_mean"]),
                percent(theirs[("linear", "dnn").index(name)]) if name in ("linear", "dnn") else "–",
                percent(s["mape"]), "–" if s["spearman"] is None else f"{s['spearman']:.3f}",
            )
            for name, s in scores.items()
        ],
        data=f"{sum(rows.values()):,} random networks measured on this machine ({_sizes(rows)}), mean of the test set "
        f"{duration(linear['label_mean_s'])}, standard deviation {duration(linear['label_std_s'])}",
    )  # fmt: skip


def _colocated(workspace: Workspace) -> Found:
    """Pairs and trios in several settings of this machine, each with predictors of its own."""
    documents = _by_setting(workspace)
    names = [name for name in next(iter(documents.values()))["predictors"] if name in COLOCATION_PREDICTORS]
    counts = {setting: document["rows"]["test"] for setting, document in documents.items()}
    error_s = {name: _cumulative(documents, counts, name, "mae_s") for name in names}
    overhead_s = _cumulative(documents, counts, names[0], "degradation_mean_s")
    best = min(error_s, key=lambda name: error_s[name])
    per_setting = [
        (f"{setting} ({counts[setting]} rows)", duration(document["predictors"][names[0]]["degradation_mean_s"]),
         *(duration(document["predictors"][name]["mae_s"]) for name in names))
        for setting, document in documents.items()
    ]  # fmt: skip
    return Found(
        says=f"over {len(documents)} settings the mean co-location overhead is {duration(overhead_s)}; cumulative mean "
        f"error {duration(error_s['linear'])} by linear regression, {duration(error_s['dnn'])} by the DNN, "
        f"{duration(error_s[best])} by {best}",
        agrees=error_s["dnn"] * MIN_RATIO <= error_s["linear"] and error_s["dnn"] < overhead_s,
        columns=("setting", "mean overhead", *(f"MAE, {name}" for name in names)),
        rows=[*per_setting, ("cumulative", duration(overhead_s), *(duration(error_s[name]) for name in names))],
        data=f"{_MEMBERS if workspace.scale == 'small' else 'all Keras'} networks co-located with each other and with "
        f"themselves; the predictors of a setting learn from its rows alone ("
        f"{'; '.join(_sizes(document['rows']) for document in documents.values())})",
    )


def _by_setting(workspace: Workspace) -> dict[str, Document]:
    """Per setting the scores of its predictors."""
    if workspace.scale == "paper":
        members = "--keras all"
        graphs = workspace.slotool("capture --keras all -o keras.jsonl")["out"]
        size = "2,3"
    else:
        members = graphs = "members.parquet"
        size = f"2,3 --limit {_OF_EACH_SIZE}"
        workspace.slotool(
            f"generate cnn --count {_MEMBERS} --depth 3:5 --channels 4:6 --input-shape 3,96,96 -o {graphs} "
            f"--seed {workspace.seed}"
        )
    figures = {}
    for number, (setting, options) in enumerate(_settings().items()):
        workspace.slotool(
            f"profile colocated {members} -o colocated-{number}.parquet --size {size} --with-itself {options} "
            f"--max-seconds-per-item {workspace.pick('1.5', '30')} --seed {workspace.seed}"
        )
        figures[setting] = workspace.slotool(
            f"train-predictor colocated-{number}.parquet --graphs {graphs} -o predictor-colocated-{number} "
            f"--depths {workspace.pick('2,4', '1:20')} --seed {workspace.seed}"
        )
    return figures


def _settings() -> dict[str, str]:
    """In place of the paper's seven machines, as many cores as there are here."""
    settings, cores = {"one core for all": "--threads 1"}, len(cores_by_preference())
    if cores > 1:
        settings["two cores for all"] = "--threads 2"
    if cores > 2:  # of trios
        settings["a core each"] = "--threads 1 --placement split"
    return settings


def _cumulative(documents: Mapping[str, Document], counts: Mapping[str, int], name: str, score: str) -> float:
    """The mean over all test rows of all settings."""
    total = sum(counts[setting] * document["predictors"][name][score] for setting, document in documents.items())
    return float(total / sum(counts.values()))


def _sizes(rows: Document) -> str:
    return ", ".join(f"{count:,} {split}" for split, count in rows.items())


PAPER = Paper(
    name="inference-latency-prediction",
    title="Predicting latency of neural network inference",
    cited="D. Mendoza, S. Wang: *Predicting Latency of Neural Network Inference*, Stanford, 2020.",
    setting="8-, 16- and 32-core CPUs and T4, V100, P4 and P100 GPUs; 320,000 random MLPs, 100,000 random CNNs, 14 "
    "Keras "
    "models in pairs and trios",
    figures=(
        Figure(
            "3", "Random MLPs on a CPU", "MAE 16.2 ms by linear regression, 2.8 ms by a DNN; mean latency 21.3 ms",
            _BETTER, _FEWER,
            lambda workspace: _predicted(workspace, ("mlps",), (0.02132, 0.01619, 0.00282)),
        ),
        Figure(
            "5", "Random CNNs on a CPU", "MAE 22.3 ms by linear regression, 18.0 ms by a DNN; mean latency 390 ms",
            _BETTER, _FEWER,
            lambda workspace: _predicted(workspace, ("cnns",), (0.39026, 0.02225, 0.01801)),
        ),
        Figure(
            "7", "MLPs and CNNs by one predictor", "MAE 19.4 ms by linear regression, 13.1 ms by a DNN; mean 206 ms",
            _BETTER, _FEWER,
            lambda workspace: _predicted(workspace, ("mlps", "cnns"), (0.20636, 0.01937, 0.01312)),
        ),
        Figure(
            "9", "Co-located networks over several settings",
            "the DNN's cumulative error over seven machines is far below linear regression's and the mean overhead "
            "(the text names no numbers)",
            f"{_BETTER}, and the DNN's below the mean overhead",
            "settings of one machine instead of seven machines, four of them GPUs; at the small scale random CNNs and "
            "some dozen rows a setting to learn from, where regression needs fewer than a DNN; at the paper's scale "
            "Keras models in pairs and trios", _colocated,
        ),
    ),
    missing=(
        ("1, 2", "drawings"),
        ("4, 6, 8", "needs a V100: `slotool profile solo --device cuda:0` and `slotool train-predictor --device "
        "cuda:0` "
         "make them where there is a GPU"),
        ("9 on four GPUs and CPUs of 8, 16 and 32 cores", "needs these machines: `slotool profile colocated` and "
         "`slotool train-predictor` make a part of the figure on each"),
    ),
)  # fmt: skip
