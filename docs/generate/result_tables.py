"""Tables of the results pages, from the figures of recorded benchmarks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from slotool.printable import duration, number

Figures = Mapping[str, Any]


@dataclass(frozen=True)
class Table:
    """Table of text; ``title`` may be empty."""

    title: str
    heads: list[str]
    rows: list[list[str]]

    def __post_init__(self) -> None:
        if not self.rows or any(len(row) != len(self.heads) for row in self.rows):
            raise ValueError(f"table {self.title or self.heads}: expected rows of {len(self.heads)} cells")


def percent(share: float | None, digits: int = 2) -> str:
    """Return ``0.9933`` as ``99.33 %``."""
    return "–" if share is None else f"{100 * share:.{digits}f} %"


def times(ratio: float) -> str:
    """Return a ratio as text."""
    return f"{ratio:,.0f} ×" if ratio >= 10 else f"{ratio:.2f} ×"


def microseconds(value: float) -> str:
    """Return a figure in µs as a duration in a fitting unit."""
    return duration(value / 1e6)


def startup(figures: Figures) -> list[Table]:
    """Show seconds of each command beside a bare interpreter."""
    medians = figures["medians_s"]
    floor = next(iter(medians.values()))
    rows = [[f"`{name.removeprefix('floor: ')}`", duration(s), times(s / floor)] for name, s in medians.items()]
    return [Table("", ["command", "median", "× bare interpreter"], rows)]


def generate(figures: Figures) -> list[Table]:
    """Show networks per second, memory, and whether a second run writes the same bytes."""
    drawn = {name: entry for name, entry in figures.items() if isinstance(entry, dict)}
    rows = [
        [name, f"{f['count']:,}", duration(f["seconds"]), f"{f['count'] / f['seconds']:,.0f}",
         f"{f['peak_bytes'] / 2**20:.0f} MiB", duration(f["floor_s"]), "yes" if f["same_bytes"] else "**no**"]
        for name, f in drawn.items()
    ]  # fmt: skip
    heads = ["kind", "networks", "time", "per second", "peak memory", "time to write", "same bytes again"]
    return [Table("", heads, rows)]


def profiling(figures: Figures) -> list[Table]:
    """Show how well labels repeat, and how fast they come."""
    repeats = [name for name in figures if name.startswith(("slotool,", "naive loop,"))]
    differences = [
        [name, *(percent(figures[name][of], 1) if figures[name] else "none" for of in ("median", "p90"))]
        for name in repeats
    ]
    rates = [
        [name, f"{figures[name]['labels_per_hour']:,.0f}", percent(figures[name]["median"], 1)]
        for name in ("slotool", "plain Keras loop")
    ]
    share = (
        f"stable rows: {percent(figures['stable share'], 1)}; outside timed calls: {percent(figures['own cost'], 1)}"
    )
    return [
        Table(f"Two campaigns over the same networks ({share} of the time)",
              ["labels", "relative difference, median", "90th percentile"], differences),
        Table("Labels per hour, quick campaigns", ["method", "labels per hour", "relative difference, median"], rates),
    ]  # fmt: skip


def predict(figures: Figures) -> list[Table]:
    """Show scores by split and predictor, and the time of a prediction."""
    tables = []
    heads = ["predictor", "MAE ÷ mean", "MAPE", "within 5 %", "within 10 %", "nominal 90 % interval covers"]
    names = {"mlp": "MLPs", "cnn": "CNNs", "all": "both kinds"}
    for split, scores in figures["scores"].items():
        rows = [
            [f"`{name}`", *_scores(score), percent(score["interval_coverage"], 0)] for name, score in scores.items()
        ]
        rows.append(["noise floor", *_scores(next(iter(scores.values()))["floor"]), "–"])
        tables.append(Table(f"Held out at random: {names.get(split, split)}", heads, rows))
    speeds = [[f"`{name}`", duration(s["one_graph_s"]), duration(s["ten_thousand_graphs_s"])]
              for name, s in figures["seconds"].items()]  # fmt: skip
    return [*tables, Table("Time of a prediction", ["predictor", "one network", "10,000 networks"], speeds)]


def graph_network(figures: Figures) -> list[Table]:
    """Show seconds of training beside the bare matrix products, and MAPE beside simpler predictors."""
    trainings = figures["trainings"]
    times_ = [
        [name, f"{f['networks']:,}", f"{f['operators']:.0f}", duration(median(f["train_s"])), times(f["times_floor"])]
        for name, f in trainings.items()
    ]
    rivals = list(next(iter(trainings.values()))["mape"])
    errors = [[name, *(percent(mean(f["mape"][rival]), 1) for rival in rivals)] for name, f in trainings.items()]
    heads = ["predictor, result", "call", "median", "minimum", "maximum"]
    speeds = [
        [*name.removesuffix(", ms").replace(" alone", "").rsplit(", ", 1), *_speeds(name, each)]
        for name, each in figures["speeds"].items()
    ]
    return [
        Table("Training", ["labels", "networks", "operators each", "median", "× bare products"], times_),
        Table("MAPE on networks held out, mean over seeds", ["labels", *(f"`{rival}`" for rival in rivals)], errors),
        Table("Networks per second on one thread, and milliseconds of one network", heads, speeds),
    ]


def _speeds(name: str, values: list[float] | float) -> list[str]:
    """Return the figures of all rounds; earlier records have one."""
    values = values if isinstance(values, list) else [values]
    form = "{:.2f} ms" if name.endswith("ms") else "{:,.0f}/s"
    return [form.format(value) for value in (median(values), min(values), max(values))]


def _scores(score: Figures) -> list[str]:
    shown = [percent(score["mae_over_mean"], 1), percent(score["mape"], 1)]
    return [*shown, percent(score["within_5_percent"], 0), percent(score["within_10_percent"], 0)]


def served_request(figures: Figures) -> list[Table]:
    """Compare a request through slotool with one to a server that does nothing."""
    medians = figures["medians_s"]
    call = medians["model call"]
    rows = [["model call in Python", duration(call), "–", "–"]]
    for name, seconds in medians.items():
        if name == "ONNX session":
            rows.append(["ONNX Runtime session in Python", duration(seconds), "–", "–"])
        elif name != "model call":
            extra = seconds - (medians["ONNX session"] if name == "ONNX family" else call)
            floor = medians["bare gRPC" if "gRPC" in name else "bare server"]
            beyond = ["–", "–"] if name.startswith("bare") else [duration(extra), times(extra / floor)]
            rows.append([name, duration(seconds), *beyond])
    return [Table("", ["request", "median", "beyond the model call", "× bare server"], rows)]


def serving(figures: Figures) -> list[Table]:
    """Show the IPC round trip to a worker, and the deaths of workers."""
    trips = [[f"`--engine {name}`", duration(seconds)] for name, seconds in figures["hop_s"].items()]
    deaths = [
        [name, f"{f['requests']:,}", percent(f["attainment"], 3), f"{f['unanswered']:,}"]
        for name, f in figures["deaths"].items()
    ]
    return [
        Table("One request after the other through the router", ["engine", "median"], trips),
        Table("200 requests/s, deadline 50 ms", ["workers", "requests", "in time", "unanswered"], deaths),
    ]


def serving_peers(figures: Figures) -> list[Table]:
    """Show rates and CPU time of a request by server, beside slotool's with binary tensors."""
    result = figures["found"]
    own = next(iter(result.values()))
    rows = []
    for name, of in result.items():
        rate, spent = of["rate_per_s"], [of[each]["cpu_s"] for each in ("1", "32")]
        ratio = "–"
        if not name.startswith("slotool"):
            ratio = times(own["rate_per_s"]["median"] / rate["median"]) if rate["median"] else "none carried"
        single = [f"{of[each]['per_s']['median']:,.0f}" for each in ("1", "32")]
        times_ = [_spread(each, of["rounds"], 1e6, " µs") for each in spent]
        rows.append([name, _spread(rate, of["rounds"]), ratio, *single, *times_])
    rounds = sorted({of["rounds"] for of in result.values()})
    without = "; one round where no range is stated" if rounds[0] == 1 else ""
    bound = duration(figures["p99_bound_s"])
    heads = ["server", f"requests/s with p99 ≤ {bound}", "slotool ÷ this server", "requests/s, 1 connection",
             "requests/s, 32 connections", "CPU/request, 1 connection", "CPU/request, 32 connections"]  # fmt: skip
    title = f"Median, minimum and maximum of {rounds[-1]} rounds, {figures['seconds']:g} s per load{without}"
    return [Table(title, heads, rows)]


