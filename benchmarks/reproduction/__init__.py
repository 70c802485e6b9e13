"""Tables and figures of the five papers, each made by commands that a user could type, beside what the paper says."""

from benchmarks.reproduction.paper import Figure, Found, Paper
from benchmarks.reproduction.runner import Reproduced, reproduced
from benchmarks.reproduction.workspace import NotHere, Scale, Workspace

__all__ = ["Figure", "Found", "NotHere", "Paper", "Reproduced", "Scale", "Workspace", "reproduced"]
