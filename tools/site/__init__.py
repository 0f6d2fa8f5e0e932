"""The documentation site: docs/ as pages of HTML that need no other host.

python -m tools.site            builds it into build/site; a warning is an error
"""