def _spread(figures: Figures, rounds: int, scale: float = 1.0, unit: str = "") -> str:
    """Return the median, and the range of several rounds."""
    middle, low, high = (f"{scale * figures[of]:,.0f}" for of in ("median", "least", "most"))
    return f"{middle}{unit}{f' ({low} to {high})' if rounds > 1 else ''}"


def front_ends(figures: Figures) -> list[Table]:
    """Show CPU time, median latency and rate of each front end, over one connection and over 32."""
    rows = []
    for name, of in figures["found"].items():
        spent = [f"{of[each]['cpu_s']['median'] * 1e6:.0f} µs ({of[each]['cpu_s']['least'] * 1e6:.0f} to "
                 f"{of[each]['cpu_s']['most'] * 1e6:.0f})" for each in ("1", "32")]  # fmt: skip
        rows.append([name, *spent, duration(of["1"]["p50_s"]["median"]), f"{of['32']['per_s']['median']:,.0f}"])
    heads = ["front end", "CPU per request, 1 connection", "CPU per request, 32 connections", "p50, 1 connection",
             "requests/s, 32 connections"]  # fmt: skip
    title = f"Median, minimum and maximum of {figures['rounds']} rounds, {figures['seconds']:g} s per load"
    return [Table(title, heads, rows)]


