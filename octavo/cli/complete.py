"""`octavo complete`: a model continues a text, from -q, from a pipe, or line by line."""

import sys
from collections.abc import Iterator, Sequence

from octavo.cli.source import Source, Stopwatch, add_source_flags, open_source, printable, sampling
from octavo.config.cli import Parser
from octavo.errors import ConfigError, RequestError, RequestFailed


def parser() -> Parser:
    found = Parser(prog="octavo complete", usage="octavo complete [MODEL] [--url URL] [flags]", description=__doc__)
    add_source_flags(found)
    return found


def main(argv: Sequence[str]) -> int:
    """Continue what is given; the exit status. Raises ``ConfigError`` where nobody can."""
    parsed = parser().parse_args(argv)
    source = open_source(parsed)
    options = {"max_tokens": 128} | sampling(parsed)
    status = 0
    try:
        for text in _texts(parsed.quick):
            status = max(status, _continue(source, text, options, parsed.stats))
    finally:
        source.close()
    return status


def _texts(quick: str | None) -> Iterator[str]:
    if quick is not None:
        yield quick
    elif not sys.stdin.isatty():
        if text := sys.stdin.read():
            yield text
    else:
        while True:
            try:
                text = input("> ")
            except (EOFError, KeyboardInterrupt):
                print()
                return
            if text:
                yield text


def _continue(source: Source, text: str, options: dict, stats: bool) -> int:
    watch = Stopwatch.now()
    print(text, end="", flush=True)
    try:
        for piece in source.complete(text, options):
            if piece:
                watch.piece()
                print(printable(piece), end="", flush=True)
    except KeyboardInterrupt:
        pass
    except (RequestError, RequestFailed, ConfigError) as error:
        print(f"\noctavo complete: {error}", file=sys.stderr)
        return 1
    print()
    if stats:
        print(watch.line())
    return 0
