"""Checks of rules against later outcomes: drift, and verdicts."""