def serving_limits(figures: Figures) -> list[Table]:
    """Show the limits of a server, beside its goal."""
    result, rows = figures["found"], []
    if idle := result.get("idle connections"):
        rows.append(["memory of an idle connection", f"{idle['bytes_each'] / 1e3:.1f} KB", "≤ 10 KB"])
        tails = [duration(idle[each]["median"]) for each in ("p99_without_s", "p99_with_s")]
        rows.append([f"p99 without and with {idle['connections']:,} idle ones", " and ".join(tails), "unchanged"])
    if overhead := result.get("overhead"):
        for name, goal in (("HTTP", "≤ 1.5 ×"), ("gRPC", "≤ 2 ×")):
            echo = "llhttp on uvloop" if name == "HTTP" else "grpc.aio"
            p50 = duration(overhead["p50_s"][name]["median"])
            shown = f"{times(overhead['ratios'][name])} (p50 {p50})"
            rows.append([f"{name}: p50 beyond the bare call ÷ an echo of {echo}", shown, goal])
    if images := result.get("image network"):
        call = duration(1 / images["bare_per_s"]["median"])
        rows.append([f"ONNX image network of {call}: rate ÷ the bare session's", f"{images['ratio']:.3f}", "≥ 0.97"])
    if beside := result.get("beside Triton"):
        shown = ", ".join(
            f"{times(ratio['median'])} ({ratio['least']:.2f} to {ratio['most']:.2f})" for ratio in beside["p99_ratios"]
        )
        loads = ", ".join(percent(share, 0) for share in beside["shares"])
        rows.append([f"the same network's p99 ÷ Triton's, at {loads} of the bare session's rate", shown, "≤ 1 ×"])
    if labels := result.get("many labels"):
        p50 = duration(labels["p50_s"]["median"])
        rows.append(["50,000 labels, sparse example, top 5: p50", p50, "≤ 400 µs"])
    return [Table("", ["quantity", "measured", "goal"], rows)]


def overload(figures: Figures) -> list[Table]:
    """Show goodput beyond capacity beside the best goodput."""
    best = figures["best_goodput"]
    rows = [["1 ×", "–", f"{best:,.0f}", "100 %", "–", "–"]]
    for name, entry in figures.items():
        if isinstance(entry, dict):
            memory = f"{min(entry['rss_mib']):,.0f} to {max(entry['rss_mib']):,.0f} MiB"
            shares = [percent(entry[clock] / best, 0) for clock in ("goodput", "by_server")]
            rates = [f"{entry[what]:,.0f}" for what in ("sent", "goodput")]
            rows.append([name.replace("x", " ×"), *rates, *shares, memory])
    heads = [
        "offered load",
        "sent, requests/s",
        "in time, requests/s",
        "share of the best",
        "share of the best, server's clock",
        "server's memory",
    ]
    return [Table("", heads, rows)]


def closed_loop(figures: Figures) -> list[Table]:
    """Show rates of closed-loop clients beside the bare model, and requests that were refused."""
    cells = figures["cells"]
    clients = sorted({cell["clients"] for cell in cells})
    rows = []
    for inputs, network in dict.fromkeys((cell["inputs"], cell["network"]) for cell in cells):
        of = [cell for cell in cells if (cell["inputs"], cell["network"]) == (inputs, network)]
        bare = sorted(1e3 * bare_s for cell in of for bare_s in cell["bare_s"])
        shares = [sorted(cell["per_s"] * bare_s for bare_s in cell["bare_s"]) for cell in of]
        rates = [f"{cell['per_s']:,.0f} ({low:.2f}–{high:.2f})" for cell, (low, high) in zip(of, shares, strict=True)]
        spread = f"{bare[0]:.2g}–{bare[-1]:.2g} ms"
        refused = f"{sum(cell['refused'] for cell in of)} of {sum(cell['requests'] for cell in of):,}"
        rows.append([inputs, network, spread, *rates, refused])
    heads = [
        "input",
        "network",
        "bare call",
        *(f"{count} clients: per s (share of bare)" for count in clients),
        "refused",
    ]
    return [Table("", heads, rows)]


