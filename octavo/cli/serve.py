"""`octavo serve`: an OpenAI-compatible server."""

from collections.abc import Sequence

from octavo.config.args import ServeArgs
from octavo.config.cli import Parser, add_flags, add_model, ask, one_model
from octavo.errors import ConfigError


def parser() -> Parser:
    found = Parser(
        prog="octavo serve",
        usage="octavo serve [MODEL] [flags]",
        description="Serve a model over OpenAI's API. Without a model the embedded one is served.",
    )
    add_model(found)
    found.add_argument(
        "--config", metavar="FILE", help="flags from a .yaml, .json or .toml file; the command line wins"
    )
    found.add_argument(
        "--show-config",
        action="store_true",
        help="check what was asked, print every value with its flag and why it was chosen, and end",
    )
    add_flags(found, ServeArgs, skip=("model",))
    return found


def main(argv: Sequence[str]) -> int:
    """Serve until the end; the exit status."""
    flags = parser()
    parsed = flags.parse_args(argv)
    one_model(flags, parsed)
    try:
        args = ask(ServeArgs, parsed)
    except ConfigError as error:
        flags.error(str(error))
    if parsed.show_config:
        from octavo.launch.shown import show

        print(show(args))
        return 0
    from octavo.launch import online

    return online.serve(args)
