"""Commands that measure latencies."""
