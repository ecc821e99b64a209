"""`octavo chat`: a conversation in the terminal."""

import sys
from collections.abc import Iterator, Sequence

from octavo.cli.source import Source, Stopwatch, add_source_flags, open_source, sampling
from octavo.config.cli import Parser
from octavo.errors import ConfigError, RequestError, RequestFailed

HELP = "Type a message; /new begins anew, /exit (or Ctrl-D) ends, Ctrl-C stops an answer."


def parser() -> Parser:
    found = Parser(prog="octavo chat", usage="octavo chat [MODEL] [--url URL] [flags]", description=__doc__)
    add_source_flags(found)
    found.add_argument("--system-prompt", metavar="TEXT", help="what the model is told before the conversation")
    return found


def main(argv: Sequence[str]) -> int:
    """Talk until the user has enough; the exit status."""
    flags = parser()
    parsed = flags.parse_args(argv)
    try:
        source = open_source(parsed)
    except ConfigError as error:
        print(f"octavo chat: {error}", file=sys.stderr)
        return 1
    opening = [{"role": "system", "content": parsed.system_prompt}] if parsed.system_prompt else []
    options = sampling(parsed)
    try:
        if parsed.quick is not None:
            return 0 if _turn(source, [*opening, _user(parsed.quick)], options, parsed.stats) is not None else 1
        return _talk(source, opening, options, parsed.stats)
    finally:
        source.close()


def _talk(source: Source, opening: list[dict], options: dict, stats: bool) -> int:
    if sys.stdin.isatty():
        print(HELP)
    messages = list(opening)
    for text in _lines():
        if text in ("/exit", "/quit"):
            break
        if text == "/new":
            messages = list(opening)
            continue
        messages.append(_user(text))
        answer = _turn(source, messages, options, stats)
        if answer is None:
            messages.pop()
        else:
            messages.append({"role": "assistant", "content": answer})
    return 0


def _lines() -> Iterator[str]:
    if sys.stdin.isatty():
        try:
            import readline  # noqa: F401 (input() edits lines once this is imported)
        except ImportError:
            pass
    while True:
        try:
            text = input("> " if sys.stdin.isatty() else "").strip()
        except EOFError:
            return
        except KeyboardInterrupt:
            print()
            return
        if text:
            yield text


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def _turn(source: Source, messages: list[dict], options: dict, stats: bool) -> str | None:
    """Print the answer as it comes and give it back; None where there is none."""
    watch, answer = Stopwatch.now(), ""
    try:
        for piece in source.chat(messages, options):
            if piece:
                watch.piece()
                print(piece, end="", flush=True)
                answer += piece
    except KeyboardInterrupt:
        pass
    except (RequestError, RequestFailed, ConfigError) as error:
        print(f"octavo chat: {error}", file=sys.stderr)
        return None
    print()
    if stats:
        print(watch.line())
    return answer
