"""`python -m tensorpool`: the command, where it is not on the path."""

from .cli import main

main()
