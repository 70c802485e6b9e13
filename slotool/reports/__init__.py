"""Plots as data once, drawn as PNG and as one self-contained page."""

from slotool.reports.collect import Found, collect
from slotool.reports.report import write_report

__all__ = ["Found", "collect", "write_report"]