def goodput(figures: Figures) -> list[Table]:
    """Show answers in time beyond capacity beside their best rate at any load, by network and engine."""
    heads = ["network, engine", "closed loop, requests/s", "best in time, requests/s", "share at 3 ×", "share at 5 ×"]
    rows = []
    for name, entry in figures["found"].items():
        # Earlier records searched the best rate up to the capacity only.
        best = max(entry[load] for load in ("best", "3x", "5x"))
        shares = [percent(entry[load] / best, 0) for load in ("3x", "5x")]
        rows.append([name, f"{entry['closed']:,.0f}", f"{best:,.0f}", *shares])
    return [Table("", heads, rows)]


def slo_nn(figures: Figures) -> list[Table]:
    """Show latency and loss of each way to answer, by data set."""
    heads = ["method", "points lost", "nodes", "median", "mean", "p99", "cold", "× PyTorch", "× ORT int8",
             "× own dense"]  # fmt: skip
    tables = []
    for name, entry in figures["sets"].items():
        rows = []
        for row in entry["rows"]:
            faster = [row["speedup_by_median"][other] for other in ("torch", "ORT int8", "dense")]
            rows.append([row["what"].replace("ACLO", "k per input"), _lost(row["lost"], row["standard_error"]),
                         f"{row['nodes']:,.0f}",
                         *(microseconds(row[what]) for what in ("median_us", "mean_us", "p99_us", "cold_us")),
                         *("–" if ratio is None else times(ratio) for ratio in faster)])  # fmt: skip
        tables.append(Table(name, heads, rows))
    return tables


def _lost(lost: float, standard_error: float) -> str:
    return f"{100 * lost:.2f} ± {100 * standard_error:.2f}".replace("-", "−")


def language_model(figures: Figures) -> list[Table]:
    """Show latency and loss of each way to choose a decoder's next word."""
    rows = [
        [row["what"], "–" if row["lost"] is None else _lost(row["lost"], row["standard_error"]),
         *(microseconds(row[what]) for what in ("median_us", "mean_us", "p99_us")), microseconds(row["layer_us"]),
         "–" if row["speedup"] is None else times(row["speedup"])]
        for row in figures["rows"]
    ]  # fmt: skip
    heads = ["method", "points lost", "median", "mean", "p99", "last layer, median", "× ORT float32"]
    return [Table(f"{figures['words']:,} words, {figures['context']} in a context", heads, rows)]


def feed_forward(figures: Figures) -> list[Table]:
    """Compare feed-forward blocks with all nodes and with some, and show the loss of accuracy."""
    rows = figures["rows"]
    ways = [
        [way, *(f"{microseconds(row['ways'][way])} ({times(row['ways']['ONNX Runtime, int8'] / row['ways'][way])})"
                for row in rows)]
        for way in rows[0]["ways"]
    ]  # fmt: skip
    heads = ["one block by", *(f"{row['tokens']} tokens (× ORT int8)" for row in rows)]
    shape = f"{figures['features']:,} features, {figures['nodes']:,} nodes, median"
    by_kept: dict[float, dict[str, str]] = {}
    for row in figures["needed"]:
        by_kept.setdefault(row["kept"], {})[row["activation"]] = _lost(row["lost"], row["standard_error"])
    kinds = list(dict.fromkeys(row["activation"] for row in figures["needed"]))
    needed = [[percent(kept, 0), *(entry[kind] for kind in kinds)] for kept, entry in by_kept.items()]
    return [
        Table(shape, heads, ways),
        Table("Points lost if each token keeps only its best nodes", ["nodes kept", *kinds], needed),
    ]


def promises(figures: Figures) -> list[Table]:
    """Show how often a promised loss was exceeded."""
    heads = ["choice of k", "points allowed", "re-splits", "share that exceeds", "mean k"]
    return [
        Table(name, heads, [
            [row["way"], f"{100 * row['loss']:g}", str(row["resplits"]), percent(row["exceeded"], 1),
             number(row["mean_k"])]
            for row in rows
        ])
        for name, rows in figures["sets"].items()
    ]  # fmt: skip


def kernel_checks(figures: Figures) -> list[Table]:
    """Show the cost of checking a query's type and range."""
    rows = [[name, duration(value * 1e-9)] for name, value in figures["medians_ns"].items()]
    return [Table("", ["call", "median"], rows)]


