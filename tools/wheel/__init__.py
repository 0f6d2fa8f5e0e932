"""Wheels and the source distribution: `make wheel`."""
