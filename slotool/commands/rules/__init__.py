"""Commands that generate, check and export routing rules."""