def batches(figures: Figures) -> list[Table]:
    """Show the time per query by batch size."""
    tables = []
    for name, rows in figures["sets"].items():
        ways = [key for key, value in rows[0].items() if key not in {"batch", "queries_per_bucket", "floor_us"}
                and isinstance(value, int | float)]  # fmt: skip
        cells = [[str(row["batch"]), f"{row['queries_per_bucket']:.2f}", *(microseconds(row[way]) for way in ways)]
                 for row in rows]  # fmt: skip
        tables.append(Table(f"{name}, per query", ["batch", "queries per bucket", *ways], cells))
    return tables


def lcao(figures: Figures) -> list[Table]:
    """Show deadlines met beside a busy copy."""
    heads = ["β", "co-runners", "deadline", "in time", "full network in time",
             "cheapest point in time", "mean k", "points lost"]  # fmt: skip
    return [
        Table(name, heads, [
            [row["beta"], str(row["co_runners"]), microseconds(row["deadline_us"]),
             *(percent(row[what]) for what in ("met_share", "full_met_share", "least_met_share")),
             number(row["mean_k"]), _lost(row['lost'], row['lost_standard_error'])]
            for row in rows
        ])
        for name, rows in figures["sets"].items()
    ]  # fmt: skip


def scheduling(figures: Figures) -> list[Table]:
    """Show policies on every trace, deaths of workers, and the cost of a decision."""
    decisions = [[f"`{name}`", microseconds(p50), microseconds(p99)]
                 for name, (p50, p99) in figures["decision_us"].items()]  # fmt: skip
    tables = [Table("A decision: 500 points × 16 batch sizes, 10,000 requests waiting",
                    ["policy", "median", "p99"], decisions)]  # fmt: skip
    rates = [["8", "1,000,000", f"{figures['queries_per_s_8_workers']:,.0f}"],
             ["1,000", "10,000,000", f"{figures['queries_per_s_1000_workers']:,.0f}"]]  # fmt: skip
    tables.append(Table(f"The simulator; peak memory {figures['peak_gb']:.2f} GB",
                        ["workers", "requests", "requests simulated per second"], rates))  # fmt: skip
    for profile, entry in figures.items():
        if isinstance(entry, dict) and "sweep" in entry:
            tables += _profile(profile, entry)
    return tables


def _profile(profile: str, sweep: Figures) -> list[Table]:
    first = next(iter(sweep["sweep"].values()))
    ahead = [name for name in first if name.startswith("knows ")]
    policies = [name for name in first if name not in ("best", *ahead) and "@" not in name]
    rows = [
        [trace, *(f"{by[name][0]:.3f}, {100 * by[name][3]:.2f}" for name in policies), f"{by['best'][0]:.4f}"]
        for trace, by in sweep["sweep"].items()
    ]
    valued = [name for name in ("hindsight", "value-iteration") if name in policies]
    shares = [[trace, *(_of_the_best(by.get(name)) for name in (*valued, *ahead))]
              for trace, by in sweep["sweep"].items()]  # fmt: skip
    killed = [[f"{rate}/s", *(f"{percent(by[name][0])}, {by[name][1]:.4f}" for name in by)]
              for rate, by in sweep["killed"].items()]  # fmt: skip
    survivors = list(next(iter(sweep["killed"].values())))
    return [
        Table(f"{profile} profile: attainment, and points of effective accuracy below the best possible",
              ["trace", *policies, "best possible"], rows),
        Table(f"{profile} profile: share of the best possible effective accuracy", ["trace", *valued, *ahead], shares),
        Table(f"{profile} profile, 4 of 8 workers die: attainment, accuracy", ["rate", *survivors], killed),
    ]  # fmt: skip


def _of_the_best(row: list[float] | None) -> str:
    """Return effective accuracy ÷ the best possible of a row: attainment, accuracy, effective accuracy, regret."""
    return "–" if row is None else percent(row[2] / (row[2] + row[3]))


def traces(figures: Figures) -> list[Table]:
    """Compare served with simulated results, by trace and policy."""
    rows = []
    for trace, by in figures["traces"].items():
        for policy, entry in by.items():
            served, simulated = entry["served"], entry["simulated"]
            rows.append([trace, f"`{policy}`", percent(served["attainment"]), percent(simulated["attainment"]),
                         f"{served['of_points']:.4f}", f"{simulated['accuracy']:.4f}"])  # fmt: skip
    heads = ["trace", "policy", "in time", "in time, simulated", "accuracy", "accuracy, simulated"]
    where = (
        f"{figures['capacity_per_s']:.0f} requests/s at the largest point, deadline {duration(figures['deadline_s'])}"
    )
    return [Table(where, heads, rows)]


