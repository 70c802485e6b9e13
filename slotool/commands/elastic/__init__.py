"""Commands that train, build and evaluate elastic models."""
