"""The supernet of SuperServe's figures: its tables as a service, its weights, and what actuating a subnet takes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from benchmarks.reproduction.paper import Found
from benchmarks.reproduction.plots import curves
from benchmarks.reproduction.workspace import Workspace
from slotool.reports.figure import duration, percent
from slotool.tables import LatencyTable, OutcomeTable

if TYPE_CHECKING:
    from slotool.elastic.supernets.supernet import Supernet

# Of the paper's: their deadline is 1.2 × the largest subnet's latency at the largest batch.
DEADLINE_BY_LARGEST = 1.2
# The paper's, of which the small scale takes two where a load has to be as great.
WORKERS = 8
# Mean load by what the largest subnet can serve; and squared variations of the gaps.
LOADS, CV2 = (0.7, 1.2, 2.0), (2, 4, 8)
# Fixed points, as many as the paper's Clipper+.
CLIPPERS = 6
TRACE = "azure_functions_2019_1000.csv"


@dataclass(frozen=True)
class Service:
    """A supernet as tables. ``points``: from the least to the most accurate; ``capacity``: queries per second of
    ``workers`` at one, at the largest batch."""

    tables: str
    data: str
    points: list[str]
    accuracy: list[float]
    latency_s: np.ndarray
    batches: list[int]
    deadline_ms: float
    workers: int

    def capacity(self, point: int, workers: int | None = None) -> float:
        return float((workers or self.workers) * self.batches[-1] / self.latency_s[point, -1])


def service_of(workspace: Workspace) -> Service:
    """The shipped supernet's tables; at the paper's scale one that is trained, measured and evaluated now."""
    from slotool.scheduling.batching import read_profile

    if workspace.scale == "paper":
        data = workspace.data_set(["fashion-mnist"], otherwise="digits")
        workspace.slotool(f"train supernet -o supernet --data {data} --seed {workspace.seed}")
        workspace.slotool(
            "profile points supernet -o latency.parquet --co-runners 0 --batch-size 1,2,4,8,16 --threads 1"
        )
        workspace.slotool(f"evaluate supernet -o outcomes.parquet --data {data}")
        files = [str(workspace.path(name)) for name in ("latency.parquet", "outcomes.parquet")]
        what = f"a supernet trained on {_name(data)}, measured on this machine"
    else:
        files = [workspace.shipped_table(f"fashion-mnist-supernet-{kind}.parquet") for kind in ("latency", "outcomes")]
        what = "the shipped tables of a Fashion-MNIST supernet of ten subnets, measured on another machine"
    latencies, outcomes = LatencyTable.load(files[0]), OutcomeTable.load(files[1])
    # Without points that another one beats in accuracy and in every latency, which no policy takes.
    chosen = read_profile(latencies, outcomes).grid
    points = [point.key for point in chosen.points]
    known = latencies.where(status="ok", co_runners="").statistics()
    latency_s = known.pivot_table(index="point", columns="batch_size", values="median_s").loc[points]
    deadline_ms = round(1e3 * DEADLINE_BY_LARGEST * float(latency_s.to_numpy()[-1, -1]), 3)
    return Service(
        f"{files[0]} --outcomes {files[1]}", what, points, [float(a) for a in chosen.accuracy], latency_s.to_numpy(),
        [int(size) for size in latency_s.columns], deadline_ms, workspace.pick(2, WORKERS),
    )  # fmt: skip


def arrivals_file(workspace: Workspace, options: str) -> str:
    """The file of the arrivals that ``generate arrivals`` draws by these options."""
    words = options.replace(str(workspace.data), "").replace("--", "")
    name = f"arrivals-{'-'.join(re.findall('[a-z0-9.]+', words))}.parquet"
    workspace.slotool(f"generate arrivals -o {name} {options} --seed {workspace.seed}")
    return name


def lasting(workspace: Workspace, rate_per_s: float) -> str:
    """How long arrivals of this rate last, for as many queries as the scale takes."""
    return f"{workspace.pick(10_000, 300_000) / rate_per_s:.3g}s"


def ramp(workspace: Workspace, service: Service, share: float, cv2: int) -> str:
    """Arrivals that rise from half the largest's capacity to twice, within ``share`` of the load's length."""
    most = service.capacity(len(service.points) - 1)
    low, high = 0.5 * most, 2.0 * most
    seconds = workspace.pick(10_000, 300_000) / high
    return (
        f"--kind time-varying --from-rate {low:.0f} --rate {high:.0f} --cv2 {cv2} --acceleration "
        f"{(high - low) / (share * seconds):.0f} --duration {seconds:g}s"
    )


def clippers(service: Service) -> list[str]:
    """Fixed points evenly over the range of accuracy."""
    at = np.unique(np.linspace(0, len(service.points) - 1, CLIPPERS).round().astype(int))
    return [f"fixed@{service.points[i]}" for i in at]


def _supernet(workspace: Workspace) -> tuple[Supernet, str, str]:
    """The shipped supernet of digits, or the one of the paper's scale; its data for ``--data``; its artifact."""
    from slotool.artifacts import open_artifact
    from slotool.artifacts.bundle import shipped_artifact
    from slotool.elastic.supernets.supernet import Supernet

    if workspace.scale == "paper":
        service_of(workspace)
        data = workspace.data_set(["fashion-mnist"], otherwise="digits")
        return Supernet.load(open_artifact(workspace.path("supernet"))), data, "supernet"
    shipped = shipped_artifact("supernet")
    return Supernet.load(shipped), "digits", str(shipped.path)


