"""`octavo serve`: an OpenAI-compatible server."""

from collections.abc import Sequence

from octavo.config.args import ServeArgs
from octavo.config.cli import Parser, add_flags, ask
from octavo.errors import ConfigError


def parser() -> Parser:
    found = Parser(
        prog="octavo serve",
        usage="octavo serve [MODEL] [flags]",
        description="Serve a model over OpenAI's API. Without a model the embedded one is served.",
    )
    found.add_argument("model", nargs="?", metavar="MODEL", help="directory, GGUF file or hub name")
    found.add_argument("--model", dest="model_flag", metavar="MODEL", help="the same, as a flag")
    found.add_argument(
        "--config", metavar="FILE", help="flags from a .yaml, .json or .toml file; the command line wins"
    )
    found.add_argument("--show-config", action="store_true", help="print each value, and why it was chosen, and end")
    add_flags(found, ServeArgs, skip=("model",))
    return found


def main(argv: Sequence[str]) -> int:
    """Serve until the end; the exit status."""
    flags = parser()
    parsed = flags.parse_args(argv)
    if parsed.model_flag is not None:
        if parsed.model is not None and parsed.model != parsed.model_flag:
            flags.error(f"the model is given twice: {parsed.model!r} and --model {parsed.model_flag!r}")
        parsed.model = parsed.model_flag
    try:
        args = ask(ServeArgs, parsed)
    except ConfigError as error:
        flags.error(str(error))
    if parsed.show_config:
        from octavo.config.resolve import resolve, show

        print(show(resolve(args)))
        return 0
    from octavo.launch import online

    return online.serve(args)
