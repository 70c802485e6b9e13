"""``slotool.predict``: the latency of a network that was not measured, solo or co-located, with its interval."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from slotool.commands.command_line import command_line
from slotool.commands.networks.named_networks import networks_in
from slotool.commands.outputs import writes
from slotool.commands.predictors.predict_points import predict_points
from slotool.commands.predictors.prediction import Prediction, Versions
from slotool.commands.predictors.predictor_choice import chosen_predictor
from slotool.commands.predictors.swept_prediction import SweptPrediction
from slotool.commands.values import above, at_least, latency
from slotool.errors import ArgumentError
from slotool.graphs.capture.networks import Dtypes, Network, Networks, PackageNetworks, Shapes
from slotool.predictors.sweep import SweepAxis
from slotool.predictors.training.chosen import is_of_here
from slotool.progress import Reporter, Reporting, reporter_of, short_phase

if TYPE_CHECKING:
    from slotool.graphs import OperatorGraph
    from slotool.graphs.capture import Limits
    from slotool.predictors.trained.artifact import TrainedPredictor


# Files that are networks, and the options that take them.
NETWORK_FILES = {".keras": "--keras", ".h5": "--keras", ".onnx": "--onnx", ".jsonl": "--graph", ".py": "--torch"}


def predictor_in(text: str) -> Path:
    """Return the path of a predictor. Raises ``ValueError`` for a file that is a network."""
    option = NETWORK_FILES.get(Path(text).suffix)
    if option is None:
        return Path(text)
    factory = ":FACTORY --input-shape 3,32,32" if option == "--torch" else ""
    raise ValueError(
        f"{text} is no predictor; a network goes behind its option: slotool predict {option} {text}{factory}"
    )


@command_line(
    arguments=("predictor",),
    made_by={"networks": (networks_in, ("torchvision", "timm", "transformers", "factory_arguments"))},
    modes={"artifact": predict_points},
    python_only=("input_shape", "input_dtype"),
    values={"predictor": predictor_in, "co_runners": list, "slo_s": latency},
    repeatable=("co_runners",),
)
@writes("out")
def predict(
    networks: Network | Sequence[Network] | Mapping[str, Network] | PackageNetworks,
    *,
    predictor: str | Path | None = None,
    input_shape: Shapes | None = None,
    input_dtype: Dtypes | None = None,
    backend: str | None = None,
    device: str | None = None,
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

    On this machine it is the sum of the network's operators, each of which is timed alone, once. Elsewhere a predictor
    answers. The latency is that of the network built from standard operators, not of a module's own code. It has a 90 %
    interval, or a sentence why it has none. Networks that cannot be captured are left out and named, with exit code 1.

    Example: slotool predict --keras ResNet50 --co-runners VGG16 --slo 100ms

    Example: slotool predict predictor --torch nets:tiny --torch nets:wide --input-shape 3,32,32 --slo 2ms

    Args:
        networks: One, several, or several by name: each a ``torch.nn.Module``, a ``keras.Model``, a name in
            keras.applications, an .onnx or .keras file, ``"module:factory"`` of a torch module, an ``OperatorGraph``,
            or a graph file.
        predictor: Predictor artifact; None: operators measured here, or that of ``device``.
        input_shape: Shape of one example without the batch, for torch modules and free axes of ONNX and Keras; one for
            all, or one for each.
        input_dtype: Element type of a torch module's inputs; a mapping by name for several; None: that
            of its weights, int64 where only that runs.
        backend: torch, keras or onnx; None: as the networks. It also selects a setting of the predictor.
        device: Here cpu or cuda:0; a shipped one such as rtx4090. Of a predictor of several settings, that of this
            device, or of a name that begins so.
        precision: Number format: here float32, bf16, fp16, or on a GPU tf32; a shipped one such as amp.
        threads: Compute threads; None: all usable cores.
        batch_size: Examples in a call.
        co_runners: Co-runner, as ``keras`` or ``graph``; of points 0:3. Several run at the same time.
        slo_s: Probability of at most 500us, 20ms, 1s.
        explain: Show where the time goes, by type of operator. The parts add up to the latency.
        sweep: batch=1:64, threads=1:2, size=64:256, length=9. Sizes are sides of the images, lengths
            those of the sequences, of models; of Keras' and ONNX's where these leave the axes free and ``input_shape``
            gives the others. In Python also ``{"batch": [1, 4]}``. A range a:b is counted for threads, else doubled.
            With ``predictor`` of a CPU, batch sizes that no label had are scaled by a roofline.
        measure: Time unknown operators here, or estimate them.
        out: Latency table to write, marked as predicted.
        family: Name of the family in ``out``, for plan and serve. Its versions are the networks, called as in the
            mapping or as their files and factories.
        force: Replace ``out`` if it exists.
        timeout_s: Time until a capture has hung.
        progress: Progress display: ``"auto"``, True, None, or a callback; see ``slotool.progress``.

    Returns:
        ``latency_s``, ``interval_s`` and ``graphs`` in the order of ``networks``, without those of several models
        that cannot be captured (``failed``: why, by name); with ``sweep`` a ``SweptPrediction``,
        whose ``points`` also have ``throughput``, of each network one a value.

    Raises:
        ArgumentError: An argument has a value that it cannot have.
        GraphError: No model can be captured, or the predictor cannot take one.
        ArtifactError: ``predictor`` is damaged, or does not predict this (co-located or solo latencies).
        AlreadyExistsError: ``out`` exists.
        TimedOut: A capture took longer than ``timeout_s``.
        RunError: A capture died, or took too much memory.
    """
    from slotool.graphs.capture import Limits

    reporter = reporter_of(progress)
    asked = Networks.of(networks, input_shape, input_dtype, reporter=reporter)
    axis = None if sweep is None else SweepAxis.of(sweep)
    _require_together(explain, axis, out, family, co_runners)
    versions = None if family is None else Versions(family, asked.versions("family"))
    here = is_of_here(device)
    facts: dict[str, Any] = {
        "backend": backend,
        "device": device,
        "precision": precision,
        "threads": threads,
    }
    limits, written = Limits(timeout_s), None if out is None else Path(out)
    if axis is not None:
        swept = SweptPrediction.over(
            axis, predictor, asked, {**facts, "batch_size": batch_size}, measure, limits, slo_s
        )
        return swept.written(written, versions)
    # Before a model is opened, which takes seconds, as does importing torch for a predictor.
    with short_phase(reporter, "opening the predictor"):
        general, rest = chosen_predictor(predictor, asked, colocated=bool(co_runners), measure=measure, **facts)
        chosen = general.of_setting(scaling=not co_runners, **rest, batch_size=batch_size)
        opened = chosen.opened
        trained: TrainedPredictor[Any] = opened.require_colocated() if co_runners else opened.require_solo()
    failed: dict[str, str] = {}
    graphs = asked.graphs(limits, failed)
    others = _others(co_runners, [] if asked.framework else graphs, limits, reporter)
    if others:
        solo, colocations, predictions = chosen.opened.predict_colocated(graphs, others)
        found = Prediction(chosen, trained, graphs, colocations, predictions, solo, others, slo_s, out=written)
    else:
        found = Prediction(chosen, trained, graphs, graphs, trained.predict(graphs), slo_s=slo_s, out=written)
    found = replace(found, failed=failed)
    if explain:
        found = found.explained()
    if here:
        found = found.on_this_machine()
    if written is not None:
        known = [name not in failed for name in asked.distinct_names]
        predicted = trained.latency_table(found.items, found.predictions)
        (predicted if versions is None else versions.table(predicted, known)).save(written)
    return found


def _require_together(
    explain: bool,
    axis: SweepAxis | None,
    out: str | Path | None,
    family: str | None,
    co_runners: Sequence[Network],
) -> None:
    """Raises ``ArgumentError`` for arguments that have no effect beside each other."""
    if explain and co_runners:
        raise ArgumentError("explain", "it explains the latency of networks alone")
    if axis is not None and (explain or co_runners):
        raise ArgumentError("sweep", "it goes with neither --explain nor --co-runners")
    if family is not None and (out is None or co_runners):
        raise ArgumentError("family", "it names the family of the latency table of --out, without --co-runners")


def _others(
    networks: Sequence[Network], graphs: Sequence[OperatorGraph], limits: Limits, reporter: Reporter
) -> list[OperatorGraph]:
    """Co-runners: those of ``graphs`` that are named, and captures of the others."""
    known = {name: graph for graph in graphs for name in (graph.id, graph.name) if name}
    given = [known.get(one, one) if isinstance(one, str) else one for one in networks]
    return Networks.of(given, argument="co_runners", reporter=reporter).graphs(limits) if given else []
