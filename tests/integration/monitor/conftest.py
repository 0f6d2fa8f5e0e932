"""The system of the supervisor's tests: processes with endpoints around one driver."""

from tests.integration.supervisor.conftest import endpoint_process, hub, options

__all__ = ["endpoint_process", "hub", "options"]
