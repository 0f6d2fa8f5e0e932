"""The command behind `make conformance`: which requirements of the specifications are proven.

A requirement is proven if a test that names it ran and passed, and none of its tests failed.
"""
