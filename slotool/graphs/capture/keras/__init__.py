"""Operator graphs of Keras models."""
