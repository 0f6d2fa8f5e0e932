"""`tensorpool top`: a terminal page of a running system. It runs the supervisor's picture by itself."""
