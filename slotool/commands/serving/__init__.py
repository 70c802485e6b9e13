"""Commands that serve models and send load to servers."""
