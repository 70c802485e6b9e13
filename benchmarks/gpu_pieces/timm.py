"""Labels of timm's networks, one of each family, at three batch sizes: by number format, layout and compiler.

``make gpu-carry`` has captured the networks; a rehearsal takes the smallest Keras applications.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from benchmarks.gpu_carry import GRAPHS
from benchmarks.gpu_pieces.piece import Figures, Left, Piece
from benchmarks.gpu_pieces.solo import BACKENDS, SEED, applications, compiled, measured
from slotool.graphs import OperatorGraph
from slotool.graphs.store import read_graphs, write_graphs
from slotool.profiling.backends.torch_backend import CudaGraphBackend, TorchBackend
from slotool.tables import LatencyTable

if TYPE_CHECKING:
    import torch

BATCHES, REHEARSED_BATCHES = (1, 32, 256), (1, 2)
REFERENCE = "float32"
# Fewest samples: a call of the largest networks takes a quarter of a second.
RUNS = 8
# Of networks that torch.compile makes anew for each batch size.
COMPILED, COMPILED_BATCHES = ("resnet50", "vit_base_patch16_224", "convnext_tiny", "efficientnet_b0"), (32,)
CHANNELS_LAST = {True: "benchmarks.gpu_pieces.timm:ChannelsLastGraph", False: "benchmarks.gpu_pieces.timm:ChannelsLast"}


class ChannelsLast(TorchBackend):
    """Networks whose images and convolutions have the channels last in memory."""

    name = "torch-channels-last"

    def runner(self, module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> Callable[..., torch.Tensor]:
        import torch

        last = torch.channels_last
        run = module.to(memory_format=last)
        placed = [x.contiguous(memory_format=last) if x.ndim == 4 else x for x in inputs]
        return lambda *_: run(*placed)


class ChannelsLastGraph(CudaGraphBackend):
    """The same as CUDA graphs."""

    name = "torch-cuda-graph-channels-last"
    runner = ChannelsLast.runner


def run(piece: Piece) -> None:
    graphs = networks(piece)
    write_graphs(piece.tables / "timm-graphs.parquet", graphs)
    layouts = CHANNELS_LAST[piece.on_gpu]
    for name, share, options in (
        (REFERENCE, 0.28, {"precision": "float32"}),
        ("bf16", 0.18, {"precision": "bf16"}),
        ("tf32", 0.18, {"precision": "tf32"}),
        ("bf16-channels-last", 0.16, {"precision": "bf16", "backend": layouts}),
        ("bf16-compile", 0.15, {"precision": "bf16", "backend": "torch-compile"}),
    ):
        piece.step(name, lambda name=name, share=share, options=options: labels(piece, graphs, name, share, options))


def networks(piece: Piece) -> list[OperatorGraph]:
    if not piece.full:
        return applications(2)
    if not GRAPHS.is_file():
        raise FileNotFoundError(f"{GRAPHS} is not here; run `make gpu-carry` and carry gpu-carry/")
    return list(read_graphs(GRAPHS))


def labels(piece: Piece, graphs: list[OperatorGraph], name: str, share: float, options: dict[str, Any]) -> Figures:
    """A campaign, each batch size beside float32's, and the rate in FLOPs."""
    if options["precision"] == "tf32" and not piece.on_gpu:
        raise Left("tf32 is a format of GPUs")
    batches = piece.sized(BATCHES, REHEARSED_BATCHES)
    if options.get("backend") == "torch-compile":
        graphs = compiled(piece, graphs, COMPILED)
        batches = piece.sized(COMPILED_BATCHES, REHEARSED_BATCHES[:1])
    out = piece.tables / f"timm-{name}.parquet"
    options = {"backend": BACKENDS[piece.on_gpu], "runs": piece.sized(RUNS, 2), **options}
    options["timeout_s"] = piece.sized(120.0, 400.0)
    figures = measured(piece, graphs, out, SEED, batch_sizes=batches, budget_s=piece.budget_s(share), **options)
    reference = by_cell(LatencyTable.load(piece.table_of(piece.name, f"timm-{REFERENCE}.parquet")))
    own = by_cell(LatencyTable.load(out))
    flops = {key: graph.flops for graph in graphs for key in (graph.id, graph.name)}
    return {**figures, "batches": [at_batch(own, reference, flops, batch) for batch in batches]}


Cells = dict[tuple[str, int], float]


def by_cell(table: LatencyTable) -> Cells:
    """Median seconds by network and batch size."""
    rows = table.rows[table.rows["status"] == "ok"]
    keys = zip(rows["subject"], rows["batch_size"], strict=True)
    return {
        (name, int(batch)): float(np.median(each)) for (name, batch), each in zip(keys, rows["samples_s"], strict=True)
    }


def at_batch(own: Cells, reference: Cells, flops: dict[str, int], batch: int) -> Figures:
    """Of one batch size: how many networks, how many times faster than float32, and TFLOP/s."""
    cells = [(name, seconds) for (name, size), seconds in own.items() if size == batch]
    rates = [flops[name] * batch / seconds / 1e12 for name, seconds in cells if name in flops]
    faster = [reference[name, batch] / seconds for name, seconds in cells if (name, batch) in reference]
    figures: Figures = {"batch": batch, "networks": len(cells)}
    for what, values in (("tflops", rates), ("faster_than_float32", faster)):
        if values:
            low, median, high = np.quantile(values, [0.1, 0.5, 0.9])
            figures[what] = {"median": float(median), "p10": float(low), "p90": float(high)}
    return figures
