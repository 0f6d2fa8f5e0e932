"""The table of options for the reference page: `python -m tensorpool.spark.reference` prints it."""

from __future__ import annotations

from .options import TABLE


def options_page() -> str:
    """The table in Markdown."""
    lines = ["| option | for | default | |", "|---|---|---|---|"]
    for option in TABLE:
        uses = ", ".join(sorted(option.uses, key=["read", "readStream", "write", "writeStream"].index))
        lines.append(f"| `{option.name}` | {uses} | {option.default_text} | {option.doc} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(options_page(), end="")
