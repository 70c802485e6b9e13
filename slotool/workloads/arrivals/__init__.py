"""Arrival processes and recorded traces: when requests come."""
