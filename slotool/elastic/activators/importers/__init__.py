"""Trained networks of other libraries as chains of dense layers: ``MLP``.

``from_torch``, ``from_keras`` and ``from_onnx`` accept dropout, flattening, batch normalisation and a final softmax in
the chain; they drop them or fold them into neighbouring layers. Each importer loads its library when it is called.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from slotool.elastic.activators.mlp import MLP
from slotool.graphs import OperatorGraph

if TYPE_CHECKING:
    import keras
    from torch import nn

__all__ = ["from_graph", "from_keras", "from_onnx", "from_torch"]


def from_graph(graph: OperatorGraph, parameters: Mapping[str, np.ndarray]) -> MLP:
    """The network of an operator graph and its ``layers.<operator>.weight`` and ``.bias`` arrays.

    Raises ``InputError`` naming the operator that breaks the chain ``Flatten? → Dense(relu)… → Dense``.
    """
    from slotool.elastic.activators.importers.graph import mlp_of_graph

    return mlp_of_graph(graph, parameters)


def from_torch(module: nn.Module, input_shape: Sequence[int]) -> MLP:
    """The network of a PyTorch module in inference mode; the module itself does not change.

    ``input_shape``: shape of one example, without the batch. Raises ``InputError`` naming the call that breaks the
    chain, or when torch.export cannot trace the module.
    """
    from slotool.elastic.activators.importers.torch import mlp_of_module

    return mlp_of_module(module, input_shape)


def from_keras(model: keras.Model) -> MLP:
    """The network of a built Sequential or functional Keras model; its images have their channels first here.

    Raises ``InputError`` naming the layer that breaks the chain.
    """
    from slotool.elastic.activators.importers.keras import mlp_of_model

    return mlp_of_model(model)


def from_onnx(path: str | Path) -> MLP:
    """The network of an ONNX file with one input; weights in separate files next to it are read too.

    Raises ``InputError`` naming the node that breaks the chain, ``GraphError`` for a file that is no ONNX model and
    ``RunError`` when the package onnx is not installed.
    """
    from slotool.elastic.activators.importers.onnx import mlp_of_onnx

    return mlp_of_onnx(path)
