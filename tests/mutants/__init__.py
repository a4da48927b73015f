"""Planted faults, each to be found by a test: `python -m tests.mutants`, or `make mutants`, plants them one by one."""
