"""`octavo`: finds the subcommand; nothing is imported before it is known which."""

import importlib
import sys
from collections.abc import Sequence

from octavo import __version__
from octavo.common.words import nearest
from octavo.errors import ConfigError, EngineDead

#: Subcommand -> (module with ``main(argv) -> int``, what it does).
COMMANDS: dict[str, tuple[str, str]] = {
    "serve": ("octavo.cli.serve", "serve a model over OpenAI's API"),
    "chat": ("octavo.cli.chat", "talk to a model in the terminal"),
    "complete": ("octavo.cli.complete", "let a model continue a text"),
    "top": ("octavo.cli.top", "watch a running server in the terminal"),
    "run-batch": ("octavo.cli.run_batch", "answer a file of requests"),
    "bench": ("octavo.cli.bench", "measure throughput, latency, start-up or a running server"),
    "warm": ("octavo.cli.warm", "compile a model's GPU kernels ahead, into a folder for an image"),
    "tune": ("octavo.cli.tune", "find the fastest kernels for a model on this GPU"),
    "env": ("octavo.cli.env", "what this machine has, and which backends octavo would use"),
}
#: vLLM's names of commands -> ours.
ALIASES = {"collect-env": "env"}


def usage() -> str:
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {text}" for name, (_, text) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: octavo COMMAND [flags]   (octavo COMMAND --help tells a command's flags)",
            "       octavo --version",
            "",
            "An engine that serves large language models.",
            "",
            *lines,
        ]
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line; the exit status: 0, 1 where it failed, 2 where it was not understood."""
    words = list(sys.argv[1:] if argv is None else argv)
    if not words:
        print(usage(), file=sys.stderr)
        return 2
    name, *rest = words
    name = ALIASES.get(name, name)
    if name in ("-h", "--help", "help"):
        print(usage())
        return 0
    if name in ("-V", "--version"):
        print(f"octavo {__version__}")
        return 0
    if name not in COMMANDS:
        what = "flag" if name.startswith("-") else "command"
        print(
            f"octavo: unknown {what} {name!r}{nearest(name, (*COMMANDS, '--version', '--help'))}; "
            f"known: {', '.join(COMMANDS)}",
            file=sys.stderr,
        )
        return 2
    try:
        return importlib.import_module(COMMANDS[name][0]).main(rest)
    except (ConfigError, EngineDead) as error:
        print(f"octavo {name}: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:
        return 141
