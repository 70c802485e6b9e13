"""``slotool.predict``: latency of networks that were not measured, solo or co-located, with intervals."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.networks.named_networks import networks_in
from slotool.commands.outputs import writes
from slotool.commands.predictors.prediction import Prediction, Versions
from slotool.commands.predictors.swept_prediction import SweptPrediction
from slotool.commands.values import above, at_least, latency
from slotool.errors import ArgumentError
from slotool.graphs.capture.networks import Dtypes, Network, Networks, PackageNetworks, Shapes
from slotool.predictors.answers.choice import chosen_predictor
from slotool.predictors.answers.chosen import is_of_here
from slotool.predictors.answers.sweep import SweepAxis
from slotool.progress import Reporter, Reporting, reporter_of, short_phase
from slotool.sources import FilePath

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.graphs.capture import Limits
    from slotool.predictors.settings.sheets import DeviceSheet
    from slotool.predictors.trained.artifact import SettingPredictor


def predictor_in(text: str) -> Path:
    """Return the path of a predictor. Raises ``ValueError`` for a file that is a network, a factory and a table."""
    if Path(text).suffix == ".csv":
        command = f"train one on a table: slotool train-predictor {quote(text)} --graphs GRAPHS -o predictor"
        raise ValueError(f"{text} is no predictor; {command}")
    from slotool.graphs.capture.sources import options_of

    if options := options_of(text):
        raise ValueError(f"{text} is no predictor; a network goes behind its option: slotool predict {options}")
    return Path(text)


@command_line(
    arguments=("predictor",),
    made_by={"networks": (networks_in, ("torchvision", "timm", "transformers"))},
    python_only=("input_shape", "input_dtype"),
    values={"predictor": predictor_in, "co_runners": list, "slo_s": latency},
    repeatable=("co_runners",),
)
@writes("out")
def predict(
    networks: Network | Sequence[Network] | Mapping[str, Network] | Iterator[tuple[str, Network]] | PackageNetworks,
    *,
    predictor: str | Path | None = None,
    input_shape: Shapes | None = None,
    input_dtype: Dtypes | None = None,
    backend: str | None = None,
    device: str | None = None,
    device_sheet: FilePath | None = None,
    precision: str | None = None,
    threads: Annotated[int, at_least(1)] | None = None,
    batch_size: Annotated[int, at_least(1)] | None = None,
    co_runners: Sequence[Network] = (),
    slo_s: Annotated[float, above(0)] | None = None,
    explain: bool = False,
    sweep: str | Mapping[str, Sequence[int]] | None = None,
    measure: bool = True,
    out: str | Path | None = None,
    family: str | None = None,
    force: bool = False,
    timeout_s: float = 600.0,
    progress: Reporting = "auto",
) -> Prediction:
    """Predict the latency of networks, solo or co-located.

    On this machine it is the sum of the network's operators, timed in the network at first use; for another device a
    trained predictor's. It holds for standard operators, not for a module's own code, and has a 90 % interval or a
    reason why not. Networks that cannot be captured are left out and named, with exit code 1.

    Example: slotool predict --keras ResNet50 --co-runners VGG16 --slo 100ms

    Example: slotool predict predictor --onnx model.onnx --slo 2ms

    Args:
        networks: One, several, or several by name, as a mapping or a generator of pairs: each a ``torch.nn.Module``, a
            ``keras.Model``, a name in keras.applications, an .onnx or .keras file, ``"module:factory"`` of one torch
            module or of several, an ``OperatorGraph``, or a graph file.
        predictor: Predictor artifact; None: operators measured here, or the shipped predictor of ``device``.
        input_shape: Shape of one example without the batch, for torch modules and free axes of ONNX and Keras; one for
            all, or one for each.
        input_dtype: Element type of a torch module's inputs; a mapping by name for several; None: that
            of its weights, int64 where only that runs.
        backend: torch, keras or onnx; None: as the networks. It also selects a setting of the predictor.
        device: cpu, cuda:0, or a shipped one such as rtx4090. It also selects a setting of the predictor; the beginning
            of a name is enough.
        device_sheet: TOML file of facts of a device without labels. Its latencies are those of the nearest one, scaled
            by peak bandwidth and FLOPs. Common devices need none: ``device`` names them.
        precision: Number format: float32, bf16, fp16, tf32 or amp. tf32 needs a GPU, amp a shipped device. None: that
            of the networks, where all have one.
        batch_size: Examples in a call.
        co_runners: Co-runner, as ``keras`` or ``graph``; repeatable. Several run at the same time.
        slo_s: Probability of keeping this: 500us, 20ms, 1s.
        explain: Show the time of each type of operator. The parts add up to the latency.
        sweep: A range: batch=1:64, threads=1:2, size=64:256. Also length=16,128, of sequences; sizes are sides of
            images. A range a:b counts up for threads and doubles for others. Sizes and lengths need models; those of
            Keras and ONNX must leave the axes free, with ``input_shape`` for the other axes. In Python also
            ``{"batch": [1, 4]}``. A ``predictor`` of a CPU scales other batch sizes than its labels' by a roofline.
        measure: Time unknown operators here, or estimate them.
        out: Latency table to write, marked as predicted.
        family: Name of the family in ``out``, that of its artifact, for plan and serve. Its versions are the networks,
            named as in the mapping or by their files and factories.
        timeout_s: Time after which a capture has hung.

    Returns:
        ``latency_s``, ``interval_s`` and ``graphs`` in the order of ``networks``, without models that cannot be
        captured (``failed``: reasons by name); with ``sweep`` a ``SweptPrediction``, whose ``points``, one for each
        network and value, also have ``throughput``.

    Raises:
        GraphError: No model can be captured, or the predictor does not support one.
        ArtifactError: ``predictor`` is damaged, or does not predict this (co-located or solo latencies).
        TimedOut: A capture took longer than ``timeout_s``.
        RunError: A capture died, or took too much memory.
    """
    from slotool.graphs.capture import Limits

    reporter = reporter_of(progress)
    sources = Networks.of(networks, input_shape, input_dtype, reporter=reporter)
    axis = None if sweep is None else SweepAxis.of(sweep)
    _require_together(explain, axis, out, family, co_runners)
    versions = None if family is None else Versions(family, sources.versions("family"))
    sheet = None if device_sheet is None else _sheet(device_sheet, device, sweep)
    device = device if sheet is None else sheet.name
    facts: dict[str, Any] = {"backend": backend, "device": device, "precision": precision, "threads": threads}
    limits, written = Limits(timeout_s), None if out is None else Path(out)
    if axis is not None:
        swept = SweptPrediction.over(
            axis, predictor, sources, {**facts, "batch_size": batch_size}, measure, limits, slo_s
        )
        return swept.written(written, versions)
    # Before models are opened, which takes seconds.
    with short_phase(reporter, "opening the predictor"):
        general, facts_left = chosen_predictor(predictor, sources, colocated=bool(co_runners), measure=measure, **facts)
        facts_left["batch_size"] = batch_size
        if sheet is None:
            chosen = general.of_setting(scaling=not co_runners, **facts_left)
        else:
            chosen = general.of_sheet(sheet, **facts_left)
        opened = chosen.opened
        trained: SettingPredictor[Any] = opened.require_colocated() if co_runners else opened.require_solo()
    failed: dict[str, str] = {}
    graphs = sources.graphs(limits, failed)
    if not co_runners:
        chosen = chosen.in_format_of(graphs)
        trained = chosen.opened.require_solo()
    if versions is not None and len(versions.names) != len(graphs) + len(failed):
        raise ArgumentError("family", "versions are named one by one, and a factory makes several")
    others = _others(co_runners, [] if sources.framework else graphs, limits, reporter)
    answers = chosen.opened.predict_colocated(graphs, others) if others else ((), graphs, trained.predict(graphs))
    solo, items, latencies = answers
    prediction = Prediction(chosen, trained, graphs, items, latencies, solo, others, slo_s, out=written, failed=failed)
    if explain:
        prediction = prediction.explained()
    prediction = prediction.on_this_machine()
    if written is not None:
        captured = [name not in failed for name in sources.distinct_names]
        predicted = trained.latency_table(prediction.items, prediction.predictions)
        (predicted if versions is None else versions.table(predicted, captured)).save(written)
    return prediction


def _sheet(path: FilePath, device: str | None, sweep: object) -> DeviceSheet:
    """Return the sheet of a file. Raises ``ArgumentError`` for arguments that it excludes."""
    from slotool.predictors.settings.sheets import DeviceSheet

    if device is not None or sweep is not None:
        raise ArgumentError("device_sheet", "it names the device, and goes with neither --device nor --sweep")
    sheet = DeviceSheet.read(path)
    if is_of_here(sheet.name):
        raise ArgumentError("device_sheet", f"{sheet.name} is a device of this machine, whose operators are measured")
    return sheet


def _require_together(
    explain: bool, axis: SweepAxis | None, out: str | Path | None, family: str | None, co_runners: Sequence[Network]
) -> None:
    """Raise ``ArgumentError`` for arguments that exclude each other."""
    if explain and co_runners:
        raise ArgumentError("explain", "it explains the latency of networks alone")
    if axis is not None and (explain or co_runners):
        raise ArgumentError("sweep", "it goes with neither --explain nor --co-runners")
    if family is not None and (out is None or co_runners):
        raise ArgumentError("family", "it names the family of the latency table of --out, without --co-runners")


def _others(
    networks: Sequence[Network], graphs: Sequence[OperatorGraph], limits: Limits, reporter: Reporter
) -> list[OperatorGraph]:
    """Return co-runners: those of ``graphs`` that are named, and captures of the others."""
    by_name = {name: graph for graph in graphs for name in (graph.id, graph.name) if name}
    known_graphs = [by_name.get(network, network) if isinstance(network, str) else network for network in networks]
    return Networks.of(known_graphs, argument="co_runners", reporter=reporter).graphs(limits) if known_graphs else []