def planned_served(figures: Figures) -> list[Table]:
    """Show what was planned, planned with the front end as probed, served, and served again: a table per service."""
    whats = ("planned", "with the front end", "served", "served again")
    heads = ["trace", "requests", "in time", "accuracy", "p99"]
    by: dict[str, list[list[str]]] = {}
    for row in figures["rows"]:
        cells = [
            ", ".join(shown(row[what][figure]) for what in whats)
            for figure, shown in (("attainment", percent), ("accuracy", percent), ("p99_s", _or_never))
        ]
        title = f"{row['service']}: {row['points']} points, {row['setting']}"
        by.setdefault(title, []).append([row["trace"], number(row["requests"]), *cells])
    return [Table(title, heads, rows) for title, rows in by.items()]


def planned_predicted(figures: Figures) -> list[Table]:
    """Show fleets of ten families by the source of their latencies."""
    ways = tuple(way for way in ("measured", "predicted", "slotool calibrate", "calibrated", "FLOPs")
                 if way in figures["rows"][0])  # fmt: skip
    rows = []
    for row in figures["rows"]:
        cells = [f"{row[way]['replicas']}: {percent(row[way]['attainment'])}" for way in ways]
        off = ", ".join(f"{100 * row[way]['off']:.0f}" for way in ways[1:])
        rows.append([f"{row['kind']}, {row['rate_per_s']:.0f}/s", *cells, off])
    return [Table("", ["family, requests", *ways, "latency error, %"], rows)]


def far_profiles(figures: Figures) -> list[Table]:
    """Show policies on random profiles whose points may lie far apart, and on those with long deadlines."""
    shown = ("mean", "min", "p5", "median", "attainment")
    rows = [[f"`{name}`", *(f"{entry[key]:.4f}" for key in shown),
             "" if name == "slackfit" else f"{entry['worse']}, {entry['worse_fairly']}"]
            for name, entry in figures.items() if isinstance(entry, dict) and "min" in entry]  # fmt: skip
    title = (f"Share of the best possible on {figures['profiles']} random profiles; on {figures['fair']} SlackFit "
             "answers .999 in time")  # fmt: skip
    tables = [
        Table(title, ["policy", "mean", "minimum", "5th percentile", "median", "in time",
                      "profiles worse than SlackFit: of all, of those"], rows)
    ]  # fmt: skip
    if long := figures.get("long"):
        cells = [[f"`{name}`", *(f"{of[key]:.4f}" for key in ("mean", "lost_mean", "lost_max"))]
                 for name, of in long.items()]  # fmt: skip
        title = (
            f"Effective accuracy on {figures['profiles']} profiles with deadlines of 20 to 2,000 of the longest calls"
        )
        tables.append(Table(title, ["policy", "mean", "mean below the best policy", "maximum below it"], cells))
    return tables


def _or_never(seconds: float | None) -> str:
    return "never" if seconds is None else duration(seconds)


def switching(figures: Figures) -> list[Table]:
    """Show effective accuracy by deadline."""
    shares = figures["effective_accuracy"]
    rows = [[duration(deadline), *(f"{shares[name][at]:.4f}" for name in shares)]
            for at, deadline in enumerate(figures["deadlines_s"])]  # fmt: skip
    return [Table("", ["deadline", *(f"`{name}`" for name in shares)], rows)]


def supernets(figures: Figures) -> list[Table]:
    """Show forward passes beside extracted subnets, switching, and memory."""
    memory = figures["memory"]
    held = memory["weight_bytes"] + memory["statistics_bytes"]
    networks = figures["speed"]
    forward = [
        [name, batch, str(len(ratios)), f"{min(ratios):.2f} to {max(ratios):.2f}"]
        for name, entry in networks.items()
        for batch, ratios in entry["forward_ratios"].items()
    ]
    switching = [
        [name, what, duration(s)] for name, entry in networks.items() for what, s in entry["actuation_s"].items()
    ]
    sizes = [[name, f"{size / 1e6:.1f}", f"{size / held:.2f}"] for name, size in memory["rivals_bytes"].items()]
    return [
        Table("Time of a forward pass ÷ that of the same subnet extracted",
              ["network", "batch size", "subnets", "lowest to highest"], forward),
        Table("Time to switch", ["network", "switch", "median"], switching),
        Table(f"Memory: {memory['subnets']} subnets in {held / 1e6:.1f} MB", ["instead of it", "MB", "÷ it"], sizes),
    ]  # fmt: skip


