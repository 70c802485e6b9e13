"""Models, settings and workers of a server, and their changes while it serves."""
