"""Tests. Shared helpers are in `helpers.py`."""
