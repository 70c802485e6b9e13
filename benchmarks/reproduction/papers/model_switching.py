"""Zhang and others: *Model-Switching* (HotCloud 2020)."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.reproduction.paper import Figure, Found, Paper
from benchmarks.reproduction.plots import curves
from benchmarks.reproduction.workspace import Workspace
from slotool.demo import Document, own_networks
from slotool.machine import usable_cores
from slotool.reports.figure import duration, percent
from slotool.tables import LatencyTable
from slotool.workloads import RequestLog

MODELS = ("small", "medium", "large")
TABLES = "latency.parquet --outcomes outcomes.parquet"
# The paper's 750 ms are five times its largest model's latency.
DEADLINE_BY_LARGEST = 5.0
# Load by what the largest model serves on one worker.
LOADS = (0.2, 0.5, 0.8, 1.0, 1.2, 1.6, 2.0, 3.0)
# A load that is low, spikes and falls again; rates beside each other.
SPIKE = (0.3, 0.5, 0.4, 0.7, 2.0, 1.6, 0.6, 0.3)
_SMALLER = (
    "three small ONNX classifiers on two cores, not five ResNets on 32 virtual CPUs with a separate client machine"
)


@dataclass(frozen=True)
class Service:
    """``latency_s``: median of one example, by model; ``deadline_ms``: as the paper's by the largest model."""

    data: str
    accuracy: dict[str, float]
    latency_s: dict[str, float]
    deadline_ms: float

    @property
    def unit(self) -> float:
        """Requests per second that one worker of the largest model serves."""
        return 1 / self.latency_s[MODELS[-1]]


def _service(workspace: Workspace) -> Service:
    """Three ONNX files, trained here, measured and evaluated by one command."""
    script = Path(own_networks.__file__)
    if not workspace.path("large.onnx").exists():
        shutil.copyfile(script, workspace.path(script.name))
    workspace.python(f"{script.name} --epochs {workspace.pick(4, 8)}", made="large.onnx")
    versions = " ".join(f"{name}={name}.onnx" for name in MODELS)
    document = workspace.slotool(
        f"family {versions} --data held-out.npz -o family --outcomes outcomes.parquet --latency latency.parquet "
        "--batch-size 1,2,4 --repeats 1 --threads 1"
    )
    by_name = {version["version"]: version for version in document["versions"]}
    known = LatencyTable.load(workspace.path("latency.parquet")).where(status="ok", batch_size=1).statistics()
    latency_s = dict(zip(known["point"].str.removeprefix("version="), known["median_s"], strict=True))
    deadline_ms = round(1e3 * DEADLINE_BY_LARGEST * latency_s[MODELS[-1]], 1)
    what = "three ONNX classifiers of digits, trained for some seconds (own_networks.py), 1,097 held-out images"
    return Service(what, {m: by_name[m]["accuracy"] for m in MODELS}, latency_s, deadline_ms)


def _threads(workspace: Workspace) -> Found:
    service = _service(workspace)
    counts = [count for count in (1, 2, 4, 8, 16) if count <= usable_cores()]
    most = counts[-1]
    median_s: dict[int, dict[str, float]] = {}
    for count in counts:
        name = f"threads-{count}.parquet"
        workspace.slotool(
            f"profile points family -o {name} --co-runners 0 --threads {count} "
            f"--max-seconds-per-item {workspace.pick('0.5', '2')}"
        )
        rows = LatencyTable.load(workspace.path(name)).where(status="ok").statistics()
        median_s[count] = dict(zip(rows["point"].str.removeprefix("version="), rows["median_s"], strict=True))
    spread = median_s[1]["large"] / median_s[1]["small"]
    took = median_s[most]["large"] / median_s[1]["large"]
    return Found(
        says=f"the most accurate model takes {spread:.1f} × the fastest one's time on one thread, and on {most} "
        f"threads {took:.2f} × its own on one",
        agrees=spread > 5 and service.accuracy["large"] > service.accuracy["small"],
        columns=("model", "accuracy", *(f"{count} threads" for count in counts)),
        rows=[
            (model, percent(service.accuracy[model]), *(duration(median_s[count][model]) for count in counts))
            for model in MODELS
        ],
        data=service.data,
        plot=curves(
            "Inference time by threads",
            "Medians of one example.",
            ("threads", "linear"),
            ("latency, ms", "log"),
            {model: (counts, [1e3 * median_s[count][model] for count in counts]) for model in MODELS},
        ),
    )


