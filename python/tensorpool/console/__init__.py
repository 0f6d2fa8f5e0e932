"""The console: a running system in a browser, over the one system model that `top` and the metrics use.

`state` and `access` are pure, `history` keeps samples, `frames` reads streams, `actions` answers requests,
`server` is the web server. This module imports nothing: the web server is an extra.
"""
