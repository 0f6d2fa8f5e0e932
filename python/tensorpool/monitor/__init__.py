"""One listener, one model of the running system, and its ledger.

Supervisor, top, metrics, ledger and the `stream` commands use `listener.SystemMonitor`; discovery uses
`reports.AnnounceReader` and `streams.AnnouncedStream`. Monitoring takes no lease and delays no publication.

This module imports nothing: a driver needs two of the submodules, and must start fast.
"""
