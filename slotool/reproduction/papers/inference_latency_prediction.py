"""Mendoza and Wang: *Predicting Latency of Neural Network Inference* (2020)."""

from __future__ import annotations

from collections.abc import Sequence

from slotool.reports.text import duration, percent
from slotool.reproduction.commands import Document
from slotool.reproduction.paper import Figure, Found, Paper
from slotool.reproduction.workspace import Workspace

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
_MEMBERS = 14


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
    """Pairs on one core: random CNNs, or at the paper's scale the networks of keras.applications."""
    if workspace.scale == "paper":
        members = "--keras all"
        graphs = workspace.slotool("capture --keras all -o keras.jsonl")["out"]
        size = "2,3"
    else:
        graphs, size = "members.parquet", "2"
        workspace.slotool(
            f"generate cnn --count {_MEMBERS} --depth 2:4 --channels 3:5 --input-shape 3,32,32 -o {graphs} "
            f"--seed {workspace.seed}"
        )
        members = graphs
    workspace.slotool(
        f"profile colocated {members} -o colocated.parquet --size {size} --threads 1 --with-itself "
        f"--max-seconds-per-item {workspace.pick('0.3', '30')} --seed {workspace.seed}"
    )
    document = workspace.slotool(
        f"train-colocation-predictor colocated.parquet --graphs {graphs} -o predictor-colocated "
        f"--depths {workspace.pick('2,4', '1:20')} --seed {workspace.seed}"
    )
    scores: dict[str, Document] = document["predictors"]
    best = min(scores, key=lambda name: scores[name]["mae_s"])
    mean_s = next(iter(scores.values())).get("degradation_mean_s")
    return Found(
        says=f"the mean co-location overhead is {duration(mean_s)}; mean error "
        f"{duration(scores['linear']['mae_s'])} by "
        f"linear regression, {duration(scores['dnn']['mae_s'])} by the DNN, {duration(scores[best]['mae_s'])} by "
        f"{best}",
        agrees=scores["dnn"]["mae_s"] * MIN_RATIO <= scores["linear"]["mae_s"],
        columns=("predictor", "MAE of the co-located latency", "÷ mean overhead", "MAPE"),
        rows=[
            (name, duration(s["mae_s"]), percent(s["mae_s"] / mean_s) if mean_s else "–", percent(s["mape"]))
            for name, s in scores.items()
        ],
        data=f"co-locations of {_MEMBERS if workspace.scale == 'small' else 'all Keras'} networks on one core "
        f"({_sizes(document['rows'])})",
    )


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
            "9", "Co-located networks", "the DNN's error is far below linear regression's and the mean overhead",
            _BETTER,
            "one machine instead of seven; random CNNs at the small scale, Keras models at the paper's", _colocated,
        ),
    ),
    missing=(
        ("1, 2", "drawings"),
        ("4, 6, 8", "needs a V100: `slotool profile solo --device cuda:0` and `slotool train-predictor --device "
        "cuda:0` "
         "make them where there is a GPU"),
        ("9 over seven machines", "needs these machines: `slotool train-predictor --model settings` learns from the "
         "tables of several"),
    ),
)  # fmt: skip
