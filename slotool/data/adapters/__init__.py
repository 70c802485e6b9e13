"""Readers of data sets, one file each."""
