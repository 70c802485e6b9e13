"""What capture says of modules that it cannot take."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from slotool.errors import GraphError
from slotool.graphs.capture import capture_torch


class Batch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        return self.linear(batch["x"])


class Branch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return self.linear(x) if bool(y.sum() > 0) else torch.relu(y)


def test_an_input_that_is_a_dictionary_is_named_as_such() -> None:
    with pytest.raises(GraphError, match="an input that is a dictionary cannot be given: wrap it"):
        capture_torch(Batch(), {"batch": (4,)})


def test_a_branch_by_values_of_several_inputs_is_named_as_such() -> None:
    with pytest.raises(GraphError, match="depends on the values of its input"):
        capture_torch(Branch(), {"x": (4,), "y": (4,)})


class Selection(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[x[:, 0] > 0]


def test_a_selection_by_values_is_named_as_such() -> None:
    with pytest.raises(GraphError, match=r"depends on the values of its input \(a branch, a loop or a selection"):
        capture_torch(Selection(), (4,))
