"""What else would answer a network's queries: popular nodes of its last layer, all as int8, ONNX Runtime's int8.

All but the last share the network up to its last layer with the tables, and differ by that layer alone.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from slotool.elastic.slo_nn.alternatives import FixedList, promised_loss, shortest_popularity_list
from slotool.elastic.slo_nn.build import right
from slotool.elastic.slo_nn.last_layer.cutting import BATCH, Features
from slotool.elastic.slo_nn.model import SloNN
from slotool.errors import InputError


@dataclass(frozen=True)
class Alternative:
    """``answer``: labels int64 [n] of inputs float32 [n, *input_shape]; ``nodes``: computed in the last layer."""

    name: str
    nodes: int
    answer: Callable[[np.ndarray], np.ndarray]

    def scored(self, head: SloNN, data: Any, full: dict[str, np.ndarray]) -> dict[str, Any]:
        """Accuracy on the test split against the full network, and the loss that the validation split promises.

        ``data``: splits of the network's own inputs; ``full``: per split, whether all nodes are right, bool [n].
        """
        test, validation = (
            right(self.answer(split.x)[:, None], split.y)[:, 0] for split in (data.test, data.validation)
        )
        lost = test.astype(float) - full["test"]
        return {
            "way": self.name,
            "nodes": self.nodes,
            "accuracy": float(test.mean()),
            "difference": float(lost.mean()),
            "standard_error": float(lost.std() / np.sqrt(len(lost))),
            "promised_loss": promised_loss(validation, full["validation"], head.calibration.stated),
        }


def alternatives(
    head: SloNN, features: Features, validation: Any, allowed_loss: float, whole_file: Path | None
) -> list[Alternative]:
    """Those that can be had here. ``validation``: the split with features in place of inputs. ``whole_file``: the
    unmodified network as an ONNX file, None where it is of another library."""
    found = []
    popular = shortest_popularity_list(head, validation, allowed_loss)
    lists = [] if popular is None else [(popular, False), (popular, True)]
    for names, int8 in (*lists, (np.arange(head.classes), True)):
        listed = FixedList.of(head, names, int8=int8)
        what = "all nodes" if len(names) == head.classes else f"the {len(names):,} most popular nodes"
        name = f"{what}, {'int8' if int8 else 'float32'}"
        found.append(Alternative(name, len(names), _behind(features, listed)))
    if whole_file is not None and (whole := _int8_of(whole_file, features.input_shape)) is not None:
        found.append(Alternative("the whole network, ONNX Runtime int8", head.classes, whole))
    return found


def _behind(features: Features, listed: FixedList) -> Callable[[np.ndarray], np.ndarray]:
    return lambda x: listed.labels(features(x))


def _int8_of(path: Path, input_shape: tuple[int, ...]) -> Callable[[np.ndarray], np.ndarray] | None:
    """The network with its products of weights in int8, quantised dynamically; None where ONNX Runtime cannot."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    from slotool.models.adapters.onnx import OnnxModel

    level = logging.root.manager.disable
    # It advises to process every network beforehand.
    logging.disable(logging.WARNING)
    try:
        with TemporaryDirectory(prefix="slotool-int8-") as folder:
            quantised = Path(folder) / "int8.onnx"
            quantize_dynamic(path, quantised, weight_type=QuantType.QInt8)
            scores = Features(OnnxModel(quantised, threads=1), input_shape)
    except (InputError, ValueError, RuntimeError, NotImplementedError, KeyError, AttributeError):
        # What its quantiser raises for operators that it does not know; none is ours.
        return None
    finally:
        logging.disable(level)

    def answer(x: np.ndarray) -> np.ndarray:
        # Scores of all classes for all examples at once would be gigabytes.
        parts = [scores(x[at : at + BATCH]).argmax(axis=1) for at in range(0, len(x), BATCH)]
        return np.concatenate(parts)

    return answer
