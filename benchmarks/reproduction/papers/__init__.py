"""The papers, one file each, by the name that ``python -m benchmarks.reproduction`` takes."""

from collections.abc import Mapping

from benchmarks.reproduction.paper import Paper
from benchmarks.reproduction.papers import (
    inference_latency_prediction,
    model_switching,
    slo_aware_neural_networks,
    superserve,
    tolerance_tiers,
)

PAPERS: Mapping[str, Paper] = {
    module.PAPER.name: module.PAPER
    for module in (
        inference_latency_prediction,
        slo_aware_neural_networks,
        tolerance_tiers,
        model_switching,
        superserve,
    )
}
