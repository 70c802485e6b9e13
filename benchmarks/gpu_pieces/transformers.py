"""Prefill and decode of three transformers of random weights, captured, and how far two terms explain the latencies.

Decoders as GPT-2 and Llama have them, bf16, with a static cache: a decode step reads all weights and the cache of its
context. The two terms are seconds per byte that must be read and seconds per FLOP.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.gpu_pieces.piece import Figures, Piece
from benchmarks.gpu_pieces.timing import captured, free_bytes, timed

BYTES = 2
# Share of the free memory that a cell may take by its estimate.
MEMORY_SHARE = 0.85
PREFILL, PREFILL_BATCHES = (128, 512, 2048, 8192), (1, 8)
DECODE, DECODE_BATCHES = (128, 1024, 2048, 8192), (1, 8, 32, 128)
REHEARSED_SIZES = {"prefill": ((8, 16), (1, 2)), "decode": ((8, 16), (1, 2))}
WITHIN = 0.10


@dataclass(frozen=True)
class Shape:
    """Sizes of a decoder. ``gated``: Llama's norms, rotary positions and gated feed-forward layer; else GPT-2's."""

    width: int
    blocks: int
    heads: int
    kv_heads: int
    inner: int
    words: int
    gated: bool

    @property
    def head(self) -> int:
        return self.width // self.heads


SHAPES = {
    "GPT-2 124M": Shape(768, 12, 12, 12, 3072, 50257, gated=False),
    "Llama-like 1.1B": Shape(2048, 22, 32, 4, 5632, 32000, gated=True),
    "Llama-like 7B": Shape(4096, 32, 32, 32, 11008, 32000, gated=True),
}
TINY = {"tiny GPT-2": Shape(32, 2, 4, 4, 64, 100, gated=False), "tiny Llama": Shape(32, 2, 4, 2, 64, 100, gated=True)}
MAX_POSITIONS = 1024


class Block(nn.Module):
    """Attention to a static cache and a feed-forward layer, each behind a norm."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape, bias = shape, not shape.gated
        norm = nn.RMSNorm if shape.gated else nn.LayerNorm
        self.first, self.second = norm(shape.width), norm(shape.width)
        self.sizes = [shape.width, shape.kv_heads * shape.head, shape.kv_heads * shape.head]
        self.queries_keys_values = nn.Linear(shape.width, sum(self.sizes), bias=bias)
        self.joined = nn.Linear(shape.width, shape.width, bias=bias)
        self.wide = nn.Linear(shape.width, shape.inner * (2 if shape.gated else 1), bias=bias)
        self.narrow = nn.Linear(shape.inner, shape.width, bias=bias)

    def forward(self, x: Tensor, cache: Tensor | None, rotation: tuple[Tensor, Tensor] | None) -> Tensor:
        """``x``: [n, positions, width]. ``cache``: [2, n, heads, context, head], of which the last position is
        written and all are read; None: the positions see those before them."""
        n, positions, _ = x.shape
        parts = self.queries_keys_values(self.first(x)).split(self.sizes, dim=-1)
        queries, keys, values = (part.view(n, positions, -1, self.shape.head).transpose(1, 2) for part in parts)
        if rotation is not None:
            queries, keys = rotated(queries, *rotation), rotated(keys, *rotation)
        if cache is not None:
            cache[0, :, :, -1:], cache[1, :, :, -1:] = keys, values
            keys, values = cache[0], cache[1]
        grouped = self.shape.kv_heads < self.shape.heads
        seen = functional.scaled_dot_product_attention(
            queries, keys, values, is_causal=cache is None, enable_gqa=grouped
        )
        x = x + self.joined(seen.transpose(1, 2).reshape(n, positions, -1))
        wide = self.wide(self.second(x))
        if self.shape.gated:
            gate, up = wide.chunk(2, dim=-1)
            return x + self.narrow(functional.silu(gate) * up)
        return x + self.narrow(functional.gelu(wide, approximate="tanh"))


class Decoder(nn.Module):
    """Scores [n, words] of the word after the last position."""

    def __init__(self, shape: Shape):
        super().__init__()
        self.shape = shape
        self.embedded = nn.Embedding(shape.words, shape.width)
        self.places = None if shape.gated else nn.Embedding(MAX_POSITIONS, shape.width)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.blocks))
        self.norm = (nn.RMSNorm if shape.gated else nn.LayerNorm)(shape.width)
        self.scores = nn.Linear(shape.width, shape.words, bias=False)
        if not shape.gated:
            self.scores.weight = self.embedded.weight

    def forward(self, words: Tensor, places: Tensor, caches: list[Tensor] | None = None) -> Tensor:
        x = self.embedded(words)
        if self.places is not None:
            x = x + self.places(places)
        rotation = rotation_of(places, self.shape.head, x.dtype) if self.shape.gated else None
        for number, block in enumerate(self.blocks):
            x = block(x, caches[number] if caches else None, rotation)
        scores: Tensor = self.scores(self.norm(x[:, -1]))
        return scores


