"""Rules held against what happened since: drift, and verdicts on other outcomes."""
