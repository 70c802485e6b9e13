"""Compiled code that answers queries, and the memory layout it reads. Importing most of it imports Numba."""
