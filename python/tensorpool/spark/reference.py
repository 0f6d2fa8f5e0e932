"""`python -m tensorpool.spark.reference`: the table of options as the reference page has it."""

from __future__ import annotations

from .options import TABLE


def options_page() -> str:
    lines = ["| option | for | default | |", "|---|---|---|---|"]
    for option in TABLE:
        uses = ", ".join(sorted(option.uses, key=["read", "readStream", "write", "writeStream"].index))
        lines.append(f"| `{option.name}` | {uses} | {option.shown} | {option.doc} |")
    return "\n".join(lines) + "\n"


if __name__ == "__main__":
    print(options_page(), end="")
