"""Generators of rules: candidates, search, certified, bootstrapped and naive choice."""
