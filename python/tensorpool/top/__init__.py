"""`tensorpool top`: a running system on a page of a terminal, from a system model of its own."""
