"""`pipeline.json`: what a root is, and with which definition it was begun."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ..durable import replace_file, write_errors
from ..errors import PipelineError
from ..runtime.config.spec import TableSpec, spec_of
from .definition import PipelineSettings
from .layout import Layout
from .schemas import VERSIONS

FORMAT: Final = "tensorpool-pipeline"
_FIXED: Final = ("recordings", "streams", "payload", "format")
"""What a root stays with: bronze is one query over these, from its first row to its last."""


@dataclass(slots=True)
class PipelineMarker:
    pipeline_id: str
    versions: dict[str, int]
    definition: dict[str, Any]


def read(root: Path) -> PipelineMarker:
    """Raises PipelineError where there is no pipeline, or one of a later version."""
    path = Layout(root).marker
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        raise PipelineError(f"{root} has no pipeline; tensorpool pipeline run begins one") from None
    except ValueError as error:
        raise PipelineError(f"{path}: {error}; it was written by something else") from None
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise PipelineError(f"{path} is no pipeline's; give another directory with out = …")
    versions = {str(stage): int(version) for stage, version in found["versions"].items()}
    for stage, version in versions.items():
        if version > VERSIONS.get(stage, 0):
            raise PipelineError(
                f"{root}: its {stage} tables are of version {version}, and this program knows "
                f"{VERSIONS.get(stage, 0)}; use the tensorpool that wrote them, or a later one"
            )
    return PipelineMarker(found["id"], versions, found["definition"])


def begin(settings: PipelineSettings) -> PipelineMarker:
    """The marker of the definition's root, made if it is not there, with the definition as it is now."""
    where = Layout(settings.out)
    definition = as_tables(settings)
    if where.marker.exists():
        found = read(settings.out)
        for key in _FIXED:
            if found.definition.get(key) != definition.get(key):
                raise PipelineError(
                    f"{settings.out} was begun with {key} = {found.definition.get(key)}, and now it is "
                    f"{definition.get(key)}: its tables would be of two kinds. Give another directory (out)"
                )
        marker = PipelineMarker(found.pipeline_id, found.versions, definition)
    else:
        # A marker that was not finished is nobody's: a kill left it.
        own = (where.lock.name, f"{where.marker.name}.")
        if where.root.is_dir() and not all(one.name.startswith(own) for one in where.root.iterdir()):
            raise PipelineError(
                f"{where.root} has files that are no pipeline's; give another directory with out = …"
            )
        marker = PipelineMarker(secrets.token_hex(8), dict(VERSIONS), definition)
    content = {
        "format": FORMAT,
        "id": marker.pipeline_id,
        "versions": marker.versions,
        "definition": definition,
    }
    with write_errors(where.marker):
        replace_file(where.marker, json.dumps(content, indent=2).encode() + b"\n")
    return marker


def as_tables(settings: PipelineSettings) -> dict[str, Any]:
    """The definition as TOML would have it."""
    return _plain(spec_of(PipelineSettings), settings)


def _plain(spec: TableSpec, settings: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for one in spec.fields.values():
        value = getattr(settings, one.attribute)
        if one.nested is not None:
            found[one.key] = (
                [_plain(one.nested, e) for e in value] if one.is_array else _plain(one.nested, value)
            )
        elif value is not None:
            assert one.kind is not None, "a field is a table or has a kind"
            found[one.key] = one.kind.write(value)
    return found
