"""Plots as data once, drawn as PNG and as one self-contained page."""

from slotool.reports.report import Collected, collect, write_report

__all__ = ["Collected", "collect", "write_report"]