def memory(workspace: Workspace) -> Found:
    """Weights of the supernet with the statistics of its points, beside as many networks of their own."""
    model, data, _ = _supernet(workspace)
    subnets = sorted(4 * model.space.narrowed(subnet).weights for subnet in model.subnets.values())
    held = model.weight_bytes + model.norm.bytes
    return Found(
        says=f"the supernet holds its {len(subnets)} points in {held / 1e3:,.0f} kB, {sum(subnets) / held:.1f} × less "
        f"than one network each ({sum(subnets) / 1e3:,.0f} kB)",
        agrees=sum(subnets) > held,
        columns=("what", "bytes"),
        rows=[
            ("shared weights", f"{model.weight_bytes:,}"),
            ("statistics of all points", f"{model.norm.bytes:,}"),
            (f"{len(subnets)} extracted subnets", f"{sum(subnets):,}"),
            ("the largest subnet alone", f"{subnets[-1]:,}"),
        ],
        data=f"a supernet trained on {_name(data)}",
    )


def accuracy_by_flops(workspace: Workspace) -> Found:
    """Subnets by FLOPs, beside networks that were sized by hand; of each the best subnet that needs no more FLOPs."""
    model, data, artifact = _supernet(workspace)
    document = workspace.slotool(f"evaluate {artifact} -o subnets.parquet --data {data} --repeats 1")
    accuracy = {point["version"]: point["accuracy"] for point in document["points"]}
    subnets = sorted((model.space.flops(subnet), accuracy[point.key]) for point, subnet in model.subnets.items())
    training = f"--data {data} --threads 1 --seed {workspace.seed}"
    made = [workspace.slotool(f"train {kind} -o hand-sized-{kind} {training}") for kind in ("family", "cnn")]
    networks = sorted((v["flops"], v["test_accuracy"]) for document in made for v in document["versions"])
    gains = [
        max(own for flops, own in subnets if flops <= most) - alone for most, alone in networks if most >= subnets[0][0]
    ]
    return Found(
        says=f"beside the {len(gains)} networks trained alone that have no fewer FLOPs than the smallest subnet, "
        f"the best "
        f"subnet within as many is {', '.join(f'{100 * gain:+.1f}' for gain in gains)} points off",
        agrees=bool(gains) and min(gains) >= 0,
        columns=("network", "FLOPs", "test accuracy"),
        rows=[
            *((f"subnet {i + 1}", f"{flops:,}", percent(own)) for i, (flops, own) in enumerate(subnets)),
            *((f"trained alone {i + 1}", f"{flops:,}", percent(own)) for i, (flops, own) in enumerate(networks)),
        ],
        data=f"{_name(data)}, test split",
        plot=curves(
            "Accuracy by FLOPs",
            "Subnets of one supernet beside networks that were sized by hand and trained alone.",
            ("FLOPs", "log"),
            ("test accuracy", "share"),
            {
                "subnets": ([f for f, _ in subnets], [a for _, a in subnets]),
                "trained alone": ([f for f, _ in networks], [a for _, a in networks]),
            },
        ),
    )


def _name(data: str) -> str:
    return "Fashion-MNIST" if "fashion" in data else data


def _longer(seconds: float) -> str:
    """A difference of two medians: where it is not positive, what it measures is less than their noise."""
    return duration(seconds) if seconds > 0 else "no measurable time"


def loading(workspace: Workspace) -> Found:
    """In this process: a call of a subnet is shorter than any command that would print it."""
    from benchmarks.reproduction.actuation import measured_actuation

    model, data, _ = _supernet(workspace)
    shape = model.space.graph.input_shape
    one = np.random.default_rng(workspace.seed).random((1, *shape), dtype=np.float32)
    figures = measured_actuation(model, one, workspace.folder, workspace.pick(50, 500))
    return Found(
        says=f"loading a subnet of {figures.weight_bytes / 1e3:,.0f} kB from a file takes {duration(figures.load_s)}, "
        f"{figures.load_s / figures.forward_s:.1f} × its inference; actuating it in place {_longer(figures.switch_s)}"
        f"{f', {figures.load_s / figures.switch_s:,.0f} × less' if figures.switch_s > 0 else ''}",
        agrees=figures.load_s > 10 * figures.switch_s,
        columns=("what", "median"),
        rows=[
            ("inference at the largest point, one example", duration(figures.forward_s)),
            ("actuation: a call after one of the other end", _longer(figures.switch_s)),
            ("the same of two extracted subnets in memory", _longer(figures.extracted_switch_s)),
            ("loading the extracted subnet", duration(figures.load_s)),
        ],
        data=f"a supernet trained on {_name(data)}, one thread",
    )
