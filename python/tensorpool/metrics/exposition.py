"""Prometheus' text format 0.0.4 of the client library's families. Pure.

Hand-made for speed: with the library's own `generate_latest` a page of 1,000 streams and 4,000 consumers
takes 2.3 times as long, on a thread that competes with the supervisor's for the interpreter. The library
formats the labels of every sample; here the samples of a stream or consumer share one label set, which is
formatted once. Tests read the page with the library's parser and compare it with the library's own text.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from prometheus_client import Metric

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
MAX_LABEL: Final = 128
"""Characters of a label value. Names on the wire may be longer; every sample carries its labels."""

_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})


def label_text(value: object) -> str:
    """A label value: at most `MAX_LABEL` characters, and encodable as UTF-8."""
    text = str(value)[:MAX_LABEL]
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def render(families: Iterable[Metric]) -> str:
    """The page of these counters and gauges."""
    formatted: dict[int, tuple[dict[str, str], str]] = {}
    return "".join(line for family in families for line in _lines(family, formatted))


def _lines(family: Metric, formatted: dict[int, tuple[dict[str, str], str]]) -> Iterator[str]:
    # The library's counters carry their name without the suffix.
    name = f"{family.name}_total" if family.type == "counter" else family.name
    yield f"# HELP {name} {family.documentation.translate(_HELP_ESCAPES)}\n"
    yield f"# TYPE {name} {family.type}\n"
    for sample in family.samples:
        labels = sample.labels
        entry = formatted.get(id(labels))
        if entry is None:
            # The entry holds the label set: its id stays unique until the page is complete.
            entry = formatted[id(labels)] = (labels, _label_pairs(labels))
        yield f"{name}{entry[1]} {number(sample.value)}\n"


def _label_pairs(labels: dict[str, str]) -> str:
    pairs = [f'{name}="{text.translate(_ESCAPES)}"' for name, text in labels.items()]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def number(value: float) -> str:
    """A value as Prometheus reads it; whole numbers without exponent, which people read more easily."""
    value = float(value)
    if value.is_integer() and abs(value) < 1 << 63:
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
