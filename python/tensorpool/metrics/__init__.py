"""Metrics of a running system for Prometheus and OpenTelemetry, from snapshots of the system model.

Imports nothing: the client library takes 0.1 s to import, and every command reads the settings in `config`.
"""
