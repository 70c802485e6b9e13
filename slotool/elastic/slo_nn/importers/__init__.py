"""Trained networks of other libraries: as chains of dense layers (``MLP``), or cut before their last one (``Cut``).

``from_torch``, ``from_keras`` and ``from_onnx`` accept dropout, flattening, batch normalisation and a final softmax in
the chain; they drop them or fold them into neighbouring layers. Each importer loads its library when it is asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from slotool.names_on_demand import names_on_demand

if TYPE_CHECKING:
    from slotool.elastic.slo_nn.importers.chain import from_graph
    from slotool.elastic.slo_nn.importers.keras import from_keras
    from slotool.elastic.slo_nn.importers.onnx import from_onnx
    from slotool.elastic.slo_nn.importers.torch import from_torch

__all__ = ["from_graph", "from_keras", "from_onnx", "from_torch"]

__getattr__ = names_on_demand(__name__)