def rules(figures: Figures) -> list[Table]:
    """Show whether the promise of tiers is kept, its slack, the savings, and the time to make rules."""
    validity = [
        [row["population"], f"{row['examples']:,}", row["method"], f"{row['draws']:,}", percent(row["share"]),
         f"{percent(row['low'])} to {percent(row['high'])}"]
        for row in figures["validity"]
    ]  # fmt: skip
    savings = [[row["table"], row["kind"], row["objective"], *(percent(share, 0) for share in row["saved"])]
               for row in figures["savings"]]  # fmt: skip
    tightness = [[method, f"{100 * excess:.3f}"] for method, excess in figures["tightness"].items()]
    speed = [[method, duration(seconds)] for method, seconds in figures["speed"]["seconds"].items()]
    speed.append(["the paper's loop, extrapolated", f"{figures['speed']['plain_s'] / 3600:.1f} h"])
    return [
        Table("Share of tables with a tier that exceeds its tolerance; promised: at most 5 %",
              ["population", "examples", "method", "tables", "exceeded", "95 % interval"], validity),
        Table("Mean excess of the bound over the true degradation, 5,000 examples",
              ["method", "points of error"], tightness),
        Table("Saved at a tolerance of 1, 5 and 10 %", ["outcomes", "tolerance", "objective", "1 %", "5 %", "10 %"],
              savings),
        Table("Time to make rules: 45,000 requests, 7 versions, 101 tolerances", ["method", "time"], speed),
    ]  # fmt: skip


def zoo_latency(figures: Figures) -> list[Table]:
    """Show the errors of the shipped predictor of random architectures on networks that people run."""
    heads = ["networks", "label noise", "MAPE", "with attention", "90 % interval covers", "median of high ÷ low"]
    row = [
        f"{figures['networks']} ({figures['with_attention']} with attention)",
        *(percent(figures[key], 1) for key in ("label_noise", "mape", "attention_mape")),
        f"{percent(figures['interval_coverage'], 0)} of {figures['interval_given']}",
        f"{figures['interval_width']:.2f}",
    ]
    ways = {"kept": "adapted", "one_factor": "one factor", "three_term": "three terms", "roofline": "roofline × factor"}
    draws = {"chosen": "chosen by the tool", "drawn": "drawn at random, mean of eight"}
    rows = [[what, *(percent(figures[name][way], 1) for way in ways)] for name, what in draws.items()]
    return [
        Table("As it is", heads, [row]),
        Table("After ten labels, MAPE on the others", ["ten labels", *ways.values()], rows),
    ]


def settings(figures: Figures) -> list[Table]:
    """Show errors on families of networks held out of published tables."""
    ways = {
        "mape": "slotool", "least_squares": "least squares", "boosted_trees": "boosted trees",
        "roofline": "roofline × factor", "covered": "90 % interval covers",
    }  # fmt: skip
    rows = [[name, *(percent(f[key], 1) for key in ways)] for name, f in figures["timm"].items()]
    return [Table("timm's tables, families held out: MAPE", ["device", *ways.values()], rows)]


def measured_here(figures: Figures) -> list[Table]:
    """Show errors of sums of operators that were measured here, by library and threads, beside baselines."""
    rows = [
        [name.replace("-", ", ") + (" thread" if name.endswith("-1") else " threads"), str(f["networks"]),
         f"{percent(f['mean'], 1)}, {percent(f['median'], 1)}", f"{f['rank']:.3f}",
         f"{percent(f['covered'], 0)} of {f['bounded']}", f"{f['width']:.2f}", percent(f["three_coefficients"], 0),
         percent(f["shipped"], 0), percent(f["noise"], 1), percent(f["disturbed"], 1)]
        for name, f in figures.items()
    ]  # fmt: skip
    heads = ["", "networks", "error, mean and median", "rank correlation", "90 % interval covers", "high ÷ low",
             "three coefficients", "shipped predictor", "spread of processes", "disturbed blocks"]  # fmt: skip
    return [Table("", heads, rows)]


def ten_labels(figures: Figures) -> list[Table]:
    """Show error and coverage on all other networks after ten random labels, and the mean error of baselines."""
    baselines = {
        "nearest × factor": "factor_mape",
        "three terms": "three_term_mape",
        "least squares over devices": "least_squares_mape",
        "boosted trees": "boosted_trees_mape",
    }
    heads = ["networks", "draws", "adapted", "90 % interval covers", "high ÷ low", *baselines]
    rows = [
        [what, str(f["draws"]), _range(f, "mape", 1), _range(f, "covered", 0), f"{f['width']:.2f}",
         *(percent(f[key], 1) if key in f else "–" for key in baselines.values())]
        for what, f in figures["sets"].items()
    ]  # fmt: skip
    return [Table("", heads, rows)]


def _range(figures: Figures, name: str, digits: int) -> str:
    low, high = (percent(figures[f"{name}_{end}"], digits).removesuffix(" %") for end in ("min", "max"))
    return f"{percent(figures[name], digits)} ({low} to {high})"


