"""Measurements, never collected by the tests: `python -m benchmarks --help`."""
