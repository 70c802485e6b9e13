"""A server made of its settings: the application, the process that serves it, models, and their changes meanwhile."""
