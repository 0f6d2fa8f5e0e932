"""Nouns: groups of commands that tell in their help, whole sentences, what each verb does."""

from __future__ import annotations

import click

_NO_LIMIT = 1000


class Noun(click.Group):
    """Its help has the first sentence of every command; click's own cuts them off in the middle."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        verbs = [(name, self.get_command(ctx, name)) for name in self.list_commands(ctx)]
        rows = [(name, one.get_short_help_str(_NO_LIMIT)) for name, one in verbs if one and not one.hidden]
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)


class RunByDefault(Noun):
    """`tensorpool NOUN` and `tensorpool NOUN --config FILE` mean `tensorpool NOUN run`."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0].startswith("-") and args[0] not in ("-h", "--help")):
            args = ["run", *args]
        return super().parse_args(ctx, args)
