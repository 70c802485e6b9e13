"""Trained predictors as artifacts: bounds, domain, intervals, explanations."""