def _by_load(workspace: Workspace) -> Found:
    """Each model alone under Poisson arrivals, on a virtual clock with the measured latencies."""
    service = _service(workspace)
    seconds = workspace.pick(20, 300)
    policies = ",".join(f"fixed@version={model}" for model in MODELS)
    figures: dict[float, dict[str, float]] = {}
    for load in LOADS:
        name = f"poisson-{load:g}.parquet"
        workspace.slotool(
            f"generate arrivals -o {name} --rate {load * service.unit:.1f} --duration {seconds}s --seed "
            f"{workspace.seed}"
        )
        document = workspace.slotool(
            f"simulate {TABLES} --arrivals {name} --deadline-ms {service.deadline_ms} --policies {policies} "
            "--optimum bound"
        )
        figures[load] = {row["policy"]: row["effective_accuracy"] for row in document["policies"]}
    curve = {model: [figures[load][f"fixed@version={model}"] for load in LOADS] for model in MODELS}
    best = [max((curve[model][at], model) for model in MODELS)[1] for at in range(len(LOADS))]
    return Found(
        says=f"the best single model is {best[0]} at the least load and {best[-1]} at the greatest",
        agrees=best[0] == "large" and best[-1] != "large",
        columns=("load ÷ the large model's", *MODELS, "best"),
        rows=[
            (f"{load:g}", *(f"{curve[model][at]:.4f}" for model in MODELS), best[at]) for at, load in enumerate(LOADS)
        ],
        data=f"{service.data}; simulated, one worker, deadline {service.deadline_ms} ms",
        plot=curves(
            "Effective accuracy by load",
            "Share of all requests answered correctly and in time; each model alone.",
            ("requests per second", "linear"),
            ("effective accuracy", "share"),
            {model: ([load * service.unit for load in LOADS], curve[model]) for model in MODELS},
        ),
    )


def _plan(workspace: Workspace, deadline_ms: float, configurations: str) -> tuple[str, Document]:
    """The name of the plan's file, and its document."""
    name = f"plan-{configurations.replace(',', '-')}-{deadline_ms:g}.json"
    document = workspace.slotool(
        f"gen-switching-plan family --outcomes outcomes.parquet --latency latency.parquet --deadline-ms {deadline_ms} "
        f"--by effective-accuracy --data held-out.npz --configurations {configurations} "
        f"--duration {workspace.pick('1s', '10s')} -o {name} --seed {workspace.seed}"
    )
    return name, document["plan"]


