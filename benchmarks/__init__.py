"""Measurements of slotool beside its floors and its peers: ``python -m benchmarks NAME``."""
