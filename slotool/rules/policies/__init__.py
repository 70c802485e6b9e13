"""Routing policies: which versions answer a request, in which order, and when their answer goes out."""
