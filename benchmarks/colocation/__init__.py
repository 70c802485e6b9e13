"""Answers beside busy copies of a model on one core: LCAO, ACLO and the full network (SLO-NN paper, figures 4 to 6)."""
