"""Rankers: what puts similar inputs of a layer into one bucket; one file per algorithm."""
