"""Prometheus' text format, version 0.0.4. Pure: families in, text out.

By hand, because it is two kinds of line: a library would bring a registry of its own, and what we show is a
picture that changes as a whole.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
Kind = Literal["counter", "gauge"]
Labels = tuple[str, ...]

_NAME: Final = re.compile(r"[a-z_][a-z0-9_]*\Z")
_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})
_HELP_ESCAPES: Final = str.maketrans({"\\": r"\\", "\n": r"\n"})
# A name on the wire may be long; a label is kept, copied and compared with every sample.
LONGEST_LABEL: Final = 128


@dataclass(frozen=True, slots=True)
class Metric:
    """What a family of samples is called, and what it means."""

    name: str
    kind: Kind
    doc: str
    labels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in (self.name, *self.labels):
            if not _NAME.match(name):
                raise ValueError(f"{name!r} is no name of a metric or label")
        if (self.kind == "counter") != self.name.endswith("_total"):
            raise ValueError(f"{self.name}: counters, and nothing else, end with _total")


@dataclass(slots=True)
class Family:
    """A metric with its samples: a value for each set of label values."""

    metric: Metric
    samples: dict[Labels, float] = field(default_factory=dict)

    def put(self, value: float | None, *labels: object) -> None:
        """A sample; None is left out. Of two with the same labels the later one counts."""
        if value is not None:
            self.samples[self._key(labels)] = float(value)

    def put_at(self, labels: Labels, value: float | None) -> None:
        """The same for label values that are texts already: there are thousands of some."""
        if value is not None:
            self.samples[labels] = float(value)

    def add(self, value: float, *labels: object) -> None:
        """Adds to the sample: for labels that stand for several things."""
        key = self._key(labels)
        self.samples[key] = self.samples.get(key, 0.0) + value

    def _key(self, labels: Sequence[object]) -> Labels:
        if len(labels) != len(self.metric.labels):
            raise ValueError(f"{self.metric.name} has the labels {self.metric.labels}, not {labels}")
        return label_texts(*labels)


def label_texts(*labels: object) -> Labels:
    """For samples that share them: made once, and put in with `put_at`."""
    return tuple([label_text(one) for one in labels])


def label_text(value: object) -> str:
    """As it stands in a label: not too long, and Unicode that can be written."""
    text = str(value)[:LONGEST_LABEL]
    return text if text.isascii() else text.encode("utf-8", "replace").decode("utf-8")


def render(families: Iterable[Family]) -> str:
    """The whole page. Families without samples are left out."""
    # Families of the same labels have many of their values in common, too.
    written: dict[Labels, dict[Labels, str]] = {}
    return "".join(
        line
        for one in families
        if one.samples
        for line in _lines(one, written.setdefault(one.metric.labels, {}))
    )


def _lines(family: Family, written: dict[Labels, str]) -> Iterator[str]:
    metric, name = family.metric, family.metric.name
    yield f"# HELP {metric.name} {metric.doc.translate(_HELP_ESCAPES)}\n"
    yield f"# TYPE {metric.name} {metric.kind}\n"
    for labels, value in family.samples.items():
        pairs = written.get(labels)
        if pairs is None:
            pairs = written[labels] = _pairs(metric.labels, labels)
        yield f"{name}{pairs} {number(value)}\n"


def _pairs(names: Labels, labels: Labels) -> str:
    pairs = [f'{name}="{text.translate(_ESCAPES)}"' for name, text in zip(names, labels, strict=True)]
    return f"{{{','.join(pairs)}}}" if pairs else ""


def number(value: float) -> str:
    # Whole numbers as such: nobody wants to read 1e+16 frames.
    if value.is_integer() and abs(value) < 1 << 63:
        return str(int(value))
    if math.isnan(value):
        return "NaN"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return repr(value)
