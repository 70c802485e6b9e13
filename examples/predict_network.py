"""Predict the latency of a torch network of one's own from its operators, timed on this machine."""

from torch import nn

import slotool


def network(width: int) -> nn.Module:
    """A small classifier of 28 × 28 images; put your own here."""
    hidden = nn.Sequential(nn.Linear(784, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU())
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, 10))


found = slotool.predict([network(64), network(2048)], input_shape=(1, 28, 28), slo_s=0.001)
print(found)
for graph, latency_s in zip(found.graphs, found.latency_s, strict=True):
    print(f"{graph.weights:,} weights: {1e6 * latency_s:.0f} µs")
