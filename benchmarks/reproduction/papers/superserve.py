"""Khare and others: *SuperServe* (NSDI 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

import numpy as np

from benchmarks.reproduction.actuation_delay import COARSE, actuation_delay
from benchmarks.reproduction.faults import served_deaths
from benchmarks.reproduction.paper import Figure, Found, Paper
from benchmarks.reproduction.plots import curves
from benchmarks.reproduction.supernets import (
    CV2,
    LOADS,
    TRACE,
    WORKERS,
    Service,
    accuracy_by_flops,
    arrivals_file,
    clippers,
    lasting,
    loading,
    memory,
    ramp,
    service_of,
)
from benchmarks.reproduction.time_courses import (
    bursts_over_time,
    control_choices,
    ramps_over_time,
    slack_left,
    trace_over_time,
)
from benchmarks.reproduction.workspace import Workspace
from slotool.demo import Document
from slotool.reports.figure import duration, percent

HELD = 0.999
# Shares of its capacity at which a point is tried that does not sustain more.
LOW_SHARES = (0.4, 0.2, 0.1, 0.05)
_SIMULATED = "simulated on a virtual clock with measured latencies, not served by eight GPUs"
_FOLLOWS = "in the busiest quarter of the time accuracy is lower and batches are larger than in the calmest"
_SMALLER = "a supernet of 2 ms at most on a CPU, not OFA-ResNet on an RTX 2080 Ti"


def _simulated(
    workspace: Workspace,
    service: Service,
    arrivals: str,
    policies: Sequence[str],
    more: str = "",
    workers: int | None = None,
) -> dict[str, Document]:
    """Rows of ``simulate`` by policy, for the arrivals that ``generate arrivals`` draws by these options."""
    name = arrivals_file(workspace, arrivals)
    document = workspace.slotool(
        f"simulate {service.tables} --arrivals {name} --deadline-ms {service.deadline_ms:g} --workers "
        f"{workers or service.workers} "
        f"--policies {','.join(policies)} --optimum bound --seed {workspace.seed}{more}"
    )
    return {row["policy"]: row for row in document["policies"]}


def _against(rows: dict[str, Document]) -> tuple[float, float]:
    """What SlackFit has beside the fixed points: accuracy above the best that attains as much, in points; and times
    the attainment of the best that is as accurate."""
    ours = rows["slackfit"]
    fixed = [row for name, row in rows.items() if name.startswith("fixed@") or name == "mincost"]
    as_good = [row["accuracy"] for row in fixed if row["attainment"] >= ours["attainment"] - 1e-3 and row["accuracy"]]
    as_accurate = [row["attainment"] for row in fixed if (row["accuracy"] or 0.0) >= ours["accuracy"] - 1e-3]
    return (
        100 * (ours["accuracy"] - max(as_good)) if as_good else float("nan"),
        ours["attainment"] / max(as_accurate) if as_accurate else float("nan"),
    )


def _grid(workspace: Workspace, loads: dict[str, str], title: str, least: float = 0.0) -> Found:
    """SlackFit, the value-iteration policy, INFaaS's least cost and the fixed points, by named arrivals.

    ``least``: attainment of SlackFit in all loads that the paper's finding includes.
    """
    service = service_of(workspace)
    policies = ["slackfit", "value-iteration", "mincost", *clippers(service)]
    results = {name: _simulated(workspace, service, arrivals, policies) for name, arrivals in loads.items()}
    against = {name: _against(rows) for name, rows in results.items()}
    gains = [gain for gain, _ in against.values()]
    times = [ratio for _, ratio in against.values()]
    attained = min(rows["slackfit"]["attainment"] for rows in results.values())
    columns = [p.replace("fixed@", "") for p in policies]
    return Found(
        says=f"SlackFit attains {percent(attained, 2)} or more in all {len(results)} loads; beside the best fixed "
        f"point or least cost it is {np.nanmin(gains):.2f} to {np.nanmax(gains):.2f} points more accurate at the same "
        f"attainment, or attains {np.nanmin(times):.2f} to {np.nanmax(times):.2f} × as much at the same accuracy",
        agrees=bool(
            attained >= least and np.nanmin(gains) >= -0.1 and np.nanmin(times) >= 0.999 and np.nanmax(times) > 1.1
        ),
        columns=("load", *columns),
        rows=[
            (name, *(f"{percent(rows[p]['attainment'], 2)} at {percent(rows[p]['accuracy'])}" for p in policies))
            for name, rows in results.items()
        ],
        data=f"{service.data}; {service.workers} simulated workers, deadline {service.deadline_ms:g} ms; attainment "
        f"at accuracy "
        "of those in time",
        plot=curves(
            title,
            "One point a load: the best corner is top right.",
            ("SLO attainment", "share"),
            ("accuracy of those in time", "share"),
            {
                name.replace("fixed@", ""): _line(results, name)
                for name in ("slackfit", "value-iteration", "mincost", policies[3], policies[-1])
            },
            style="dots",
        ),
    )


def _line(results: dict[str, dict[str, Document]], policy: str) -> tuple[list[float], list[float]]:
    rows = [rows[policy] for rows in results.values() if rows[policy]["accuracy"] is not None]
    return [row["attainment"] for row in rows], [row["accuracy"] for row in rows]


def _bursty(workspace: Workspace) -> Found:
    service = service_of(workspace)
    most = service.capacity(len(service.points) - 1)
    return _grid(
        workspace,
        {
            f"{load:g} × the largest's capacity, CV² {cv2}":
                f"--kind bursty --rate {load * most:.0f} --cv2 {cv2} --duration {lasting(workspace, load * most)}"
            for load in LOADS for cv2 in CV2
        },
        "Bursty loads",
    )  # fmt: skip


def _ramps(workspace: Workspace) -> Found:
    service = service_of(workspace)
    return _grid(
        workspace,
        {
            f"ramp of {share:g} of the load's length, CV² {cv2}": ramp(workspace, service, share, cv2)
            for share in (0.5, 0.2, 0.05) for cv2 in (2, 8)
        },
        "Loads that rise",
    )  # fmt: skip


def _recorded(workspace: Workspace) -> Found:
    trace = workspace.data_set([TRACE])
    service = service_of(workspace)
    most = service.capacity(len(service.points) - 1)
    return _grid(
        workspace,
        {
            f"mean of {load:g} × the largest's capacity":
                f"--trace {trace} --rate {load * most:.0f} --duration {lasting(workspace, load * most)}"
            for load in LOADS
        },
        "Microsoft Azure Functions, 2019",
        HELD,
    )  # fmt: skip


def _policies(workspace: Workspace) -> Found:
    service = service_of(workspace)
    most = service.capacity(len(service.points) - 1)
    names = ["slackfit", "maxacc", "maxbatch", "value-iteration"]
    seconds = lasting(workspace, 1.5 * most)
    figures = {
        cv2: _simulated(
            workspace, service, f"--kind bursty --rate {1.5 * most:.0f} --cv2 {cv2} --duration {seconds}", names
        )
        for cv2 in CV2
    }
    worst = {name: min(rows[name]["attainment"] for rows in figures.values()) for name in names}
    effective = {name: min(rows[name]["effective_accuracy"] for rows in figures.values()) for name in names}
    return Found(
        says=f"SlackFit attains {percent(worst['slackfit'], 2)} or more, MaxAcc {percent(worst['maxacc'], 2)}, "
        f"MaxBatch "
        f"{percent(worst['maxbatch'], 2)}; correct and in time at least {percent(effective['slackfit'])}, "
        f"{percent(effective['maxacc'])} and {percent(effective['maxbatch'])} (value iteration "
        f"{percent(effective['value-iteration'])})",
        agrees=all(
            rows["slackfit"]["attainment"] >= max(rows[name]["attainment"] for name in ("maxacc", "maxbatch")) - 1e-3
            for rows in figures.values()
        ),
        columns=("CV²", *names),
        rows=[
            (str(cv2), *(f"{percent(rows[n]['attainment'], 2)} at {percent(rows[n]['accuracy'])}" for n in names))
            for cv2, rows in figures.items()
        ],
        data=f"{service.data}; {service.workers} simulated workers at 1.5 × the largest's capacity",
    )


def _deaths(workspace: Workspace) -> Found:
    """Half the workers die, one after the other, under a load that all serve at the most accurate point."""
    service = service_of(workspace)
    most = service.capacity(len(service.points) - 1, WORKERS)
    seconds = float(lasting(workspace, 0.8 * most).removesuffix("s"))
    deaths = [seconds * (i + 1) / (WORKERS / 2 + 1) for i in range(WORKERS // 2)]
    names = ["slackfit", "value-iteration", f"fixed@{service.points[-1]}"]
    rows = _simulated(
        workspace, service, f"--kind bursty --rate {0.8 * most:.0f} --cv2 2 --duration {seconds:g}s", names,
        f" --deaths {','.join(f'{at:g}' for at in deaths)}", WORKERS,
    )  # fmt: skip
    ours, fixed = rows["slackfit"], rows[names[-1]]
    return Found(
        says=f"with half the workers dead at the end SlackFit attains {percent(ours['attainment'], 2)} at accuracy "
        f"{percent(ours['accuracy'])}, the most accurate subnet alone {percent(fixed['attainment'], 2)}",
        agrees=ours["attainment"] >= HELD,
        columns=("policy", "attainment", "accuracy of those in time"),
        rows=[(n.replace("fixed@", ""), percent(r["attainment"], 3), percent(r["accuracy"])) for n, r in rows.items()],
        data=f"{service.data}; one of {WORKERS} simulated workers dies every {deaths[0]:.2g} s",
    )


def _scaling(workspace: Workspace) -> Found:
    """The greatest rate, in steps of 5 % of the capacity, at which the deadline is attained by 0.999."""
    service = service_of(workspace)
    counts = workspace.pick((1, 4, 16, 32), (1, 2, 4, 8, 16, 32, 64))
    point = f"fixed@{service.points[0]}"
    held = {count: _greatest(workspace, service, point, count) for count in counts}
    rates = np.array([held[count] for count in counts])
    linear = rates / (rates[0] * np.array(counts))
    return Found(
        says=f"{counts[-1]} workers sustain {_sustained(rates[-1])} queries/s, {linear[-1]:.2f} of {counts[-1]} × one "
        f"worker's "
        f"{_sustained(rates[0])}",
        agrees=bool(linear[-1] >= 0.9),
        columns=("workers", "sustained, queries/s", "of linear"),
        rows=[(str(c), _sustained(r), f"{share:.2f}") for c, r, share in zip(counts, rates, linear, strict=True)],
        data=f"{service.data}; the smallest subnet, Poisson arrivals, attainment {HELD}",
        plot=curves(
            "Sustained load by workers",
            f"Greatest Poisson rate at which {HELD} of the queries meet the deadline.",
            ("workers", "linear"),
            ("queries per second", "linear"),
            {"sustained": (counts, rates)},
            dashed={"linear": (counts, rates[0] * np.array(counts))},
        ),
    )


def _greatest(workspace: Workspace, service: Service, point: str, workers: int) -> float:
    """The greatest of some shares of its capacity that the point sustains, for thirty deadlines at least; 0 if none."""
    capacity = service.capacity(service.points.index(point.removeprefix("fixed@")), workers)

    def is_held(share: float) -> bool:
        rate = share * capacity
        seconds = max(workspace.pick(10_000, 300_000) / rate, 30e-3 * service.deadline_ms)
        arrivals = f"--rate {rate:.0f} --duration {seconds:.3g}s"
        return bool(_simulated(workspace, service, arrivals, [point], workers=workers)[point]["attainment"] >= HELD)

    held = takewhile(is_held, workspace.pick((0.6, 0.75, 0.9), (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.95)))
    return capacity * (max(held, default=0.0) or next(filter(is_held, LOW_SHARES), 0.0))


def _sustained(rate: float) -> str:
    return f"{rate:,.0f}" if rate else "none tried"


def _throughput(workspace: Workspace) -> Found:
    service = service_of(workspace)
    picked = (0, len(service.points) // 2, len(service.points) - 1)
    rates = [_greatest(workspace, service, f"fixed@{service.points[i]}", service.workers) for i in picked]
    span = 100 * (service.accuracy[-1] - service.accuracy[0])
    return Found(
        says=f"{_sustained(rates[-1])} to {_sustained(rates[0])} queries/s"
        f"{f' ({rates[0] / rates[-1]:.1f} ×)' if rates[-1] else ''} within {span:.1f} points of accuracy",
        agrees=rates[0] > 2 * rates[-1] > 0,
        columns=("subnet", "accuracy", "sustained, queries/s"),
        rows=[
            (service.points[i], percent(service.accuracy[i]), _sustained(rate))
            for i, rate in zip(picked, rates, strict=True)
        ],
        data=f"{service.data}; {service.workers} simulated workers, Poisson arrivals, attainment {HELD}",
    )


def _profile(workspace: Workspace) -> Found:
    service = service_of(workspace)
    grid = service.latency_s
    by_batch = float((np.diff(grid, axis=1) > 0).mean())
    by_accuracy = float((np.diff(grid, axis=0) > 0).mean())
    return Found(
        says=f"latency grows from one batch size to the next in {by_batch:.0%} of the cases and from one subnet to the "
        f"next more accurate one in {by_accuracy:.0%}",
        agrees=by_batch >= 0.9 and by_accuracy >= 0.9,
        columns=("subnet", "accuracy", *(f"batch {size}" for size in service.batches)),
        rows=[
            (point, percent(accuracy), *map(duration, row))
            for point, accuracy, row in zip(service.points, service.accuracy, grid, strict=True)
        ],
        data=f"{service.data}; medians",
        plot=curves(
            "Latency by batch size",
            "One curve a subnet.",
            ("batch size", "log"),
            ("latency, ms", "log"),
            {point: (service.batches, 1e3 * row) for point, row in zip(service.points, grid, strict=True)},
        ),
    )


PAPER = Paper(
    name="superserve",
    title="SuperServe",
    cited="A. Khare, D. Garg, S. Kalra, S. Grandhi, I. Stoica, A. Tumanov: *SuperServe: Fine-Grained Inference Serving "
    "for Unpredictable Workloads*, NSDI 2025.",
    setting="OFA-ResNet and DynaBERT supernets on eight RTX 2080 Ti, a deadline of 36 ms",
    figures=(
        Figure(
            "1", "Loading a model against inference (1a, 4b)",
            "loading from host to GPU memory takes many times the inference; actuation is orders of magnitude faster",
            "loading takes more than ten times the actuation",
            "weights go from a file in the page cache to CPU memory, not over PCIe", loading,
        ),
        Figure(
            "1b", "Actuation delay (1b, 1c)",
            "a policy whose models take a while to switch misses deadlines as the rate rises and wastes resources as "
            "it falls; one that switches at once does neither",
            f"a delay of {COARSE} deadlines misses more and leaves more capacity unused than none",
            f"{_SMALLER}; a fluid of queries instead of single ones", actuation_delay,
        ),
        Figure(
            "2", "Accuracy of subnets by FLOPs",
            "subnets are more accurate than hand-tuned ResNets of the same FLOPs",
            "within the FLOPs of each network trained alone some subnet is as accurate",
            "small networks on small images, trained for seconds; of those trained alone three are dense, which "
            "suits digits better than convolutions do", accuracy_by_flops,
        ),
        Figure(
            "4a", "Memory", "up to 2.6 × less than separate networks of the same range",
            "less than the sum of the extracted subnets", "a small supernet of fewer points", memory,
        ),
        Figure(
            "4c", "Range of throughput", "a wide range, 2,000 to 8,000 queries/s, within 6 points of accuracy",
            "the smallest subnet sustains more than twice what the largest does", f"{_SMALLER}; "
            f"{_SIMULATED}", _throughput,
        ),
        Figure(
            "8", "Bursty loads by rate and variation",
            "4.33 % more accurate at the same attainment, 2.06 × the attainment at the same accuracy",
            "in no load worse than the best fixed point or least cost, by 0.1 points and 0.1 %, and somewhere 1.1 × "
            "its "
            "attainment",
            f"{_SMALLER}; {_SIMULATED}", _bursty,
        ),
        Figure(
            "9", "Rising loads by acceleration and variation",
            "the best attainment and accuracy at every acceleration; fixed models diverge as it grows",
            "as of Figure 8", f"{_SMALLER}; {_SIMULATED}", _ramps,
        ),
        Figure(
            "10", "A recorded day: Microsoft Azure Functions",
            "five nines; 4.67 % more accurate at the same attainment, 2.85 × the attainment at the same accuracy",
            f"as of Figure 8, and SlackFit attains {HELD} or more in every load",
            f"1,000 functions of the trace, compressed; {_SMALLER}; {_SIMULATED}", _recorded,
        ),
        Figure(
            "10b", "The recorded day over time",
            "within spikes SlackFit takes smaller subnets and larger batches, and larger subnets where the load is low",
            _FOLLOWS, f"1,000 functions of the trace, compressed; {_SMALLER}; {_SIMULATED}", trace_over_time,
        ),
        Figure(
            "11a", "Workers die", "attainment stays .999 with half the workers dead, by less accurate subnets",
            f"attainment of at least {HELD}", f"{_SMALLER}; {_SIMULATED}", _deaths,
        ),
        Figure(
            "11a-served", "A worker of a real server dies",
            "attainment stays .999 with half the workers dead, by less accurate subnets",
            f"attainment of at least {HELD}", f"{_SMALLER}; one of two worker processes, and a load that a front end "
            "and its client on two cores can take, which subnets of a millisecond hardly feel", served_deaths,
        ),
        Figure(
            "11b", "More workers", "33,000 queries/s by 32 workers at attainment .999, nearly linear",
            "the most workers sustain at least 0.9 of linear", f"{_SIMULATED}; without the cost of a network", _scaling,
        ),
        Figure(
            "11c", "Policies", "SlackFit attains more than MaxAcc and MaxBatch at every CV²; MaxBatch loses 5 % at "
            "CV² 8",
            "at no CV² does MaxAcc or MaxBatch attain more, by 0.1 points", f"{_SMALLER}; {_SIMULATED}", _policies,
        ),
        Figure(
            "12", "Latency by subnet and batch size (12a)", "latency rises with the batch size and with accuracy",
            "it rises in 90 % of neighbouring cases or more", f"{_SMALLER}; small batches on a CPU cost little more "
            f"than "
            "one example, and the medians are noisy", _profile,
        ),
        Figure(
            "12b", "Choices by latency", "the number of choices of subnet and batch size falls as the latency rises",
            "more choices in the lower half of the latencies than in the upper", _SMALLER,
            control_choices,
        ),
        Figure(
            "13a", "Bursty loads over time", "SlackFit takes less accurate subnets more often as CV² grows, and within "
            "spikes smaller subnets with larger batches",
            f"{_FOLLOWS}; and the mean accuracy falls with CV²", f"{_SMALLER}; {_SIMULATED}", bursts_over_time,
        ),
        Figure(
            "13b", "Rising loads over time", "a faster rise makes SlackFit jump to smaller subnets and larger batches, "
            "a slower one passes by those in between; the mean accuracy falls with the acceleration",
            f"{_FOLLOWS}; and the mean accuracy falls with the acceleration", f"{_SMALLER}; {_SIMULATED}",
            ramps_over_time,
        ),
        Figure(
            "14", "Slack left to queries (appendix B)",
            "under the largest fixed subnets queries have less slack than any call takes; with SlackFit they keep it",
            "with SlackFit fewer than 1 % have none left, and no more than under the largest subnet",
            f"Poisson arrivals, as the trace is said to have; {_SMALLER}; {_SIMULATED}", slack_left,
        ),
    ),
    missing=(
        ("3, 5, 6, 7", "drawings, no measurements"),
        ("all on GPUs", "needs eight RTX 2080 Ti; `slotool profile points --device cuda:0` measures a supernet on "
        "yours"),
        ("2 and 4 on OFA-ResNet, DynaBERT", "their weights are not shipped; `slotool train supernet --from` takes "
        "own ones"),
    ),
)  # fmt: skip
