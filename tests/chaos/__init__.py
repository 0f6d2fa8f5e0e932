"""The system under fire: processes that are killed and paused, damaged memory, files and messages.

`python -m tests.chaos --help`. One file a scenario, one checker for all of them; a seed repeats a run.
"""