def rotation_of(places: Tensor, head: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    powers = torch.arange(0, head, 2, device=places.device) / head
    angles = torch.outer(places.float(), 10_000.0**-powers).repeat(1, 2)
    return angles.cos().to(dtype), angles.sin().to(dtype)


def rotated(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    one, other = x.chunk(2, dim=-1)
    return x * cosine + torch.cat((-other, one), dim=-1) * sine


@dataclass(frozen=True)
class Cell:
    """One latency to measure: a phase at a batch size and a length, of the prompt or of the context."""

    phase: str
    batch: int
    length: int

    @property
    def name(self) -> str:
        return f"{self.phase} batch {self.batch} length {self.length}"


def run(piece: Piece) -> None:
    shapes = piece.sized(SHAPES, TINY)
    for name, shape in shapes.items():
        model: list[Decoder] = []
        for cell in cells(piece, shape):
            piece.step(f"{name}, {cell.name}", lambda shape=shape, cell=cell, model=model: measured(
                piece, shape, cell, built(piece, shape, model)
            ))  # fmt: skip
        model.clear()
        if piece.on_gpu:
            torch.cuda.empty_cache()
    for name in shapes:
        piece.step(f"two terms, {name}", lambda name=name: fitted(
            [figures for step, figures in piece.figures.items() if step.startswith(f"{name}, ") and "s" in figures]
        ))  # fmt: skip
    piece.step("two terms, all", lambda: fitted([figures for figures in piece.figures.values() if "s" in figures]))


def cells(piece: Piece, shape: Shape) -> Iterator[Cell]:
    for phase, sizes in {"decode": (DECODE, DECODE_BATCHES), "prefill": (PREFILL, PREFILL_BATCHES)}.items():
        lengths, batches = piece.sized(sizes, REHEARSED_SIZES[phase])
        for length in lengths:
            for batch in batches:
                if shape.gated or length <= MAX_POSITIONS:
                    yield Cell(phase, batch, length)


def built(piece: Piece, shape: Shape, known: list[Decoder]) -> Decoder:
    """The decoder, made by the first step that needs it: small random weights, straight on the device."""
    if not known:
        with torch.device("meta"):
            decoder = Decoder(shape)
        decoder = decoder.to(torch.bfloat16).to_empty(device=piece.device).eval().requires_grad_(False)
        if not shape.gated:
            decoder.scores.weight = decoder.embedded.weight
        torch.manual_seed(0)
        for parameter in decoder.parameters():
            parameter.fill_(1.0) if parameter.ndim == 1 else parameter.normal_(std=0.02)
        known.append(decoder)
    return known[0]


def measured(piece: Piece, shape: Shape, cell: Cell, decoder: Decoder) -> Figures:
    """Latency of the cell with what it must read and compute."""
    figures = {**costs(shape, cell), "phase": cell.phase, "batch": cell.batch, "length": cell.length}
    if piece.on_gpu:
        # What the last cell took, with its graph.
        gc.collect()
        torch.cuda.empty_cache()
    if figures["memory_bytes"] > MEMORY_SHARE * free_bytes(piece.device):
        return {**figures, "too_large": True}
    device, decodes = piece.device, cell.phase == "decode"
    positions = 1 if decodes else cell.length
    words = torch.randint(shape.words, (cell.batch, positions), device=device)
    places = torch.arange(cell.length - positions, cell.length, device=device)
    caches = None
    if decodes:
        sizes = (2, cell.batch, shape.kv_heads, cell.length, shape.head)
        caches = [torch.randn(sizes, device=device, dtype=torch.bfloat16) for _ in range(shape.blocks)]
    call: Callable[[], object] = captured(lambda: decoder(words, places, caches), device)
    figures |= timed(call, device, piece.full)
    figures |= {"bytes_per_s": figures["bytes"] / figures["s"], "flops_per_s": figures["flops"] / figures["s"]}
    return figures


def costs(shape: Shape, cell: Cell) -> Figures:
    """Bytes read at least: weights, of a decode step the cache too. FLOPs: products of weights, attention's two
    products. ``memory_bytes``: an estimate beside the weights."""
    decodes = cell.phase == "decode"
    positions = cell.batch * (1 if decodes else cell.length)
    kv = shape.kv_heads * shape.head
    block = shape.width * (2 * shape.width + 2 * kv) + shape.width * shape.inner * (3 if shape.gated else 2)
    weights = shape.blocks * block
    scores = shape.words * shape.width
    seen = positions * cell.length * (1 if decodes else 0.5)
    cache = shape.blocks * 2 * cell.batch * cell.length * kv
    flops = 2 * positions * weights + 2 * cell.batch * scores + 4 * shape.blocks * shape.width * seen
    activations = positions * (6 * shape.width + 3 * shape.inner) + cell.batch * shape.words
    return {
        "bytes": BYTES * (weights + scores + (cache if decodes else 2 * positions * shape.width * shape.blocks)),
        "flops": flops,
        "memory_bytes": BYTES * (2 * activations + (cache if decodes else 0)),
    }


def fitted(cells: list[Figures]) -> Figures:
    """Least squares of relative errors, s = a · bytes + b · FLOPs with a, b ≥ 0, and the errors of the same cells."""
    measured_s = np.array([cell["s"] for cell in cells])
    terms = np.array([(cell["bytes"], cell["flops"]) for cell in cells])
    prices, _ = nnls(terms / measured_s[:, None], np.ones(len(cells)))
    errors = np.abs(terms @ prices / measured_s - 1)
    return {
        "cells": len(cells),
        "bytes_per_s": float(1 / prices[0]) if prices[0] else None,
        "flops_per_s": float(1 / prices[1]) if prices[1] else None,
        "median_error": float(np.median(errors)),
        "p90_error": float(np.quantile(errors, 0.9)),
        "within_10_percent": float(np.mean(errors <= WITHIN)),
    }
