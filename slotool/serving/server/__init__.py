"""The application, and the process that serves it."""
