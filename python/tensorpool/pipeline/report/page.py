"""One HTML page, with everything that it needs inside it. It asks no network for anything."""

from __future__ import annotations

import base64
import hashlib
from html import escape
from importlib import resources
from typing import Final

from . import sections
from .figures import Report
from .scales import UNKNOWN, count_text, moment, short, size_text, span_text

_HERE: Final = resources.files(__package__)


def page(report: Report) -> str:
    """The whole document. Whatever came from outside is escaped, and only our own script may run."""
    style = _HERE.joinpath("style.css").read_text("utf-8")
    script = _HERE.joinpath("hover.js").read_text("utf-8")
    allowed = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{allowed}'; "
        "base-uri 'none'; form-action 'none'"
    )
    parts = [
        _head(report),
        _tiles(report),
        sections.accounts(report),
        sections.rates(report),
        sections.latencies(report),
        sections.jitters(report),
        sections.reasons(report),
        sections.alignments(report),
        sections.tensors(report),
        sections.samples(report),
        sections.provenance(report),
    ]
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">'
        f"<title>{escape(report.name)} · TensorPool pipeline</title><style>{style}</style></head>\n"
        f"<body><main>{''.join(parts)}<footer>Made by {escape(report.made_by)}, "
        f"{moment(report.made_ns)} UTC. Times are UTC.</footer></main>"
        f"<script>{script}</script></body></html>\n"
    )


def _head(report: Report) -> str:
    streams = [one for one in report.streams if one.first_ns is not None and one.last_ns is not None]
    if streams:
        first = min(one.first_ns for one in streams if one.first_ns is not None)
        last = max(one.last_ns for one in streams if one.last_ns is not None)
        when = f"{moment(first)} to {moment(last)} UTC, {span_text(last - first)}"
    else:
        when = "no frames yet"
    many = f"{len(report.streams)} stream{'' if len(report.streams) == 1 else 's'}"
    if report.faults:
        listed = "".join(f"<li>{escape(fault)}</li>" for fault in report.faults)
        verdict = (
            f'<span class="verdict bad">✗ the tables do not add up</span><ul class="faults">{listed}</ul>'
            '<p class="soft">A pipeline that runs may be between two of them: look again when it has '
            "ended.</p>"
        )
    else:
        verdict = '<span class="verdict good">✓ every recorded frame is accounted for</span>'
    return f"<header><h1>{escape(report.name)}</h1><p>{when} · {many}</p>{verdict}</header>"


def _tiles(report: Report) -> str:
    dropped = sum(report.reasons("dropped").values())
    rejected = sum(report.reasons("rejected").values())
    rates = [one.rate_hz for one in report.streams if one.rate_hz is not None]
    found = [
        ("", count_text(report.total("frames")), "frames in silver"),
        ("", size_text(report.total("bytes")), "of tensors"),
        ("", f"{short(sum(rates))} Hz" if rates else UNKNOWN, "all streams together"),
        ("warn" if dropped else "", count_text(dropped), "never recorded"),
        ("bad" if rejected else "", count_text(rejected), "rejected"),
    ]
    shares = [one.share for one in report.alignments if one.share is not None]
    if shares:
        found.append(("", f"{min(shares):.1%}", "aligned" if len(shares) == 1 else "aligned, at least"))
    tiles = "".join(
        f'<div class="tile {tone}"><b>{escape(value)}</b><span>{escape(what)}</span></div>'
        for tone, value, what in found
    )
    return f'<section class="tiles">{tiles}</section>'
