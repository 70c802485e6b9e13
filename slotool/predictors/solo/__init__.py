"""Predictors of solo latencies, one file each."""
