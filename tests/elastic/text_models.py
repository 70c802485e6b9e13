"""A text classifier in two sizes as ONNX files, and texts that are drawn by the rule that they know."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper

VOCABULARY, LENGTH = 60, 8
# Of each word, how much likelier it is in class 1 than in class 0.
LOG_ODDS = np.random.default_rng(5).normal(scale=0.9, size=VOCABULARY)


def texts(count: int, seed: int) -> dict[str, np.ndarray]:
    """``input_ids`` and ``attention_mask`` INT64 [n, LENGTH], padded by 0, and classes ``y``."""
    random = np.random.default_rng(seed)
    y = random.integers(0, 2, count)
    share = np.exp(np.array([-0.5, 0.5])[:, None] * LOG_ODDS)
    share /= share.sum(axis=1, keepdims=True)
    ids = np.stack([random.choice(VOCABULARY, LENGTH, p=share[label]) for label in y])
    mask = np.arange(LENGTH) < random.integers(2, LENGTH + 1, (count, 1))
    return {"input_ids": np.where(mask, ids, 0), "attention_mask": mask.astype(np.int64), "y": y}


def text_network(path: Path, words: int) -> Path:
    """Sums what the first ``words`` words of the vocabulary tell, and ignores the others."""
    known = np.where(np.arange(VOCABULARY) < words, LOG_ODDS, 0.0)
    tensors = {
        "table": np.stack([-known / 2, known / 2], axis=1).astype(np.float32),
        "last": np.array([2]),
        "one": np.array([1]),
    }
    nodes = [
        helper.make_node("Gather", ["table", "input_ids"], ["told"]),
        helper.make_node("Unsqueeze", ["attention_mask", "last"], ["mask"]),
        helper.make_node("Cast", ["mask"], ["weight"], to=TensorProto.FLOAT),
        helper.make_node("Mul", ["told", "weight"], ["masked"]),
        helper.make_node("ReduceSum", ["masked", "one"], ["logits"], keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info(n, TensorProto.INT64, ["n", "t"]) for n in ("input_ids", "attention_mask")]
    outputs = [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n", 2])]
    weights = [onnx.numpy_helper.from_array(array, name) for name, array in tensors.items()]
    graph = helper.make_graph(nodes, "texts", inputs, outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
    return path
