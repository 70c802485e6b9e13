"""Commands that name, capture and generate networks."""
