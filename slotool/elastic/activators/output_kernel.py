"""The output layer of an SLO-NN as one Triton kernel: list of nodes, their products, the best of them.

Each program answers one query. It reads the list of nodes that a look-up named, gathers their rows of weights piece by
piece, and takes the best labels by a key that holds score and place, so that equal scores are ordered as in the list.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from slotool.elastic.activators.device_tables import NodeRows

# Weights that a program holds at a time, in float32 values, by its warps of 32 threads. With twice as many, sm_80 and
# sm_90 have too few registers and spill to memory (cuobjdump -res-usage).
MAX_HELD = {4: 4_096, 8: 8_192}


def best_of_rows(
    x: Tensor, weights: Tensor, bias: Tensor, nodes: NodeRows, count: int, p: int
) -> tuple[Tensor, Tensor]:
    """The ``p`` best labels, int32 [n, p], of the first ``count`` nodes of each of ``x``, float32 [n, inputs], and
    their scores, float32 [n, p], best first; label −1 at −inf where there are fewer.

    ``weights``: float32 [units, inputs]; ``bias``: float32 [units]. Every number in ``nodes`` must be a node, and
    ``which`` rows that there are (``Activator.check``): they are addresses here.
    """
    n, inputs = x.shape
    rows = nodes.rows.contiguous()
    which = torch.arange(n, device=x.device) if nodes.which is None else nodes.which
    assert rows.shape[1] >= count > 0
    assert len(which) == n
    labels = torch.empty((n, p), dtype=torch.int32, device=x.device)
    scores = torch.empty((n, p), dtype=torch.float32, device=x.device)
    held = triton.next_power_of_2(count)
    warps = 8 if held > 64 else 4
    piece = max(1, min(triton.next_power_of_2(inputs), MAX_HELD[warps] // held))
    _best_of_rows[(n,)](
        x.contiguous(), weights.contiguous(), bias, rows, which, labels, scores,
        rows.shape[1], inputs, count, p, NODES=held, PIECE=piece, num_warps=warps, enable_fp_fusion=True,
    )  # fmt: skip
    return labels, scores


# Requests ask for any number of labels: it is no reason to compile anew.
@triton.jit(do_not_specialize=["p"])  # type: ignore[untyped-decorator]
def _best_of_rows(  # type: ignore[no-untyped-def]
    x, weights, bias, rows, which, labels, scores, width, inputs, count, p, NODES: tl.constexpr, PIECE: tl.constexpr
):  # fmt: skip
    lowest = -9223372036854775808
    query = tl.program_id(0).to(tl.int64)
    listed = rows + tl.load(which + query) * width
    places = tl.arange(0, NODES)
    known = places < count
    nodes = tl.load(listed + places, mask=known, other=0)
    values = tl.load(bias + nodes, mask=known, other=0.0)
    for start in range(0, inputs, PIECE):
        at = start + tl.arange(0, PIECE)
        inside = at < inputs
        part = tl.load(x + query * inputs + at, mask=inside, other=0.0)
        taken = known[:, None] & inside[None, :]
        gathered = tl.load(weights + nodes[:, None] * inputs + at[None, :], mask=taken, other=0.0)
        values += tl.sum(gathered * part[None, :], axis=1)
    # The bits of a float in the order of integers; what is no number stands above all.
    bits = values.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    ordered = tl.where(values != values, 0x7FFFFFFF, ordered)  # noqa: PLR0124
    keys = (ordered.to(tl.int64) << 32) | (NODES - 1 - places).to(tl.int64)
    keys = tl.where(known, keys, lowest)
    for rank in range(0, p):
        best = tl.max(keys, axis=0)
        there = best != lowest
        place = NODES - 1 - (best & 0xFFFFFFFF)
        label = tl.load(listed + place, mask=there, other=-1)
        high = (best >> 32).to(tl.int32)
        score = (high ^ ((high >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)
        tl.store(labels + query * p + rank, label.to(tl.int32))
        tl.store(scores + query * p + rank, tl.where(there, score, float("-inf")))
        keys = tl.where(keys == best, lowest, keys)
