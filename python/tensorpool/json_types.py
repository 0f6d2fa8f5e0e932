"""The type of JSON documents, at the edges where JSON is decoded or about to be encoded."""

from __future__ import annotations

from typing import Any, TypeAlias

JsonObject: TypeAlias = dict[str, Any]
"""A JSON object. Inside the package, dataclasses and typed dictionaries say what an object holds."""
