"""`python -m tensorpool`: the command `tensorpool` where it is not on the path."""

from .cli import main

main()
