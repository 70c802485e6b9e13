"""``slotool.calibrate``: whole networks measured on this machine, which check and correct sums of their operators."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import TYPE_CHECKING, Annotated, Any

from slotool.cache_folder import CACHE_VARIABLE, cache_folder
from slotool.commands.command_line import command_line
from slotool.commands.display import Part, table
from slotool.commands.outputs import writes
from slotool.commands.result import Result
from slotool.commands.values import at_least
from slotool.errors import ArgumentError, RunError
from slotool.graphs.capture.networks import Network, Networks
from slotool.machine import cores_given
from slotool.predictors.training.chosen import CPU, MIN_RESIDUALS, TORCH
from slotool.printable import counted, duration
from slotool.progress import Reporting, reporter_of

if TYPE_CHECKING:
    import numpy as np

    from slotool.commands.predictors.measured_here import Correction
    from slotool.graphs import OperatorGraph

DEFAULT_MINUTES, MIN_MINUTES = 2.0, 0.1
MIN_NETWORKS = 3
# Of random networks so many are candidates, in an order in which every beginning is spread over kinds and sizes.
CANDIDATES = 48
# A network with more FLOPs takes too long beside the others.
MAX_FLOPS, MAX_MEMORY_BYTES = 2 * 10**9, 10**9
SEED = 19


@dataclass(frozen=True)
class Checked:
    """One whole network: measured latency, whether other processes disturbed it, sum and number of its operators, and
    what a call takes beyond these."""

    graph: OperatorGraph
    latency_s: float
    disturbed: bool
    sum_s: float
    calls: int
    call_s: float = 0.0


@dataclass(frozen=True, repr=False, eq=False)
class Calibrated(Result):
    """Correction learnt from ``networks``. ``errors``: of each, log of measured ÷ predicted while the correction was
    learnt from the others; ``operators``: operators that are known now; ``path``: the file of times; ``seconds``: how
    long all of it took."""

    backend: str
    threads: int
    networks: Sequence[Checked]
    correction: Correction
    errors: np.ndarray
    uncorrected: np.ndarray
    operators: int
    path: Path
    seconds: float

    schema = "calibrate"
    rows_key = "networks"

    @property
    def held_out_mape(self) -> float:
        """Mean absolute percentage error of each network, corrected by the others."""
        return _mape(self.errors)

    @property
    def disturbed(self) -> int:
        """Number of networks that other processes disturbed."""
        return sum(one.disturbed for one in self.networks)

    def findings(self) -> Mapping[str, Any]:
        rows = zip(self.networks, self.errors.tolist(), strict=True)
        return {
            "backend": self.backend,
            "threads": self.threads,
            "times": str(self.path),
            "operators": self.operators,
            "seconds": self.seconds,
            "scale": self.correction.scale,
            "call_s": self.correction.call_s,
            "held_out_mape": self.held_out_mape,
            "uncorrected_mape": _mape(self.uncorrected),
            "disturbed": self.disturbed,
            "networks": [
                {
                    "graph_id": one.graph.id,
                    "name": one.graph.name,
                    "kind": one.graph.kind,
                    "latency_s": one.latency_s,
                    "sum_s": one.sum_s,
                    "operators": one.calls,
                    "disturbed": one.disturbed,
                    "log_error": error,
                }
                for one, error in rows
            ],
        }

    @property
    def warnings(self) -> Sequence[str]:
        warnings = []
        if len(self.networks) < MIN_RESIDUALS:
            warnings.append(f"predict gives no interval by fewer than {MIN_RESIDUALS} networks: add --minutes")
        if self.disturbed:
            warnings.append(
                f"other processes disturbed {self.disturbed} of {len(self.networks)} networks: intervals are the wider "
                "for it; calibrate again on an idle machine"
            )
        return warnings

    def shown(self) -> list[Part]:
        rows = [
            ["sum of operators", f"{_mape(self.uncorrected):.1%}"],
            ["as predict corrects it, each network by the others", f"{self.held_out_mape:.1%}"],
        ]
        spread = sorted(one.latency_s for one in self.networks)
        title = (
            f"{counted(len(self.networks), 'network')} of {duration(spread[0])} to {duration(spread[-1])}, "
            f"{self.operators} operators known, in {self.seconds:.0f} s"
        )
        return [
            table(title, ["prediction", "MAPE"], rows),
            f"latency = {self.correction.scale:.3f} × sum + {1e6 * self.correction.call_s:.2f} µs an operator, for "
            f"{self.backend}, {counted(self.threads, 'thread')}",
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
    threads: Annotated[int, at_least(1)] | None = None,
    seed: Annotated[int, at_least(0)] = 0,
    progress: Reporting = "auto",
) -> Calibrated:
    """Check and correct what ``predict`` adds up on this machine.

    It measures whole networks and their operators: MLPs, CNNs and transformers. From them it learns what a network
    takes beyond its operators, and how wide an interval has to be. ``predict`` works without it.

    Example: slotool calibrate

    Example: slotool calibrate own.jsonl --backend onnx --threads 1 --minutes 1

    Args:
        networks: Graph files of your own networks; None: random networks.
        minutes: Begin no network later.
        backend: Backend that runs the networks: torch, keras, onnx, or module:Class.
        device: Device of this machine, cpu or cuda:0.
        threads: Compute threads; None: all cores given.
        seed: Same seed, same networks in the same order.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.progress``.

    Returns:
        The correction, and the error on each network corrected by the others (``held_out_mape``).

    Raises:
        ArgumentError: An argument has a value that it cannot have, or there are too few networks.
        RunError: Fewer than 3 networks could be measured.
    """
    import numpy as np

    from slotool.commands.predictors.measured_here import MeasuredPredictor
    from slotool.profiling.backends import backend_class
    from slotool.profiling.operators import CALL, OperatorTimer, OperatorTimes

    started = time.monotonic()
    backend_class(backend)
    count, reporter = cores_given(threads), reporter_of(progress)
    graphs = _random_networks(seed) if networks is None else _runnable(networks)
    if len(graphs) < MIN_NETWORKS:
        raise ArgumentError("networks", f"{len(graphs)} can be run from their graphs, but {MIN_NETWORKS} are needed")
    folder = _writable(cache_folder())
    times = OperatorTimes.here(folder, backend, device, count)
    predictor = MeasuredPredictor.of(times, 1, reporter, True).predictor
    checked: list[Checked] = []
    with (
        reporter.progress(f"measuring networks and their operators with {backend}", total=len(graphs)) as steps,
        OperatorTimer.opened(backend, device, count, seed) as timer,
    ):
        for graph in graphs:
            if time.monotonic() - started > 60 * minutes:
                break
            whole = timer.network(graph)
            if whole is None:
                continue
            calls = [call for call in predictor.calls(graph) if call is not None]
            list(times.measure(times.unknown(calls), timer))
            known = [times.times[call.key].seconds for call in calls if call.key in times.times]
            if len(known) == len(calls):
                beyond_s = times.times[CALL].seconds
                checked.append(Checked(graph, whole.seconds, whole.disturbed, sum(known), len(calls), beyond_s))
            steps.advance()
    if len(checked) < MIN_NETWORKS:
        raise RunError(
            f"{counted(len(checked), 'network')} measured in time, but {MIN_NETWORKS} are needed, and "
            f"{MIN_RESIDUALS} for an interval; add --minutes"
        )
    correction, errors = _learnt(checked)
    times.correction = asdict(correction)
    times.save()
    uncorrected = np.log([one.latency_s / (one.call_s + one.sum_s) for one in checked])
    seconds = time.monotonic() - started
    return Calibrated(backend, count, checked, correction, errors, uncorrected, len(times.times), times.path, seconds)


def _learnt(checked: Sequence[Checked]) -> tuple[Correction, np.ndarray]:
    """Return the correction, and log of measured ÷ predicted of each network, corrected by the others; none where the
    plain sums are as good."""
    import numpy as np

    from slotool.commands.predictors.measured_here import Correction

    names = ("sum_s", "calls", "call_s", "latency_s")
    sums, calls, beyond_s, latency_s = (np.array([getattr(one, name) for one in checked], float) for name in names)
    costs = np.column_stack([sums, calls]) / latency_s[:, None]
    left = 1 - beyond_s / latency_s
    each = np.arange(len(checked))
    held_out = [_coefficients(costs[each != i], left[each != i]) for i in each]
    errors = -np.log([beyond_s[i] / latency_s[i] + float(held_out[i] @ costs[i]) for i in each])
    scale, call_s = _coefficients(costs, left).tolist()
    plain = np.log(latency_s / (beyond_s + sums))
    if _mape(plain) <= _mape(errors):  # what is learnt of these says nothing of others
        errors, scale, call_s = plain, 1.0, 0.0
    date, range_s = datetime.now(UTC).date().isoformat(), (float(latency_s.min()), float(latency_s.max()))
    return Correction(scale, call_s, tuple(sorted(np.abs(errors).tolist())), len(checked), date, range_s), errors


def _coefficients(costs: np.ndarray, left: np.ndarray) -> np.ndarray:
    """Return factor and seconds a call, by least absolute errors (reweighted least squares), drawn towards the plain
    sum by one network's worth.

    Args:
        costs: Sum and number of operators over the latency, float64 [networks, 2].
        left: Share of the latency that they account for, float64 [networks].
    """
    import numpy as np
    from scipy.optimize import nnls

    # Small calls are a microsecond or so apart.
    scales = np.array([1.0, 1e-6])
    weights = np.ones(len(costs))
    for _ in range(10):
        rows = np.vstack([costs * scales * weights[:, None], [[1.0, 0.0]]])
        found = nnls(rows, np.append(weights * left, 1.0))[0] * scales
        weights = 1 / np.sqrt(np.maximum(np.abs(costs @ found - left), 0.01))
        weights *= len(costs) / weights.sum()
    return np.asarray(found)


def _mape(log_errors: np.ndarray) -> float:
    import numpy as np

    return float(np.mean(np.abs(np.exp(-np.asarray(log_errors)) - 1)))


def _random_networks(seed: int) -> list[OperatorGraph]:
    """Return MLPs, CNNs of all blocks, and all architectures, in turns."""
    from slotool.graphs.architectures import ARCHITECTURES, RandomArchitectures
    from slotool.graphs.architectures.drawing import SMALL
    from slotool.graphs.generators import BLOCKS, DOWNSAMPLING, NetworkLimits, RandomGraphs, SearchSpace

    limits = NetworkLimits(MAX_MEMORY_BYTES, 1, MAX_FLOPS)
    number = SEED + seed
    images = SearchSpace(
        depth=(4, 16), exponents=(4, 8), input_shape=(3, 64, 64), blocks=tuple(BLOCKS), downsampling=DOWNSAMPLING,
        resolutions=(64, 128),
    )  # fmt: skip
    each = [
        list(RandomGraphs("mlp", 4, number, SearchSpace((3, 10), (5, 11), (784,)), MAX_MEMORY_BYTES, 1)),
        list(RandomGraphs("cnn", 8, number, images, MAX_MEMORY_BYTES, 1)),
        *(list(RandomArchitectures([kind], 2, number, limits, SMALL)) for kind in SMALL),
        *(list(RandomArchitectures([kind], 2, number, limits)) for kind in ARCHITECTURES),
    ]
    graphs = [own[turn] for turn in range(8) for own in each if turn < len(own)]
    return [graph for graph in graphs if graph.flops <= MAX_FLOPS][:CANDIDATES]


def _runnable(networks: Network | Sequence[Network]) -> list[OperatorGraph]:
    graphs = {graph.id: graph for graph in Networks.of(networks).graphs() if not graph.unknown and graph.plain}
    return list(graphs.values())


def _writable(folder: Path) -> Path:
    """Raises ``ArgumentError`` before anything is measured where nothing can be written into it."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with NamedTemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RunError(f"{folder} cannot be written ({error.strerror}): set {CACHE_VARIABLE}") from None
    return folder
