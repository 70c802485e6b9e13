"""Routing policies: which versions answer a request, in which order, and whose answer is sent."""
