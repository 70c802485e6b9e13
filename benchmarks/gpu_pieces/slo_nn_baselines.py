"""What else would answer tate-16k on the device: torch, torch in a CUDA graph, FAISS on the output layer."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from importlib.util import find_spec
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.gpu_pieces.piece import Left
from slotool.elastic.activators.mlp import MLP

# The best label of each query of the batch of that number: int [n].
Answer = Callable[[int], np.ndarray]
# Lists per square root of the number of labels; and how many of them are searched.
IVF_LISTS_FACTOR, IVF_PROBES = 4, 16
GRAPH_WARM_UP_CALLS = 3


def torch_answers(mlp: MLP, device: str, batches: Sequence[Any]) -> list[tuple[str, Answer]]:
    """The whole network; on a GPU also as a CUDA graph, which launches all kernels at once."""
    dense = TorchDense(mlp, device)
    queries = [dense.prepared(batch) for batch in batches]

    def answer(i: int) -> np.ndarray:
        with torch.inference_mode():
            return np.asarray(dense.labels(*(each.to(dense.device, non_blocking=True) for each in queries[i])).cpu())

    found: list[tuple[str, Answer]] = [("torch, all labels", answer)]
    if dense.device.type == "cuda":
        found.append(("torch, all labels, CUDA graph", in_a_graph(dense, batches)))
    return found


class TorchDense:
    """The network's layers on a device; sparse inputs enter by an embedding bag, from page-locked memory."""

    def __init__(self, mlp: MLP, device: str):
        self.device = torch.device(device)
        first, *rest = mlp.layers
        self.columns = torch.from_numpy(np.ascontiguousarray(first.weights.T)).to(self.device)
        self.bias = torch.from_numpy(first.bias).to(self.device)
        self.rest = [tuple(torch.from_numpy(array).to(self.device) for array in (layer.weights, layer.bias))
                     for layer in rest]  # fmt: skip

    def prepared(self, batch: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Features int64 and values float32 of a CSR batch, and where each query begins, int64."""
        arrays = (batch.indices.astype(np.int64), batch.data, batch.indptr[:-1].astype(np.int64))
        tensors = tuple(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays)
        return tuple(each.pin_memory() for each in tensors) if self.device.type == "cuda" else tensors

    def hidden(self, features: Tensor, values: Tensor, starts: Tensor | None = None) -> Tensor:
        """What the last layer receives; without ``starts`` each row of ``features`` [n, most] is a query."""
        bags = functional.embedding_bag(features, self.columns, starts, mode="sum", per_sample_weights=values)
        hidden = torch.relu(bags + self.bias)
        for weights, bias in self.rest[:-1]:
            hidden = torch.relu(functional.linear(hidden, weights, bias))
        return hidden

    def labels(self, features: Tensor, values: Tensor, starts: Tensor | None = None) -> Tensor:
        return functional.linear(self.hidden(features, values, starts), *self.rest[-1]).argmax(dim=1)


def in_a_graph(dense: TorchDense, batches: Sequence[Any]) -> Answer:
    """Queries are padded to the longest by features of value 0."""
    most = max(int(np.diff(batch.indptr).max()) for batch in batches)
    padded = [_padded(batch, most) for batch in batches]
    static = [each.to(dense.device) for each in padded[0]]
    with torch.inference_mode():
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            for _ in range(GRAPH_WARM_UP_CALLS):
                dense.labels(*static)
        torch.cuda.current_stream().wait_stream(aside)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            labels = dense.labels(*static)

    def answer(i: int) -> np.ndarray:
        with torch.inference_mode():
            for to, own in zip(static, padded[i], strict=True):
                to.copy_(own, non_blocking=True)
            graph.replay()
            return np.asarray(labels.cpu())

    return answer


def _padded(batch: Any, most: int) -> tuple[Tensor, Tensor]:
    features, values = np.zeros((batch.shape[0], most), np.int64), np.zeros((batch.shape[0], most), np.float32)
    for row, (begin, end) in enumerate(zip(batch.indptr[:-1], batch.indptr[1:], strict=True)):
        features[row, : end - begin], values[row, : end - begin] = batch.indices[begin:end], batch.data[begin:end]
    pinned = torch.cuda.is_available()
    tensors = (torch.from_numpy(features), torch.from_numpy(values))
    return tuple(each.pin_memory() for each in tensors) if pinned else tensors


def faiss_answers(mlp: MLP, device: str, batches: Sequence[Any]) -> Iterator[tuple[str, Answer]]:
    """Inner products of the output layer by FAISS, exact and by lists; torch computes what is before it. On a CPU by
    the CPU's FAISS. Raises ``Left`` where FAISS, or its part for GPUs, is not installed."""
    if find_spec("faiss") is None:
        raise Left("faiss is not installed")
    import faiss

    on_gpu = device != "cpu"
    if on_gpu and not (hasattr(faiss, "StandardGpuResources") and faiss.get_num_gpus()):
        raise Left("this faiss was built without GPUs")
    dense = TorchDense(mlp, device)
    queries = [dense.prepared(batch) for batch in batches]
    last = mlp.layers[-1]
    vectors = np.ascontiguousarray(np.hstack([last.weights, last.bias[:, None]]), dtype=np.float32)
    resources = faiss.StandardGpuResources() if on_gpu else None
    lists = int(IVF_LISTS_FACTOR * np.sqrt(len(vectors)))
    flat = faiss.IndexFlatIP(vectors.shape[1])
    inverted = faiss.IndexIVFFlat(
        faiss.IndexFlatIP(vectors.shape[1]), vectors.shape[1], lists, faiss.METRIC_INNER_PRODUCT
    )
    for name, index in (("FAISS, exact", flat), (f"FAISS, {IVF_PROBES} of {lists} lists", inverted)):
        there = faiss.index_cpu_to_gpu(resources, dense.device.index or 0, index) if on_gpu else index
        there.train(vectors)
        there.add(vectors)
        if index is inverted:
            there.nprobe = IVF_PROBES
        yield name, _searched(dense, queries, there)


def _searched(dense: TorchDense, queries: Sequence[Any], index: Any) -> Answer:
    def answer(i: int) -> np.ndarray:
        with torch.inference_mode():
            hidden = dense.hidden(*(each.to(dense.device, non_blocking=True) for each in queries[i])).cpu().numpy()
        with_one = np.hstack([hidden, np.ones((len(hidden), 1), np.float32)])
        return np.asarray(index.search(with_one, 1)[1][:, 0])

    return answer
