"""Whether choosing hidden nodes of a transformer's feed-forward blocks can pay on this CPU.

``python -m benchmarks feed_forward`` times blocks of 768 features and 3,072 ReLU nodes with random weights, twelve one
after another as in BERT-base, so that weights come from memory as they do in a whole network, for one token and for
many: by PyTorch, by ONNX Runtime in float32 and int8, and by slotool's compiled call with a share of the nodes, the
same ones for every token and without a look-up; this is the least that any way to choose them can take. One thread.

Then it says how many nodes are needed, by two decoders of 4,096 words that it trains for ``$SLOTOOL_BENCH_TRAIN_S``
seconds each, with ReLU and with GELU: each token keeps the nodes that matter most for it, as if a look-up knew them.
Points lost are of files that were not trained on. ``$SLOTOOL_NETWORKS`` names a folder that keeps the decoders for a
later run.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FEATURES, NODES, BLOCKS = 768, 3_072, 12
TOKENS = (1, 8, 128)
SHARES = (0.05, 0.1, 0.2, 0.4)
KEPT = (0.05, 0.1, 0.2, 0.3, 0.5, 0.7)
ROUNDS, SCORED, WARM_UP_ROUNDS = 30, 10_000, 3
WORDS, TEXT_WORDS, TRAIN_S = 4_096, 2_500_000, 150.0

Call = Callable[[np.ndarray], Any]


def main() -> None:
    import torch

    torch.set_num_threads(1)
    rng = np.random.default_rng(0)
    blocks = [_block(rng) for _ in range(BLOCKS)]
    with tempfile.TemporaryDirectory() as folder:
        ways = {"PyTorch, float32": [_by_torch(*block) for block in blocks]}
        ways |= _by_onnx(blocks, Path(folder))
        ways |= {
            f"slotool, {share:.0%} of the nodes": [_by_slotool(*block, share) for block in blocks] for share in SHARES
        }
        rows = [_timed(ways, tokens, rng) for tokens in TOKENS]
    needed = _needed()
    print(
        json.dumps({"benchmark": "feed_forward", "features": FEATURES, "nodes": NODES, "rows": rows, "needed": needed})
    )


def _block(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """float32 [nodes, features] and [features, nodes]."""
    wide = rng.normal(size=(NODES, FEATURES)) / np.sqrt(FEATURES)
    narrow = rng.normal(size=(FEATURES, NODES)) / np.sqrt(NODES)
    return wide.astype(np.float32), narrow.astype(np.float32)


def _by_torch(wide: np.ndarray, narrow: np.ndarray) -> Call:
    import torch
    from torch.nn import functional

    first, second = torch.from_numpy(wide), torch.from_numpy(narrow)

    def call(x: np.ndarray) -> Any:
        with torch.inference_mode():
            return functional.linear(torch.relu(functional.linear(torch.from_numpy(x), first)), second)

    return call


def _by_onnx(blocks: list[tuple[np.ndarray, np.ndarray]], folder: Path) -> dict[str, list[Call]]:
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper, save
    from onnxruntime.quantization import QuantType, quantize_dynamic

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    ways: dict[str, list[Call]] = {"ONNX Runtime, float32": [], "ONNX Runtime, int8": []}
    for wide, narrow in blocks:
        nodes = [
            helper.make_node("MatMul", ["x", "wide"], ["h"]),
            helper.make_node("Relu", ["h"], ["r"]),
            helper.make_node("MatMul", ["r", "narrow"], ["y"]),
        ]
        ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", FEATURES]) for name in "xy"]
        weights = [
            numpy_helper.from_array(np.ascontiguousarray(array.T), name)
            for name, array in (("wide", wide), ("narrow", narrow))
        ]
        graph = helper.make_graph(nodes, "block", ends[:1], ends[1:], weights)
        plain, small = folder / "plain.onnx", folder / "int8.onnx"
        save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), plain)
        quantize_dynamic(plain, small, weight_type=QuantType.QInt8)
        for calls, path in zip(ways.values(), (plain, small), strict=True):
            session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
            calls.append(lambda x, session=session: session.run(None, {"x": x})[0])
    return ways


def _by_slotool(wide: np.ndarray, narrow: np.ndarray, share: float) -> Call:
    """The compiled call: rows of the chosen nodes, then the columns of those that are not 0."""
    from slotool.elastic.slo_nn.activator import Activator, NodeLists
    from slotool.elastic.slo_nn.kernels.compiled import Compiled
    from slotool.elastic.slo_nn.mlp import MLP, DenseLayer
    from slotool.elastic.slo_nn.rankers.ranker import RandomOrder

    layers = (
        DenseLayer("wide", wide, np.zeros(len(wide), np.float32)),
        DenseLayer("narrow", narrow, np.zeros(len(narrow), np.float32)),
    )
    order = np.random.default_rng(0).permutation(NODES).astype(np.uint16)
    lists = NodeLists(np.zeros((1, 1), dtype=np.uint16), order[None, : round(share * NODES)], order)
    compiled = Compiled(MLP((FEATURES,), layers), {0: Activator(RandomOrder(), lists)}, (share,), in_full=False)

    def call(x: np.ndarray) -> Any:
        out = np.empty((len(x), FEATURES), dtype=np.float32)
        compiled.logits(x, out, 0)
        return out

    return call


def _timed(ways: dict[str, list[Call]], tokens: int, rng: np.random.Generator) -> dict[str, Any]:
    """Median µs of one block, ways in turns; each call is of the next block."""
    from slotool.process import collector_off

    x = rng.normal(size=(ROUNDS, tokens, FEATURES)).astype(np.float32)
    rounds = ROUNDS if tokens < max(TOKENS) else ROUNDS // 3
    taken: dict[str, list[float]] = {what: [] for what in ways}
    with collector_off():
        for turn in range(rounds + WARM_UP_ROUNDS):
            for what in rng.permutation(list(ways)):
                for block in ways[what]:
                    began = time.perf_counter()
                    block(x[turn % len(x)])
                    took = time.perf_counter() - began
                    if turn >= WARM_UP_ROUNDS:
                        taken[what].append(1e6 * took)
    median_us = {what: float(np.median(times)) for what, times in taken.items()}
    print(f"{tokens} tokens, median µs of a block of {NODES:,} nodes")
    for what, us in median_us.items():
        print(f"  {what:32}{us:10.1f} µs, {median_us['PyTorch, float32'] / us:.2f} × PyTorch")
    return {"tokens": tokens, "ways": median_us}


def _needed() -> list[dict[str, Any]]:
    """Points that decoders lose where each token keeps a share of each block's nodes."""
    from torch.nn import functional

    from benchmarks import language_network as network
    from benchmarks.language_model import split_text

    seconds, parts = float(os.environ.get("SLOTOOL_BENCH_TRAIN_S", TRAIN_S)), split_text(WORDS, TEXT_WORDS)
    rows: list[dict[str, Any]] = []
    for name, activation in (("ReLU", functional.relu), ("GELU", functional.gelu)):
        decoder = _decoder(name, activation, parts["train"], seconds)
        rows += _kept(name, decoder, *network.examples(parts["test"], SCORED, seed=2))
    return rows


