"""Plots as data once, drawn as PNG and as one self-contained page."""

from slotool.reports.collect import Collected, collect
from slotool.reports.report import write_report

__all__ = ["Collected", "collect", "write_report"]
