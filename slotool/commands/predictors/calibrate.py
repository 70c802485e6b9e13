"""``slotool.calibrate``: whole networks measured on this machine, which check sums of their operators."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

from slotool.cache_folder import cache_folder, not_writable
from slotool.commands.command_line import command_line
from slotool.commands.display import Part, table
from slotool.commands.outputs import writes
from slotool.commands.result import Result, listed, result, unlisted
from slotool.commands.values import at_least
from slotool.devices import CPU
from slotool.errors import ArgumentError, RunError
from slotool.graphs.capture.networks import Network, Networks
from slotool.machine import cores_given
from slotool.predictors.answers.chosen import MIN_RESIDUALS, TORCH
from slotool.printable import counted, duration
from slotool.progress import Reporting, reporter_of

if TYPE_CHECKING:
    import numpy as np

    from slotool.graphs import OperatorGraph
    from slotool.predictors.answers.measured_here import Checks
    from slotool.profiling.operators import CheckedNetwork

DEFAULT_MINUTES, MIN_MINUTES = 2.0, 0.1
MIN_NETWORKS = 3
# Number of random networks; every beginning of their order is spread over kinds and sizes.
CANDIDATES = 48
# Networks with more FLOPs take too long.
MAX_FLOPS, MAX_MEMORY_BYTES = 2 * 10**9, 10**9
SEED = 19


@result
class Calibrated(Result):
    """Checks of ``networks``: ``errors``, log of measured ÷ predicted of each; ``seconds``: duration of all of it.

    ``now``: number of networks measured by this call, the others by earlier ones. ``operators``: number of operators in
    ``path``, the file of their times.
    """

    backend: str
    threads: int
    networks: Sequence[CheckedNetwork] = unlisted()
    now: int = listed("measured_now")
    checks: Checks = unlisted()
    errors: np.ndarray = unlisted()
    operators: int
    path: Path = listed("times")
    seconds: float

    schema = "calibrate"
    rows_key = "networks"

    @property
    def mape(self) -> float:
        """Mean absolute percentage error of sums of operators that were timed in the network."""
        return _mape(self.errors)

    @property
    def elsewhere_mape(self) -> float | None:
        """Mean absolute percentage error of operators timed in another network; None if too few share any."""
        return _mape(self.checks.elsewhere) if len(self.checks.elsewhere) >= MIN_RESIDUALS else None

    @property
    def disturbed(self) -> int:
        """Number of networks that other processes disturbed."""
        return sum(network.disturbed for network in self.networks)

    def findings(self) -> Mapping[str, Any]:
        figures = {"mape": self.mape, "elsewhere_mape": self.elsewhere_mape, "disturbed": self.disturbed}
        return {**super().findings(), **figures}

    def records(self) -> list[dict[str, Any]]:
        names = ("graph_id", "name", "kind", "latency_s", "sum_s", "disturbed")
        return [
            {name: getattr(network, name) for name in names} | {"operators": network.calls, "log_error": error}
            for network, error in zip(self.networks, self.errors.tolist(), strict=True)
        ]

    @property
    def warnings(self) -> Sequence[str]:
        warnings = []
        if len(self.networks) < MIN_RESIDUALS:
            minutes = _minutes(self.seconds, self.now, MIN_RESIDUALS - len(self.networks))
            warnings.append(f"predict gives no interval by fewer than {MIN_RESIDUALS} networks; add some by {minutes}")
        if self.disturbed:
            warnings.append(
                f"other processes disturbed {self.disturbed} of {len(self.networks)} networks: intervals are the wider "
                "for it; calibrate again on an idle machine"
            )
        return warnings

    def shown(self) -> list[Part]:
        rows = [["timed in the network itself", f"{self.mape:.1%}"]]
        if self.elsewhere_mape is not None:
            rows.append(["timed in another network", f"{self.elsewhere_mape:.1%}"])
        spread = sorted(network.latency_s for network in self.networks)
        title = (
            f"{counted(len(self.networks), 'network')} of {duration(spread[0])} to {duration(spread[-1])}, "
            f"{self.now} measured now, {self.operators} operators known, in {self.seconds:.0f} s"
        )
        return [
            table(title, ["operators added up", "MAPE"], rows),
            f"wrote {self.path}; slotool predict uses it from now on",
        ]


@command_line(
    arguments=("networks",), values={"networks": list}, repeatable=("networks",), metavars={"networks": "graphs"}
)
@writes()
def calibrate(
    networks: Network | Sequence[Network] | None = None,
    *,
    minutes: Annotated[float, at_least(MIN_MINUTES)] = DEFAULT_MINUTES,
    backend: str = TORCH,
    device: str = CPU,
    precision: str | None = None,
    threads: Annotated[int, at_least(1)] | None = None,
    seed: Annotated[int, at_least(0)] = 0,
    progress: Reporting = "auto",
) -> Calibrated:
    """Measure whole networks here, for intervals of ``predict``.

    It times MLPs, CNNs and transformers twice: their operators in the network, and the network as a whole in another
    process. The differences give the width of the intervals. ``predict`` works without it, but gives no interval.
    Again, it adds networks that were not measured yet, then measures disturbed ones anew.

    Example: slotool calibrate

    Example: slotool calibrate own.jsonl --backend onnx --threads 1 --minutes 1

    Args:
        networks: Graph files of your own networks; None: random networks.
        minutes: Time after which no further network begins.
        backend: Backend that runs the networks: torch, keras, onnx, or module:Class.
        device: Device of this machine, cpu or cuda:0.
        precision: Number format: float32, bf16, fp16 or tf32; None: the backend's usual one.
        seed: Same seed, same networks in the same order.

    Returns:
        The error of each network, and of operators that were timed in another network.

    Raises:
        ArgumentError: An argument has a value that it cannot have, or there are too few networks.
        RunError: Fewer than 3 networks could be measured in time.
    """
    from slotool.predictors.answers.measured_here import Checks
    from slotool.profiling.backends import backend_class
    from slotool.profiling.operator_calls import network_call
    from slotool.profiling.operators import CheckedNetwork, NetworkTimer, OperatorTimes

    started = time.monotonic()
    # Files of the usual format are named without it.
    precision = None if precision == backend_class(backend).precisions[0] else precision
    count, reporter = cores_given(threads), reporter_of(progress)
    graphs = _random_networks(seed) if networks is None else _runnable(networks)
    if len(graphs) < MIN_NETWORKS:
        raise ArgumentError("networks", f"{len(graphs)} can be run from their graphs, but {MIN_NETWORKS} are needed")
    folder = _writable(cache_folder())
    times = OperatorTimes.load(folder, backend, device, count, precision)
    checked = times.networks
    # The sort is stable: what was measured and not disturbed comes last.
    graphs.sort(key=lambda graph: 2 - checked[graph.id].disturbed if graph.id in checked else 0)
    now: set[str] = set()
    with (
        reporter.progress(f"measuring networks and their operators with {backend}", total=len(graphs)) as steps,
        NetworkTimer.opened(backend, device, count, seed, precision) as timer,
        NetworkTimer.opened(backend, device, count, seed, precision) as other,
    ):
        for graph in graphs:
            if time.monotonic() - started > 60 * minutes:
                break
            measured = OperatorTimes(times.path, backend, device, count, facts=times.facts)
            calls = backend_class(backend).operator_calls(graph, 1)
            measured.measure(graph, calls, 1, timer)
            whole = other.network(graph) if measured.times and measured.knows(calls) else None
            if whole is not None and (graph.id not in checked or checked[graph.id].disturbed or not whole.disturbed):
                times.times |= measured.times
                times.facts = times.facts or measured.facts
                counts = Counter(call.key for call in calls if call is not None)
                checked[graph.id] = CheckedNetwork(
                    graph.id,
                    graph.name,
                    graph.kind,
                    whole.seconds,
                    whole.disturbed,
                    measured.times[network_call(graph, 1).key].seconds,
                    {key: (number, measured.times[key].seconds) for key, number in counts.items()},
                )
                now.add(graph.id)
            steps.advance()
    seconds = time.monotonic() - started
    if len(checked) < MIN_NETWORKS:
        times.save()
        raise RunError(
            f"{counted(len(checked), 'network')} measured in time, but {MIN_NETWORKS} are needed, and {MIN_RESIDUALS} "
            f"for an interval; run it again with {_minutes(seconds, len(now), MIN_RESIDUALS - len(checked))}"
        )
    networks = list(checked.values())
    checks, errors = Checks.of(networks)
    times.checks = asdict(checks)
    times.save()
    return Calibrated(backend, count, networks, len(now), checks, errors, len(times.times), times.path, seconds)


def _minutes(seconds: float, networks: int, lacking: int) -> str:
    """Return the option for ``lacking`` networks more, given the duration of those measured."""
    return f"--minutes {math.ceil(lacking * seconds / 60 / max(networks, 1))}"


def _mape(log_errors: np.ndarray | Sequence[float]) -> float:
    import numpy as np

    return float(np.mean(np.abs(np.exp(-np.asarray(log_errors)) - 1)))


def _random_networks(seed: int) -> list[OperatorGraph]:
    """Draw MLPs, CNNs of all blocks, and all architectures, in turns."""
    from slotool.graphs.architectures import ARCHITECTURES, RandomArchitectures
    from slotool.graphs.architectures.drawing import SMALL
    from slotool.graphs.generators import BLOCKS, DOWNSAMPLING, NetworkLimits, RandomGraphs, SearchSpace

    limits = NetworkLimits(MAX_MEMORY_BYTES, 1, MAX_FLOPS)
    number = SEED + seed
    images = SearchSpace(
        depth=(4, 16), exponents=(4, 8), input_shape=(3, 64, 64), blocks=tuple(BLOCKS), downsampling=DOWNSAMPLING,
        resolutions=(64, 128),
    )  # fmt: skip
    kinds = [
        list(RandomGraphs("mlp", 4, number, SearchSpace((3, 10), (5, 11), (784,)), MAX_MEMORY_BYTES, 1)),
        list(RandomGraphs("cnn", 8, number, images, MAX_MEMORY_BYTES, 1)),
        *(list(RandomArchitectures([kind], 2, number, limits, SMALL)) for kind in SMALL),
        *(list(RandomArchitectures([kind], 2, number, limits)) for kind in ARCHITECTURES),
    ]
    graphs = [networks[turn] for turn in range(8) for networks in kinds if turn < len(networks)]
    return [graph for graph in graphs if graph.flops <= MAX_FLOPS][:CANDIDATES]


def _runnable(networks: Network | Sequence[Network]) -> list[OperatorGraph]:
    graphs = {graph.id: graph for graph in Networks.of(networks).graphs() if not graph.unknown and graph.plain}
    return list(graphs.values())


def _writable(folder: Path) -> Path:
    """Return ``folder``, created; raises ``RunError`` if it cannot be written."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RunError(not_writable(error)) from None
    return folder