def capture_zoo(figures: Figures) -> list[Table]:
    """Show how many networks of each package are captured, fully known, and counted as torch counts them."""
    rows = [
        [package, str(f["networks"]), *(percent(f[key], 1) for key in ("captured", "known", "flops_agree",
         "parameters_agree"))]
        for package, f in figures.items() if isinstance(f, dict)
    ]  # fmt: skip
    heads = ["package", "networks", "captured", "all known", "FLOPs agree", "parameters agree"]
    return [Table("", heads, rows)] if rows else []


def certificates(figures: Figures) -> list[Table]:
    """Show each method's savings at 1, 2 and 5 points per set of answers, and the splits that exceed the tolerance."""
    tables = []
    for name, own in figures["sets"].items():
        heads = ["method", "1 point", "2 points", "5 points", "above", "splits", "processor time"]
        rows = [
            [method,
             *(f"{percent(saved, 1)} ± {100 * spread:.1f}"
               for saved, spread in zip(entry["saved"], entry["spread"], strict=True)),
             ", ".join(percent(share, 0) for share in entry["above"]), f"{entry['splits']:,}",
             duration(entry["seconds"])]
            for method, entry in own["methods"].items()
        ]  # fmt: skip
        title = f"{name}: fitted to {own['learnt']:,} of {own['examples']:,} examples"
        tables.append(Table(title, heads, rows))
    return tables


def ray_cluster(figures: Figures) -> list[Table]:
    """Show answers per second of ``serve --engine ray`` by nodes, and the share of their workers' capacity."""
    rows = []
    for nodes, rates in figures["rates_per_s"].items():
        middle, most = sorted(rates)[len(rates) // 2], int(nodes) / figures["call_s"]
        rows.append([nodes, f"{middle:,.0f}", f"{min(rates):,.0f} to {max(rates):,.0f}", percent(middle / most, 0)])
    return [Table("", ["nodes", "answers/s, median", "range", "share of the workers' capacity"], rows)]


def decision(figures: Figures) -> list[Table]:
    """Show the time of a tier's decisions in a server, beyond its models."""
    rows = [
        [
            name,
            f"{own['median_us']:.1f} µs",
            f"{own['p5_us']:.1f} to {own['p95_us']:.1f} µs",
            f"{own['floor_us']:.1f} µs",
        ]
        for name, own in figures["cascades"].items()
    ]
    return [Table("", ["versions, condition, answer", "median", "5th to 95th percentile of rounds", "floor"], rows)]


def rule_splits(figures: Figures) -> list[Table]:
    """Show the splits in which any tier of rules made from one part exceeds its tolerance on the other."""
    splits = figures["splits"]
    rows = [
        [name, f"{entry['learnt']:,} of {entry['examples']:,}", f"{entry['any_exceeded']} of {splits:,}",
         percent(entry["any_exceeded"] / splits, 1), str(entry["clear"]), str(entry.get("saved_less", "–"))]
        for name, entry in figures["sets"].items()
    ]  # fmt: skip
    columns = ["set", "training examples", "any tier exceeded", "share", "by two standard errors",
               "saved less than stated"]  # fmt: skip
    return [Table("", columns, rows)]


def certificate_kinds(figures: Figures) -> list[Table]:
    """Show the splits in which any tier of rules of other kinds exceeds its tolerance, and each tier's savings."""
    splits = figures["splits"]
    rows = [
        [name, f"{tiers['learnt']:,} of {tiers['examples']:,}", f"{tiers['any_exceeded']} of {splits:,}",
         ", ".join(percent(saved, 0) for saved in tiers["saved"])]
        for name, tiers in figures["sets"].items()
    ]  # fmt: skip
    return [Table("", ["set", "training examples", "any tier exceeded", "saved by each tier, median"], rows)]


def best_version(figures: Figures) -> list[Table]:
    """Show how often a tier exceeds its tolerance above the truly best version, and the savings, by case."""
    rows = [
        [entry["case"], entry["best"], *(percent(entry[what], 1) for what in ("broken", "silent", "saves"))]
        for entry in figures["cases"]
    ]
    return [Table("", ["case", "best version", "any tier exceeded", "no promise", "cost saved"], rows)]


TABLES: dict[str, Callable[[Figures], list[Table]]] = {
    of.__name__: of
    for of in (startup, generate, profiling, predict, graph_network, served_request, serving, goodput, closed_loop,
               overload, slo_nn,
               language_model, feed_forward, promises, kernel_checks, scheduling, far_profiles, traces, planned_served,
               planned_predicted, switching, batches, lcao, supernets, rules, capture_zoo, zoo_latency, settings,
               measured_here,
               ten_labels, certificates, certificate_kinds, ray_cluster,
               decision, rule_splits, best_version, serving_peers, front_ends, serving_limits)
}  # fmt: skip
