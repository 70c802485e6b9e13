"""Adapters: each makes a ``Model`` of what another library or server has."""
