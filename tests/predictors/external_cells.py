"""A made-up data set in the manner of NAS-Bench-201: cells whose operators have names that slotool does not know."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

CHANNELS, SIDE = 16, 32
SHAPE = [CHANNELS, SIDE, SIDE]
POSITIONS = SIDE * SIDE
# Weights, FLOPs, and made-up seconds of one; "none" is no operator at all.
OPERATORS = {
    "nor_conv_3x3": (CHANNELS * CHANNELS * 9 + 32, 2 * CHANNELS * POSITIONS * (CHANNELS * 9 + 1), 400e-6),
    "nor_conv_1x1": (CHANNELS * CHANNELS + 32, 2 * CHANNELS * POSITIONS * (CHANNELS + 1), 90e-6),
    "avg_pool_3x3": (0, CHANNELS * POSITIONS * 9, 150e-6),
    "skip_connect": (0, 0, 5e-6),
}
EDGES = ((0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3))


def write_cells(folder: Path, n: int, seed: int, samples: int = 1) -> tuple[Path, Path]:
    """``cells.jsonl`` and ``latency.csv`` of ``n`` random cells; the latency is a sum over operators, 2 % noisy."""
    rng = np.random.default_rng(seed)
    folder.mkdir(exist_ok=True)
    lines, rows = [], []
    while len(lines) < n:
        cell = _cell(f"cell-{len(lines)}", rng.choice(["none", *OPERATORS], len(EDGES)))
        if cell is not None:
            lines.append(json.dumps(cell))
            seconds = 100e-6 + sum(OPERATORS[o["op"]][2] for o in cell["operators"] if o["op"] in OPERATORS)
            rows += [f"{cell['name']},{seconds * rng.normal(1, 0.02):.9f}" for _ in range(samples)]
    graphs, latency = folder / "cells.jsonl", folder / "latency.csv"
    graphs.write_text("\n".join(lines) + "\n")
    latency.write_text("\n".join(["subject,latency_s", *rows]) + "\n")
    return graphs, latency


def _cell(name: str, ops: np.ndarray) -> dict[str, Any] | None:
    """None where nothing leads to the last node."""
    operators: list[dict[str, Any]] = [
        {"name": "image", "op": "InputLayer", "attributes": {"shape": [3, SIDE, SIDE]}},
        {"name": "stem", "op": "stem", "inputs": ["image"], "shape": SHAPE, "weights": 464, "flops": 917504},
    ]
    node = {0: "stem"}
    for target in (1, 2, 3):
        arriving = []
        for (source, end), op in zip(EDGES, ops, strict=True):
            if end == target and source in node and op != "none":
                weights, flops, _ = OPERATORS[op]
                edge = {"name": f"{source}-{end}", "op": str(op), "inputs": [node[source]]}
                operators.append({**edge, "shape": SHAPE, "weights": weights, "flops": flops})
                arriving.append(f"{source}-{end}")
        if arriving:
            node[target] = f"node-{target}"
            operators.append({"name": node[target], "op": "Add", "inputs": arriving})
    if 3 not in node:
        return None
    operators.append({"name": "pool", "op": "GlobalAveragePooling2D", "inputs": [node[3]]})
    operators.append({"name": "logits", "op": "Dense", "inputs": ["pool"], "attributes": {"units": 10}})
    return {"name": name, "kind": "nas-bench-201", "operators": operators}
