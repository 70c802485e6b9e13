"""``slotool build-tables``: make a trained ReLU network SLO-aware, and report latency and accuracy of each k."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slotool.cli.options import Force, Json, Out, Seed

if TYPE_CHECKING:
    from slotool.artifacts import Artifact
    from slotool.cli.output import Output
    from slotool.elastic.activators.build import TableSettings
    from slotool.elastic.activators.choosing import BuildPlan, RankerCandidate
    from slotool.elastic.activators.pruning import Pruned
    from slotool.elastic.activators.slo_nn import SloNN
    from slotool.elastic.family import Version

QUERIES = 2_000
MIN_ENTROPY_BITS = 1.0
PRUNE_LOSS = 0.003
_TABLES, _LOSS = "Tables", "Accuracy"


def register(app: typer.Typer) -> None:
    app.command("build-tables")(build_tables)


def build_tables(
    network: Annotated[
        Path,
        typer.Argument(
            help="A network, or a family with --version; a .keras or .onnx file; module:factory of a torch module."
        ),
    ],
    out: Out,
    data: Annotated[str | None, typer.Option("--data", help="Data set.", show_default="what it was trained on")] = None,
    version: Annotated[str | None, typer.Option("--version", help="Version of a family.")] = None,
    ranker: Annotated[
        str,
        typer.Option(
            "--ranker",
            help="freehash, centred-freehash, clusters; baselines: mongoose, random; auto: of the first three the one "
            "that reads the fewest bytes on validation data.",
            rich_help_panel=_TABLES,
        ),
    ] = "auto",
    tables: Annotated[
        int, typer.Option("--tables", min=1, help="Hash tables per layer (L).", rich_help_panel=_TABLES)
    ] = 2,
    bits: Annotated[
        int | None,
        typer.Option(
            "--bits", min=1, help="Bits per key (K).", show_default="by size and data", rich_help_panel=_TABLES
        ),
    ] = None,
    k: Annotated[
        str | None,
        typer.Option(
            "--k",
            help="Shares of a layer's nodes, list or start:stop:step.",
            show_default="by size",
            rich_help_panel=_TABLES,
        ),
    ] = None,
    weight_dtype: Annotated[
        str,
        typer.Option(
            "--weight-dtype",
            help="float32; int8: weights of a large output layer at every k, else of all layers at 100 %; auto: int8 "
            "where accuracy holds and fewer bytes are read.",
            rich_help_panel=_TABLES,
        ),
    ] = "auto",
    allowed_loss: Annotated[
        float,
        typer.Option(
            "--allowed-loss",
            min=0,
            max=1,
            help="Accuracy that may be lost against the full network (0.002: 0.2 points). Ranker and confidence "
            "measure are chosen for it, and the k to use is printed.",
            rich_help_panel=_LOSS,
        ),
    ] = 0.002,
    confidence: Annotated[
        float,
        typer.Option("--confidence", help="Confidence of that promise: 0.9 is nine in ten.", rich_help_panel=_LOSS),
    ] = 0.9,
    prune: Annotated[
        bool,
        typer.Option("--prune", help="First remove hidden units that are never or hardly used.", rich_help_panel=_LOSS),
    ] = False,
    prune_loss: Annotated[
        float | None,
        typer.Option(
            "--prune-loss",
            min=0,
            max=1,
            help="With --prune: held-out accuracy that it may cost, ± SE included.",
            show_default="0.003",
            rich_help_panel=_LOSS,
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and its predicted time only.")] = False,
    seed: Seed = 0,
    force: Force = False,
    json: Json = False,
) -> None:
    """Make a trained ReLU network an SLO-NN.

    It gets Node Importance and Confidence tables, for dense or sparse inputs. They are learnt on the training split and
    calibrated on the validation split; printed figures are of the test split.

    Example: slotool build-tables mlp -o slo-nn --data digits
    """
    from slotool.artifacts.bundle import refuse_existing
    from slotool.cli.options import parse_numbers
    from slotool.cli.output import Output
    from slotool.elastic.activators.build import TableSettings, TableSubject
    from slotool.elastic.activators.choosing import choose, plan, steps
    from slotool.elastic.activators.rankers.registry import CANDIDATES, RANKERS
    from slotool.elastic.activators.weight_dtype import with_weight_dtype

    if ranker not in (*RANKERS, "auto"):
        raise typer.BadParameter(f"{ranker!r} is none of auto, {', '.join(RANKERS)}", param_hint="--ranker")
    if weight_dtype not in ("auto", "float32", "int8"):
        raise typer.BadParameter(f"{weight_dtype!r} is none of auto, float32, int8", param_hint="--weight-dtype")
    if prune_loss is not None and not prune:
        raise typer.BadParameter("has an effect only with --prune", param_hint="--prune-loss")
    if not 0 < confidence < 1:
        raise typer.BadParameter("must lie between 0 and 1, both excluded", param_hint="--confidence")
    shares = tuple(sorted({share for share in parse_numbers(k, "--k") if share != 1.0})) if k else None
    settings = TableSettings(shares, tables, bits, seed, allowed_loss)
    refuse_existing(out, force)
    source, dataset, parents = _network(network, version, data)
    output = Output(as_json=json)
    rankers = CANDIDATES if ranker == "auto" else (ranker,)
    pruned = _prune(output, source, dataset, PRUNE_LOSS if prune_loss is None else prune_loss) if prune else None
    subject = TableSubject(pruned.mlp if pruned else source.mlp, dataset)
    if dry_run:
        _plan(output, plan(subject, rankers, settings), dataset.name)
        return
    text = f"learning tables on {dataset.name}"
    with output.progress(text, total=steps(subject, rankers, settings)) as progress:
        model, candidates = choose(out.name, subject.reporting(progress.advance), rankers, settings)
        model = with_weight_dtype(model.stating(confidence), dataset, weight_dtype, allowed_loss)
    _save(model, out, parents, source, getattr(dataset, "source", dataset.name), settings, pruned, force)
    _report(output, model, candidates, source, dataset.test, dataset.name, pruned, out, allowed_loss)


def _network(path: Path, version: str | None, data: str | None) -> tuple[Version, Any, tuple[Artifact, ...]]:
    """The network, its data set, and the artifact it comes from, if it comes from one."""
    from slotool.artifacts import open_artifact
    from slotool.elastic.activators import importers
    from slotool.elastic.activators.importers.chain import in_shape
    from slotool.elastic.family import Family, Version
    from slotool.graphs.capture.loading import load_keras, load_torch

    is_file, is_torch = path.suffix in (".keras", ".onnx"), ":" in str(path) and not path.exists()
    if not (is_file or is_torch):
        parent = open_artifact(path, ("network", "family"))
        source = _version(Family.load(parent), version)
        return source, _load(source, data or parent.manifest["config"].get("data", "auto")), (parent,)
    if version is not None:
        raise typer.BadParameter(f"{path} is one network and no family", param_hint="--version")
    if data is None:
        raise typer.BadParameter(f"{path} does not say what it was trained on", param_hint="--data")
    if is_file:
        mlp = importers.from_onnx(path) if path.suffix == ".onnx" else importers.from_keras(load_keras(str(path)))
        dataset = _load(Version.of_mlp(path.stem, mlp), data)
    else:
        module = load_torch(str(path))
        dataset = _load(None, data)
        mlp = importers.from_torch(module, dataset.input_shape)
    mlp, sparse = in_shape(mlp, dataset.input_shape), getattr(dataset, "sparse", False)
    return Version.of_mlp(path.stem, mlp, sparse=sparse), dataset, ()


def _load(source: Version | None, name: str) -> Any:
    """A set of one class per example, or of many labels for a network that was trained on one."""
    from slotool.data import DATASETS, load_dataset, load_multilabel

    if name in (*DATASETS, "auto") or (source and not source.sparse and len(source.graph.input_shape) > 1):
        return load_dataset(name)
    return load_multilabel(name)


def _prune(output: Output, source: Version, data: Any, loss: float) -> Pruned:
    from slotool.elastic.activators import pruning

    with output.progress("pruning hidden units", total=pruning.steps(source.mlp)) as progress:
        return pruning.prune(source.mlp, data, loss, progress.advance)


def _version(family: Any, name: str | None) -> Version:
    from slotool.errors import InputError

    names = [version.name for version in family.versions]
    if name is None and len(names) > 1:
        raise typer.BadParameter(f"{family.name} has several versions: {', '.join(names)}", param_hint="--version")
    if name is not None and name not in names:
        raise InputError(f"{family.name} has no version {name!r}; it has {', '.join(names)}")
    version: Version = family.versions[names.index(name) if name else 0]
    return version


def _save(
    model: SloNN,
    out: Path,
    parents: tuple[Artifact, ...],
    source: Version,
    data: str,
    settings: TableSettings,
    pruned: Pruned | None,
    force: bool,
) -> None:
    first = model.activators[model.first].ranker
    config = {
        "data": data,
        "version": source.name,
        "ranker": model.ranker,
        "tables": first.tables,
        "buckets": first.buckets,
        "weight_dtype": "int8" if model.int8 else "float32",
        "allowed_loss": settings.allowed_loss,
        "confidence": model.calibration.stated,
        "k": list(model.shares),
        **({"pruned": pruned.document} if pruned else {}),
    }
    model.save(out, config=config, seed=settings.seed, parents=parents, force=force)


def _report(
    output: Output,
    model: SloNN,
    candidates: list[RankerCandidate],
    source: Version,
    test: Any,
    data: str,
    pruned: Pruned | None,
    out: Path,
    allowed_loss: float,
) -> None:
    from dataclasses import asdict

    from slotool.elastic.activators import assessment
    from slotool.elastic.activators.promises import Promise

    promise = Promise.of(model, allowed_loss)
    answers = assessment.PointPredictions.of(model, test)
    latencies_us, torch_us = assessment.latencies_us(model, test.x, QUERIES), _torch_us(source, test.x)
    points = assessment.by_point(model, answers, latencies_us)
    sweep = assessment.aclo_sweep(model, test.x, answers.correct)
    first = model.activators[model.first].ranker
    entropy = {model.mlp.layers[at].name: bits for at, bits in model.entropy.items()}
    document = {
        "artifact": str(out),
        "data": data,
        "examples": len(test),
        "ranker": model.ranker,
        "candidates": [asdict(candidate) for candidate in candidates],
        "tables": first.tables,
        "buckets": first.buckets,
        "measure": model.measure,
        "mean_k_by_measure": model.mean_k,
        "weight_dtype": "int8" if model.int8 else "float32",
        "all_int8": model.all_int8,
        "float32_accuracy": _float32_accuracy(model, test) if model.all_int8 else None,
        "bucket_entropy_bits": entropy,
        "table_bytes": model.table_bytes,
        "table_share": model.table_share,
        "torch_us": torch_us,
        "pruned": pruned.document if pruned else None,
        "promise": asdict(promise),
        "points": points,
        "accuracy_targets": sweep,
        "ideal_mean_k": assessment.ideal_k(model, answers.correct),
    }
    _warn(output, model, entropy)
    output.result("build-tables", document, *_human(document, promise.sentences))


def _plan(output: Output, plan: BuildPlan, data: str) -> None:
    """What would be done, and how long it would take."""
    from dataclasses import asdict

    from slotool.cli.output import duration

    layers = ", ".join(f"{name} ({units:,} nodes)" for name, units in plan.layers.items())
    output.result(
        "build-tables-plan",
        {**asdict(plan), "data": data},
        f"activated layers: {layers}; {len(plan.k)} values of k from {plan.k[0]:.4g} to {plan.k[-1]:.4g}",
        f"{'rankers' if len(plan.rankers) > 1 else 'ranker'} {', '.join(plan.rankers)}: learnt from "
        f"{plan.examples:,} training examples of {data}",
        f"tables of at most {plan.most_table_bytes:,} bytes; about {duration(plan.predicted_s)}, by two small builds",
    )


def _torch_us(source: Version, x: Any) -> float:
    """Median µs per query of the same network in PyTorch, on one thread; sparse inputs as an embedding bag."""
    import torch

    from slotool.elastic.activators.assessment import TorchDense, median_us

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.inference_mode():
            dense = TorchDense(source)
            return median_us(dense, dense.queries(x, QUERIES // 4))
    finally:
        torch.set_num_threads(threads)


def _warn(output: Output, model: SloNN, entropy: dict[str, float]) -> None:
    from slotool.elastic.activators.build import TABLE_BYTES_SHARE

    if model.table_share > TABLE_BYTES_SHARE:
        output.warn(
            f"the tables take {model.table_share:.1%} of the network's bytes; fewer --bits or --tables keep them "
            f"under {TABLE_BYTES_SHARE:.0%}"
        )
    for layer, bits in entropy.items():
        if bits < MIN_ENTROPY_BITS and model.activators[model.first].ranker.informed:
            output.warn(
                f"{layer}: the hash hardly tells inputs apart ({bits:.2f} bits of entropy); "
                "--ranker centred-freehash or more --bits may"
            )


def _human(document: dict[str, Any], promise: list[str]) -> list[Any]:
    """What a person reads: why this ranker, the points, and the accuracy targets."""
    from slotool.cli.output import table

    candidates = [
        f"  {c['ranker']}: {c['nodes']:,} nodes ({c['point']}) and {c['lookup_bytes']:,} bytes of look-up, "
        f"{c['read_bytes']:,} bytes read{_chosen(c)}; validation accuracy {c['accuracy']:.4f} of "
        f"{c['full_accuracy']:.4f}, {c['mean_accuracy']:.4f} over all k ({c['examples']:,} training examples)"
        for c in document["candidates"]
    ]
    why = "reads least of those tried" if len(candidates) > 1 else "as asked for; this is what it reads"
    entropy = ", ".join(f"{name} {bits:.2f}" for name, bits in document["bucket_entropy_bits"].items())
    measures = ", ".join(f"{name} {k:.4g}" for name, k in document["mean_k_by_measure"].items())
    points = table(
        f"{document['examples']:,} test examples of {document['data']}, one thread, one query at a time",
        ["point", "nodes", "acc.", "vs full", "± SE", "static", "agree", "µs", "×"],
        [
            [
                r["point"],
                r["nodes"],
                f"{r['accuracy']:.4f}",
                f"{r['difference']:+.4f}",
                f"{r['standard_error']:.4f}",
                f"{r['static_accuracy']:.4f}",
                f"{r['agreement']:.4f}",
                f"{r['latency_us']:.2f}",
                f"{r['speedup']:.2f}",
            ]
            for r in document["points"]
        ],
    )
    targets = table(
        f"Loss allowed, with {100 * document['promise']['confidence']:g} % confidence: k chosen per input, and fixed k",
        [
            "allowed",
            "target",
            "mean k",
            "accuracy reached",
            "vs full",
            "± SE",
            "fixed k",
            "its accuracy",
            "k as accurate",
        ],
        [
            [
                f"{r['loss']:.3f}",
                f"{r['target']:.4f}",
                f"{r['mean_k']:.4g}",
                f"{r['accuracy']:.4f}",
                f"{r['difference']:+.4f}",
                f"{r['standard_error']:.4f}",
                f"{r['fixed_k']:.4g}",
                f"{r['fixed_accuracy']:.4f}",
                f"{r['same_accuracy_k']:.4g}",
            ]
            for r in document["accuracy_targets"]
        ],
    )
    return [
        *([_of_pruning(document["pruned"])] if document["pruned"] else []),
        f"ranker {document['ranker']}: {why} where no more is lost than allowed, as estimated",
        *candidates,
        f"{document['tables']} tables of {document['buckets']} buckets; bucket entropy in bits: {entropy}",
        f"confidence by {document['measure']}, which saves most on validation data (mean k {measures})",
        f"tables: {document['table_bytes']:,} bytes, {document['table_share']:.1%} of the network's",
        points,
        "static: as many nodes, but the most popular ones for every input; agree: same class as full",
        f"×: speedup over the same compiled kernel with all nodes; PyTorch takes {document['torch_us']:.2f} µs"
        + (" for the network before pruning" if document["pruned"] else ""),
        _of_rows(document),
        targets,
        "k as accurate: the least fixed k that reaches here what k chosen per input reached; "
        f"the ideal per input is a mean k of {document['ideal_mean_k']:.4g}",
        *promise,
        f"wrote {document['artifact']}",
    ]


def _chosen(candidate: dict[str, Any]) -> str:
    chosen = candidate["chosen_bytes"]
    return "" if chosen is None else f", {chosen:,.0f} with k chosen per input"


def _of_pruning(pruned: dict[str, Any]) -> str:
    before, dead, kept = (pruned[f"units_{what}"] for what in ("before", "dead", "kept"))
    counts = ", ".join(f"{b - k} of {b} ({d} dead)" for b, d, k in zip(before, dead, kept, strict=True))
    accuracy, accuracy_before = pruned["validation_accuracy"], pruned["validation_accuracy_before"]
    return f"pruned, per hidden layer: {counts}; validation accuracy {accuracy_before:.4f} before, {accuracy:.4f} after"


def _float32_accuracy(model: SloNN, test: Any) -> float:
    """Of the network as it was before it was quantized."""
    exact = model.at_int8(False)
    return float((exact.forward(test.x, exact.full).argmax(axis=1) == test.y).mean())


def _of_rows(document: dict[str, Any]) -> str:
    if not document["all_int8"]:
        return f"weights of a large output layer are read as {document['weight_dtype']}"
    return (
        f"at 100 % all layers are int8 (in float32 the accuracy is {document['float32_accuracy']:.4f}); accuracy "
        "targets are met so, which is quicker than choosing among float32 rows"
    )