def _decoder(name: str, activation: Any, files: list[np.ndarray], seconds: float) -> Any:
    """Trained now; or by a run before, where there is a place for it."""
    from safetensors.torch import load_file, save_file

    from benchmarks import language_network as network

    place = os.environ.get("SLOTOOL_NETWORKS")
    if place is None:
        return network.trained(files, WORDS, seconds, seed=0, activation=activation)
    file = Path(place) / f"decoder-{WORDS}-{name}.safetensors"
    if not file.is_file():
        save_file(network.trained(files, WORDS, seconds, seed=0, activation=activation).state_dict(), file)
    decoder = network.Decoder(WORDS, activation)
    decoder.load_state_dict(load_file(file))
    return decoder.eval()


def _kept(name: str, decoder: Any, x: np.ndarray, y: np.ndarray) -> list[dict[str, Any]]:
    import torch

    words, rows = torch.from_numpy(x).long(), []
    full = _right(decoder, words, y)
    positive = _positive_share(decoder, words)
    print(f"{name}: {full.mean():.1%} of next words right, {positive:.0%} of the hidden values above 0")
    for share in KEPT:
        handles = [block.narrow.register_forward_pre_hook(_keeping(share)) for block in decoder.blocks]
        lost = full.astype(float) - _right(decoder, words, y)
        for handle in handles:
            handle.remove()
        points, error = 100 * float(lost.mean()), 100 * float(lost.std() / len(lost) ** 0.5)
        print(f"  {share:.0%} of the nodes kept: {points:.2f} ± {error:.2f} points lost")
        known = {"activation": name, "accuracy": float(full.mean()), "positive": positive}
        rows.append({**known, "kept": share, "lost": points / 100, "standard_error": error / 100})
    return rows


def _positive_share(decoder: Any, words: Any) -> float:
    seen: list[float] = []
    handles = [
        block.narrow.register_forward_pre_hook(lambda _, inputs: seen.append(float((inputs[0] > 0).float().mean())))
        for block in decoder.blocks
    ]
    _right(decoder, words[:256], np.zeros(256))
    for handle in handles:
        handle.remove()
    return float(np.mean(seen))


def _keeping(share: float) -> Callable[[Any, tuple[Any, ...]], Any]:
    """Only the nodes of which most reaches the next layer: by value and by the norm of their column."""

    def keep(layer: Any, inputs: tuple[Any, ...]) -> Any:
        (hidden,) = inputs
        matter = hidden.abs() * layer.weight.norm(dim=0)
        least = matter.topk(round(share * hidden.shape[-1]), dim=-1).values[..., -1:]
        return (hidden * (matter >= least),)

    return keep


def _right(decoder: Any, x: Any, y: np.ndarray) -> np.ndarray:
    import torch

    labels = []
    with torch.inference_mode():
        for at in range(0, len(x), 256):
            labels.append(decoder.scores(decoder.features(x[at : at + 256])[:, -1]).argmax(dim=1).numpy())
    correct: np.ndarray = np.concatenate(labels) == y
    return correct


if __name__ == "__main__":
    main()
