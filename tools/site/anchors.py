"""Anchors of headings, as GitHub makes them: a link with an anchor works there and on the site."""

from __future__ import annotations

import re


def slugify(text: str, separator: str) -> str:
    """The anchor of a heading."""
    return re.sub(r"[^\w\- ]", "", text.lower()).replace(" ", separator)
