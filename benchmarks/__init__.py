"""Benchmarks, which the test run never collects: `python -m benchmarks --help`."""
