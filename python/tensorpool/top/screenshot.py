"""A page as a picture for documents: SVG with the fonts of whoever looks at it."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Final

from rich.console import Console, Group
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

# rich's own frame would fetch a font from somewhere else.
_FORMAT: Final = """\
<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" xml:space="preserve">
<style>
.{unique_id}-matrix {{
    font-family: "DejaVu Sans Mono", Menlo, Consolas, monospace;
    font-size: {char_height}px;
    line-height: {line_height}px;
}}
{styles}
</style>
<defs>
<clipPath id="{unique_id}-clip-terminal">
<rect x="0" y="0" width="{terminal_width}" height="{terminal_height}"/>
</clipPath>
{lines}
</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})" clip-path="url(#{unique_id}-clip-terminal)">
{backgrounds}
<g class="{unique_id}-matrix">
{matrix}
</g>
</g>
</svg>
"""


def svg(lines: Sequence[Text], width: int, *, title: str = "tensorpool top") -> str:
    """What a terminal with all colours would show. The same lines give the same text."""
    console = Console(
        record=True,
        width=width,
        height=len(lines),
        file=io.StringIO(),
        force_terminal=True,
        color_system="truecolor",
        no_color=False,
        _environ={},
    )
    console.print(Group(*lines))
    return console.export_svg(title=title, theme=DIMMED_MONOKAI, code_format=_FORMAT, unique_id="top")
