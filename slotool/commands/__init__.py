"""Commands as typed functions: one file per capability, each function importable from ``slotool``.

A function returns a ``Result`` (``result.py``), which prints the tables of the terminal, is a pandas frame on request
and holds the document that ``--json`` prints. Long functions take ``progress`` (``progress.py``). Every error is one of
``slotool.errors``.
"""
