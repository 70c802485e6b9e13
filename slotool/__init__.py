"""slotool: profile, predict and serve neural networks so that latency and accuracy promises hold."""

__version__ = "0.1.0"
__all__ = ["__version__"]
