"""Large output layers: all nodes in three number formats, beside an SLO-NN's share of the nodes, gathered.

Each call takes hidden values to the best class of each query and is one CUDA graph. An SLO-NN's call hashes the hidden
values into one of several lists of nodes, gathers the weights of the first nodes of the list, and takes the best class
of those. ``gather`` leaves the hashing out. The stop rule: below 1.5 times bf16 at the largest layer and batch 1,
SLO-NNs do not pay on this GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu_pieces.piece import Figures, Left, Piece
from benchmarks.gpu_pieces.timing import captured, timed

# Nodes and hidden values of the layers: tate-16k's, and two of extreme classification.
LAYERS = {"16k x 128": (16_384, 128), "65k x 256": (65_536, 256), "196k x 512": (196_608, 512)}
REHEARSED_LAYERS = {"512 x 16": (512, 16)}
BATCHES, REHEARSED_BATCHES = (1, 4, 16, 32, 64, 256), (1, 4)
# Share of the nodes that an SLO-NN computes; buckets of the hash.
SHARES, BUCKETS_LOG2 = (0.025, 0.1), 6
STOP_RATIO = 1.5
# Of the kernel: nodes of one program.
NODES_PER_PROGRAM = 64


def run(piece: Piece) -> None:
    layers = piece.sized(LAYERS, REHEARSED_LAYERS)
    for name, (nodes, hidden) in layers.items():
        for batch in piece.sized(BATCHES, REHEARSED_BATCHES):
            piece.step(f"{name}, batch {batch}", lambda nodes=nodes, hidden=hidden, batch=batch: measured(
                piece, nodes, hidden, batch
            ))  # fmt: skip
    piece.step("kernel against gather", lambda: kernel_is_right(piece))
    piece.step("verdict", lambda: verdict(piece, list(layers)[-1]))


def measured(piece: Piece, nodes: int, hidden: int, batch: int) -> Figures:
    """Median seconds of each way, and what each must read."""
    torch.manual_seed(0)
    device = piece.device
    x, weight, bias = (torch.randn(size, device=device) for size in ((batch, hidden), (nodes, hidden), (nodes,)))
    results: Figures = {"nodes": nodes, "hidden": hidden, "batch": batch, "ways": {}}
    short = (x.bfloat16(), weight.bfloat16(), bias.bfloat16())

    def keep(way: str, function: Callable[[], object], read_bytes: float) -> None:
        figures = timed(captured(function, device), device, piece.full)
        results["ways"][way] = {**figures, "bytes_per_s": read_bytes / figures["s"]}

    size = nodes * hidden
    keep("float32", lambda: best(x, weight, bias), 4 * size)
    if piece.on_gpu:
        torch.backends.cuda.matmul.allow_tf32 = True
        try:
            keep("tf32", lambda: best(x, weight, bias), 4 * size)
        finally:
            torch.backends.cuda.matmul.allow_tf32 = False
    keep("bf16", lambda: best(*short), 2 * size)
    planes = torch.randn(hidden, BUCKETS_LOG2, device=device)
    for share in SHARES:
        count = int(share * nodes)
        lists = torch.stack([torch.randperm(nodes, device=device)[:count] for _ in range(1 << BUCKETS_LOG2)]).int()
        chosen = lists[torch.arange(batch, device=device) % len(lists)]
        for form, tensors in {"float32": (x, weight, bias), "bf16": short}.items():
            read = batch * count * hidden * tensors[0].element_size()
            label = f"{share:.1%} of nodes, {form}"
            keep(f"gather, {label}", partial(gathered, *tensors, chosen), read)
            keep(f"whole call, {label}", partial(whole, gathered, *tensors, lists, planes), read)
            if piece.on_gpu and find_spec("triton"):
                keep(f"kernel, {label}", partial(whole, fused, *tensors, lists, planes), read)
    return results


def best(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """int64 [n]: the node of the highest score."""
    return functional.linear(x, weight, bias).argmax(dim=1)


def whole(
    way: Callable[[Tensor, Tensor, Tensor, Tensor], Tensor],
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    lists: Tensor,
    planes: Tensor,
) -> Tensor:
    """An SLO-NN's call: the hash, then ``way`` with the nodes of each query's list."""
    return way(x, weight, bias, lists[bucket(x, planes)])


def bucket(x: Tensor, planes: Tensor) -> Tensor:
    """int64 [n]: the list of each query, by the sides of random planes on which it lies."""
    bits = (x @ planes.to(x.dtype) > 0).long()
    return (bits << torch.arange(planes.shape[1], device=x.device)).sum(dim=1)


def gathered(x: Tensor, weight: Tensor, bias: Tensor, nodes: Tensor) -> Tensor:
    """The same of the listed nodes alone, int32 [n, count]: their weights are copied before they are multiplied."""
    scores = torch.bmm(weight[nodes], x[:, :, None])[:, :, 0] + bias[nodes]
    return nodes.gather(1, scores.argmax(dim=1, keepdim=True))[:, 0].long()


def fused(x: Tensor, weight: Tensor, bias: Tensor, nodes: Tensor) -> Tensor:
    """The same by a kernel that reads each listed row once and copies none."""
    scores = scores_of(x, weight, bias, nodes)
    return nodes.gather(1, scores.argmax(dim=1, keepdim=True))[:, 0].long()


def scores_of(x: Tensor, weight: Tensor, bias: Tensor, nodes: Tensor) -> Tensor:
    """float32 [n, count]: scores of each query's listed nodes."""
    batch, count = nodes.shape
    scores = torch.empty(batch, count, device=x.device)
    grid = (batch, -(-count // NODES_PER_PROGRAM))
    _kernel()[grid](x, weight, bias, nodes.contiguous(), scores, count, HIDDEN=x.shape[1], NODES=NODES_PER_PROGRAM)
    return scores


_KERNELS: list[Any] = []


def _kernel() -> Any:
    """Triton's kernel: one program scores ``NODES`` listed nodes of one query. ``HIDDEN`` is a power of two."""
    if not _KERNELS:
        import triton
        import triton.language as tl

        globals()["tl"] = tl

        @triton.jit
        def score(x, weight, bias, listed, scores, count, HIDDEN: tl.constexpr, NODES: tl.constexpr):
            query = tl.program_id(0)
            at = tl.program_id(1) * NODES + tl.arange(0, NODES)
            inside = at < count
            nodes = tl.load(listed + query * count + at, mask=inside, other=0).to(tl.int64)
            parts = tl.arange(0, HIDDEN)
            values = tl.load(x + query * HIDDEN + parts).to(tl.float32)
            rows = tl.load(weight + nodes[:, None] * HIDDEN + parts[None, :], mask=inside[:, None], other=0.0)
            sums = tl.sum(rows.to(tl.float32) * values[None, :], axis=1)
            sums += tl.load(bias + nodes, mask=inside, other=0.0).to(tl.float32)
            tl.store(scores + query * count + at, sums, mask=inside)

        _KERNELS.append(score)
    return _KERNELS[0]


def kernel_is_right(piece: Piece) -> Figures:
    """The largest difference of the kernel's scores to those of gathered weights, relative to their scale."""
    if not piece.on_gpu or not find_spec("triton"):
        raise Left("the kernel needs a GPU and Triton")
    torch.manual_seed(1)
    x, weight, bias = (torch.randn(size, device=piece.device) for size in ((3, 128), (1000, 128), (1000,)))
    nodes = torch.stack([torch.randperm(1000, device=piece.device)[:77] for _ in range(3)]).int()
    expected = torch.bmm(weight[nodes].double(), x[:, :, None].double())[:, :, 0] + bias[nodes]
    difference = float((scores_of(x, weight, bias, nodes) - expected).abs().max() / expected.abs().max())
    if difference > 1e-3:
        raise ValueError(f"the kernel's scores differ by {difference:.1e}")
    return {"relative_difference": difference}


def verdict(piece: Piece, largest: str) -> Figures:
    """How many times faster the quickest whole SLO-NN call of the smallest share is than each full layer, by layer and
    batch size; and what the stop rule says."""
    ratios: Figures = {}
    for step, figures in piece.figures.items():
        ways = {way: each["s"] for way, each in figures.get("ways", {}).items()}
        calls = [seconds for way, seconds in ways.items() if way.startswith(("whole call", "kernel"))]
        if calls:
            ratios[step] = {form: ways[form] / min(calls) for form in ("float32", "tf32", "bf16") if form in ways}
    at_one = ratios.get(f"{largest}, batch 1")
    if at_one is None:
        raise ValueError(f"{largest} at batch 1 has no figures")
    return {"times_faster": ratios, "stop_rule": STOP_RATIO, "pays": at_one["bf16"] >= STOP_RATIO}
