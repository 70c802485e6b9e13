"""A decoder network of next words, trained here: Python source is text that every machine has.

Words are names, numbers and signs; line breaks and indentation count, comments do not. Files, not lines, go to the
training, validation and test splits, so that no line is seen before it is scored.
"""

from __future__ import annotations

import io
import re
import time
import tokenize
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

# A word that the vocabulary lacks.
UNKNOWN = 0
CONTEXT, WIDTH, HEADS, BLOCKS = 32, 128, 4, 2
BATCH, SAMPLED, LEARNING_RATE = 64, 1_024, 2e-3
Activation = Callable[[Tensor], Tensor]
_IGNORED = (tokenize.COMMENT, tokenize.NL, tokenize.ENCODING, tokenize.ENDMARKER)


class Block(nn.Module):
    """Attention to earlier positions and a feed-forward layer, each behind a norm."""

    def __init__(self, activation: Activation) -> None:
        super().__init__()
        self.activation = activation
        self.first, self.second = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.queries_keys_values, self.joined = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.wide, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        n, positions, _ = x.shape
        parts = self.queries_keys_values(self.first(x)).view(n, positions, 3, HEADS, WIDTH // HEADS)
        queries, keys, values = parts.permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(queries, keys, values, is_causal=True)
        x = x + self.joined(seen.transpose(1, 2).reshape(n, positions, WIDTH))
        return x + self.narrow(self.activation(self.wide(self.second(x))))


class Decoder(nn.Module):
    """Scores [n, CONTEXT, words] of each position's next word, of words [n, CONTEXT]."""

    def __init__(self, words: int, activation: Activation = functional.gelu):
        super().__init__()
        self.embedded, self.places = nn.Embedding(words, WIDTH), nn.Parameter(torch.zeros(CONTEXT, WIDTH))
        self.blocks = nn.Sequential(*(Block(activation) for _ in range(BLOCKS)))
        self.norm, self.scores = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, words)
        nn.init.normal_(self.embedded.weight, std=0.05)

    def features(self, words: Tensor) -> Tensor:
        """float32 [n, CONTEXT, WIDTH]: what the output embedding receives."""
        made: Tensor = self.norm(self.blocks(self.embedded(words) + self.places))
        return made

    def forward(self, words: Tensor) -> Tensor:
        scores: Tensor = self.scores(self.features(words))
        return scores


def words_of(path: Path) -> list[str]:
    """Of one file; none of a file that Python itself cannot read."""
    try:
        text = path.read_text()
        words = []
        for token in tokenize.generate_tokens(io.StringIO(text).readline):
            if token.type == tokenize.STRING:
                words += re.findall(r"\w+|[^\w\s]", token.string)
            elif token.type not in _IGNORED:
                words.append(tokenize.tok_name[token.type] if not token.string.strip() else token.string)
    except (OSError, ValueError, SyntaxError, tokenize.TokenError):
        return []
    return words


def texts(folders: list[Path], at_most: int, seed: int) -> Iterator[list[str]]:
    """Words of Python files drawn at random, until there are ``at_most``."""
    files = sorted({file for folder in folders for file in folder.rglob("*.py")})
    taken = 0
    for at in np.random.default_rng(seed).permutation(len(files)):
        words = words_of(files[at])
        if len(words) > CONTEXT:
            taken += len(words)
            yield words
        if taken >= at_most:
            return


def numbered(files: list[list[str]], vocabulary: int) -> list[np.ndarray]:
    """int64 numbers of the ``vocabulary - 1`` most frequent words, by falling frequency; others are ``UNKNOWN``."""
    counts = Counter(word for file in files for word in file)
    known = {word: at for at, (word, _) in enumerate(counts.most_common(vocabulary - 1), start=1)}
    return [np.array([known.get(word, UNKNOWN) for word in file], dtype=np.int64) for file in files]


def examples(files: list[np.ndarray], count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """``count`` contexts float32 [count, CONTEXT] and the word after each, which the vocabulary knows."""
    random = np.random.default_rng(seed)
    text = np.concatenate(files)
    ends = np.cumsum([len(file) for file in files])
    starts = np.concatenate([np.arange(end - len(file), end - CONTEXT) for end, file in zip(ends, files, strict=True)])
    starts = random.permutation(starts[text[starts + CONTEXT] != UNKNOWN])[:count]
    x = text[starts[:, None] + np.arange(CONTEXT)]
    return x.astype(np.float32), text[starts + CONTEXT]


def trained(
    files: list[np.ndarray], vocabulary: int, seconds: float, seed: int, activation: Activation = functional.gelu
) -> Decoder:
    """Trained on every position of random contexts, by softmax over the words of a batch and sampled others."""
    torch.manual_seed(seed)
    decoder, text = Decoder(vocabulary, activation), torch.from_numpy(np.concatenate(files))
    optimizer = torch.optim.AdamW(decoder.parameters(), lr=LEARNING_RATE, weight_decay=0.01, fused=True)
    # How often each word is drawn, and the correction of its score for that.
    share = torch.bincount(text, minlength=vocabulary).float().add(1).pow(0.75)
    share /= share.sum()
    began, steps, loss = time.perf_counter(), 0, torch.zeros(())
    while (passed := time.perf_counter() - began) < seconds:
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * max(0.02, 1 - passed / seconds)
        starts = torch.randint(len(text) - CONTEXT - 1, (BATCH, 1))
        window = text[starts + torch.arange(CONTEXT + 1)]
        loss = _sampled_loss(decoder, window, share)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        steps += 1
        if steps % 500 == 0:
            print(f"  step {steps:,}: loss {loss.item():.3f}, {passed:.0f} s", flush=True)
    return decoder.eval()


def _sampled_loss(decoder: Any, window: Tensor, share: Tensor) -> Tensor:
    targets, sampled = window[:, 1:].reshape(-1), torch.multinomial(share, SAMPLED)
    words, places = torch.unique(targets, return_inverse=True)
    others = sampled[~torch.isin(sampled, words)]
    candidates = torch.cat([words, others])
    features = decoder.features(window[:, :-1]).reshape(-1, WIDTH)
    scores = functional.linear(features, decoder.scores.weight[candidates], decoder.scores.bias[candidates])
    # Words that were drawn stand for those that were not.
    missed = torch.zeros(len(candidates))
    missed[len(words) :] = -torch.log(share[others] * SAMPLED).clamp(max=0)
    return functional.cross_entropy(scores + missed, places)
