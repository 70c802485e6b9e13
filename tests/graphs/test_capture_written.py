"""Capture of what a network writes into a tensor at places."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import slotool


class Placed(nn.Module):
    """Rows written at places of two axes."""

    def __init__(self) -> None:
        super().__init__()
        self.values = nn.Linear(8, 16)

    def forward(self, x: Tensor) -> Tensor:
        whole = torch.zeros(x.shape[0], 30, 16)
        examples = torch.arange(x.shape[0])[:, None]
        places = x[..., 0].long().clamp(0, 29)
        return whole.index_put((examples, places), self.values(x), accumulate=True)


def test_values_written_at_places_of_several_axes_are_taken() -> None:
    (graph,) = slotool.capture(Placed(), input_shape=(12, 8), progress=None).graphs
    assert not graph.unknown
    assert graph.matrix_flops == 2 * 12 * 8 * 16