def _tail(workspace: Workspace) -> Found:
    """P99 of real servers by load, for each ⟨R, T⟩ that takes all cores: the load tests of a plan of that alone."""
    service = _service(workspace)
    cores = usable_cores()
    shapes = [(r, cores // r) for r in (1, 2, 4, 8, 16) if r <= cores and cores % r == 0]
    tests: dict[tuple[int, int], list[Document]] = {}
    for replicas, threads in shapes:
        _, plan = _plan(workspace, service.deadline_ms, f"{replicas}x{threads}")
        tests[replicas, threads] = sorted(plan["loads"], key=lambda t: (MODELS.index(_model(t)), t["rate_per_s"]))
    large = {shape: [t for t in rows if _model(t) == "large"] for shape, rows in tests.items()}
    calm = min(shapes, key=lambda shape: _p99_s(large[shape][0]))
    goodput = {shape: max(t["rate_per_s"] * t["attainment"] for t in rows) for shape, rows in large.items()}
    loaded = max(shapes, key=lambda shape: goodput[shape])
    return Found(
        says=f"of the large model ⟨R {calm[0]}, T {calm[1]}⟩ has the least P99 at its lowest load "
        f"({large[calm][0]['rate_per_s']:.0f}/s), and ⟨R {loaded[0]}, T {loaded[1]}⟩ answers the most in time "
        f"({goodput[loaded]:.0f}/s; "
        f"{', '.join(f'{goodput[s]:.0f} by ⟨R {s[0]}, T {s[1]}⟩' for s in shapes if s != loaded)})",
        agrees=calm[1] > loaded[1],
        columns=("model", "⟨R, T⟩", "requests per second", "P99", "in time"),
        rows=[
            (_model(t), f"⟨{shape[0]}, {shape[1]}⟩", f"{t['rate_per_s']:.0f}", duration(t["p99_s"]),
             percent(t["attainment"], 2))
            for shape, rows in tests.items() for t in rows
        ],
        data=f"{service.data}; load tests of real servers, {workspace.pick(1, 10)} s each; no P99 where a hundredth of "
        "the requests had no answer",
        plot=curves(
            "Answered in time by load, large model",
            "Requests answered within the deadline, by those sent.",
            ("requests sent per second", "linear"),
            ("answered in time per second", "linear"),
            {
                f"⟨R {shape[0]}, T {shape[1]}⟩": (
                    [t["rate_per_s"] for t in rows], [t["rate_per_s"] * t["attainment"] for t in rows]
                )
                for shape, rows in large.items()
            },
        ),
    )  # fmt: skip


def _p99_s(test: Document) -> float:
    """Infinite where a hundredth of the requests had no answer."""
    return float("inf") if test["p99_s"] is None else float(test["p99_s"])


def _model(test: Document) -> str:
    return str(test["point"]).removeprefix("version=")


def _loads(workspace: Workspace, service: Service, deadline_ms: float) -> dict[str, tuple[Document, RequestLog]]:
    """A real server under the spike: by the plan, and of each model alone. Documents and request logs."""
    seconds = workspace.pick(8, 300)
    workspace.path("spike.csv").write_text("rate_per_s\n" + "\n".join(f"{rate:g}" for rate in SPIKE) + "\n")
    mean = service.unit * float(np.mean(SPIKE))
    workspace.slotool(
        f"generate arrivals -o spike.parquet --trace spike.csv --rate {mean:.1f} --duration {seconds}s "
        f"--seed {workspace.seed}"
    )
    plan, _ = _plan(workspace, deadline_ms, "1x1")
    served = {"switching": f"--policy switching --plan {plan}"}
    served |= {model: f"--policy fixed@version={model}" for model in MODELS}
    figures = {}
    for name, policy in served.items():
        log = f"requests-{name}-{deadline_ms:g}.parquet"
        document = workspace.loaded(
            f"family --outcomes outcomes.parquet --latency latency.parquet --engine local --deadline-ms {deadline_ms} "
            f"{policy}",
            f"loadtest URL --data held-out.npz --arrivals spike.parquet --deadline-ms {deadline_ms} -o {log}",
        )
        figures[name] = (document, RequestLog.load(workspace.path(log)))
    return figures


def _course(workspace: Workspace) -> Found:
    service = _service(workspace)
    document, _ = _loads(workspace, service, service.deadline_ms)["switching"]
    shares = {point["point"].removeprefix("version="): point["share"] for point in document["points"]}
    used = [f"{name} {percent(share, 0)}" for name, share in shares.items()]
    seconds = document["over_time"]
    return Found(
        says=f"of the answers {', '.join(used)}; {percent(document['deadline_meet_rate'], 2)} met the deadline "
        f"although "
        "the load doubles what the large model serves",
        agrees=len([share for share in shares.values() if share > 0.01]) >= 2,
        columns=("second", "requests", "in time", "accuracy", "effective accuracy"),
        rows=[
            (f"{s['begin_s']:g}", str(s["requests"]), percent(s["attainment"]), percent(s["accuracy"]),
             percent(s["effective_accuracy"]))
            for s in seconds
        ],
        data=f"{service.data}; a real server of one worker, deadline {service.deadline_ms} ms",
    )  # fmt: skip


def _by_deadline(workspace: Workspace) -> Found:
    service = _service(workspace)
    factors: Sequence[float] = workspace.pick((1.0, 2.0), (0.8, 1.0, 1.3, 1.6, 2.0))
    deadlines = [round(service.deadline_ms * factor, 1) for factor in factors]
    figures = {
        deadline: {
            name: document["effective_accuracy"] for name, (document, _) in _loads(workspace, service, deadline).items()
        }
        for deadline in deadlines
    }
    ahead = [values["switching"] - max(values[model] for model in MODELS) for values in figures.values()]
    return Found(
        says=f"switching is {', '.join(f'{100 * gain:+.1f}' for gain in ahead)} points ahead of the best single model "
        f"at {', '.join(f'{deadline:g}' for deadline in deadlines)} ms",
        agrees=all(gain >= -0.005 for gain in ahead),
        columns=("deadline", "switching", *MODELS),
        rows=[
            (f"{deadline:g} ms", *(f"{values[name]:.4f}" for name in ("switching", *MODELS)))
            for deadline, values in figures.items()
        ],
        data=f"{service.data}; a real server of one worker, the same arrivals for all",
        plot=curves(
            "Effective accuracy by deadline",
            "Share of all requests answered correctly and in time.",
            ("deadline, ms", "linear"),
            ("effective accuracy", "share"),
            {name: (deadlines, [figures[d][name] for d in deadlines]) for name in ("switching", *MODELS)},
        ),
    )


def _latencies(workspace: Workspace) -> Found:
    service = _service(workspace)
    logs = {name: log for name, (_, log) in _loads(workspace, service, service.deadline_ms).items()}
    shares = np.linspace(0.01, 0.999, 150)
    latency_s = {name: np.where(log.answered, log.latency_s, np.inf) for name, log in logs.items()}
    quantiles = {name: np.quantile(values, shares, method="higher") for name, values in latency_s.items()}
    late = {name: float((values > service.deadline_ms / 1e3).mean()) for name, values in latency_s.items()}
    return Found(
        says=f"{percent(late['switching'], 2)} of the requests are late by switching, {percent(late['large'], 2)} "
        f"by the "
        f"large model alone and {percent(late['small'], 2)} by the small one",
        agrees=late["switching"] < late["large"],
        columns=("served by", "p50", "p90", "p99", "late or not answered"),
        rows=[
            (name, *(duration(float(np.quantile(v, q, method=
            "higher"))) for q in (0.5, 0.9, 0.99)), percent(late[name], 2))
            for name, v in latency_s.items()
        ],
        data=f"{service.data}; a real server of one worker, deadline {service.deadline_ms} ms; latencies from when a "
        "request was due",
        plot=curves(
            "Latencies of all requests",
            "Share of the requests answered within so long; those not answered are beyond the right edge.",
            ("latency, ms", "log"),
            ("share of requests", "share"),
            {name: (1e3 * q[np.isfinite(q)], shares[np.isfinite(q)]) for name, q in quantiles.items()},
            style="line",
        ),
    )  # fmt: skip


PAPER = Paper(
    name="model-switching",
    title="Model-Switching",
    cited="J. Zhang, S. Elnikety, S. Zarar, A. Gupta, S. Garg: *Model-Switching: Dealing with Fluctuating Workloads in "
    "Machine-Learning-as-a-Service Systems*, HotCloud 2020.",
    setting="ResNet-18 to -152 in Clipper on 32 virtual CPUs, of which 16 serve, with a trace of production",
    figures=(
        Figure(
            "1", "Inference time by model and threads", "more than 5 × between ResNet-18 and ResNet-152; threads help",
            "more than 5 × between the fastest and the most accurate model", _SMALLER, _threads,
        ),
        Figure(
            "2", "Effective accuracy by load", "at low load the most complex model is best, as load rises simpler "
            "ones are",
            "the large model is best at the least load and another at the greatest", f"{_SMALLER}; simulated", _by_load,
        ),
        Figure(
            "3", "P99 by load, replicas and threads", "the best number of threads falls as the load rises",
            "of the large model more threads have the least P99 at its lowest load than answer the most in time",
            f"{_SMALLER}, so there are two or three configurations", _tail,
        ),
        Figure(
            "4a", "Models chosen under a spike", "the most accurate model at low load, smaller ones within the spike",
            "at least two models answer more than 1 % of the requests each", _SMALLER, _course,
        ),
        Figure(
            "4b", "Effective accuracy by deadline", "switching has the highest effective accuracy at every deadline",
            "at every deadline no single model is more than half a point ahead", _SMALLER, _by_deadline,
        ),
        Figure(
            "4c", "Latencies", "switching has a short tail, the large models a long one",
            "fewer requests are late by switching than by the large model", _SMALLER, _latencies,
        ),
    ),
    missing=(
        ("4 by the production trace", "it is not published: the load here has its shape; "
         "`slotool generate arrivals --trace` takes your own"),
        ("CPU and memory use (text)", "of 20 Clipper containers, which slotool does not have"),
    ),
)  # fmt: skip
