"""Predictors of co-located latencies, their labels and splits."""
