"""`octavo chat`: a conversation in the terminal."""

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from octavo.cli import talk
from octavo.cli.source import Source, Stopwatch, Usage, add_source_flags, open_source, printable, sampling
from octavo.cli.terminal import History, dim, read_messages
from octavo.common.words import nearest
from octavo.config.cli import Parser
from octavo.errors import ConfigError, RequestError, RequestFailed

HELP = "Type a message; /help tells the commands, Ctrl-C stops an answer, Ctrl-D ends."
TYPING = (
    'A line that ends in \\ goes on in the next one. """ begins and ends a text of many lines.\n'
    "A message that begins with / is typed with //."
)


def parser() -> Parser:
    found = Parser(prog="octavo chat", usage="octavo chat [MODEL] [--url URL] [flags]", description=__doc__)
    add_source_flags(found)
    found.add_argument("--system-prompt", metavar="TEXT", help="what the model is told before the conversation")
    found.add_argument("--no-history", action="store_true", help="keep nothing of what is typed for the next time")
    return found


def main(argv: Sequence[str]) -> int:
    """Talk until the user has enough; the exit status. Raises ``ConfigError`` where there is nobody to talk to."""
    parsed = parser().parse_args(argv)
    source = open_source(parsed)
    session = Session(source, sampling(parsed), parsed.system_prompt, parsed.stats)
    try:
        if parsed.quick is not None:
            return 0 if session.say(parsed.quick) else 1
        if sys.stdin.isatty():
            print(HELP)
        with History(keep=not parsed.no_history):
            session.run(read_messages())
        return 0
    finally:
        source.close()


class Session:
    """A conversation, and the commands that change it. ``messages`` are those after the system prompt."""

    def __init__(self, source: Source, options: dict[str, Any], system: str | None = None, stats: bool = False):
        self.source = source
        self.options = options
        self.system = system
        self.messages: list[dict[str, str]] = []
        self.stats = stats
        self._last: tuple[Stopwatch, Usage | None] | None = None

    def run(self, texts: Iterator[str]) -> None:
        """Answer each text, and obey each command, until one ends it."""
        for text in texts:
            if not text.startswith("/") or text.startswith("//"):
                self.say(text.removeprefix("/") if text.startswith("//") else text)
                continue
            name, _, rest = text[1:].partition(" ")
            if name in ("exit", "quit"):
                return
            try:
                self.command(name, rest.strip())
            except ConfigError as error:
                print(f"octavo chat: {error}", file=sys.stderr)

    def command(self, name: str, rest: str) -> None:
        """Obey ``/name rest``. Raises ``ConfigError`` with a sentence for what cannot be done."""
        if name not in COMMANDS:
            raise ConfigError(f"unknown command /{name}{nearest(name, COMMANDS)}; /help tells all")
        COMMANDS[name][0](self, rest)

    def say(self, text: str) -> bool:
        """Ask, and print the answer as it comes; whether there was one. Without one the question is taken back."""
        self.messages.append({"role": "user", "content": text})
        answer = self._answer()
        if answer is None:
            self.messages.pop()
            return False
        self.messages.append({"role": "assistant", "content": answer})
        return True

    def _answer(self) -> str | None:
        watch, answer, stopped = Stopwatch.now(), "", False
        kind, end = "", "\n"  # of what was shown last: its kind, its last character
        opening = [{"role": "system", "content": self.system}] if self.system else []
        try:
            for piece in self.source.chat([*opening, *self.messages], self.options):
                if not piece.text:
                    continue
                watch.piece()
                if piece.kind == "content":
                    answer += piece.text
                elif not sys.stdout.isatty():
                    continue  # a pipe gets the answer alone
                shown = printable(piece.text)
                if piece.kind == "reasoning" and kind != "reasoning":
                    shown = shown.lstrip("\n")
                if piece.kind == "call":
                    shown = f"calls {shown} "
                if end != "\n" and (piece.kind == "call" or piece.kind not in (kind, "arguments")):
                    print()
                kind, end = piece.kind, shown[-1:] or end
                print(shown if kind == "content" else dim(shown), end="", flush=True)
        except KeyboardInterrupt:
            stopped = True
        except (RequestError, RequestFailed, ConfigError) as error:
            print(f"octavo chat: {error}", file=sys.stderr)
            return None
        print(dim(" [stopped]") if stopped else "")
        self._last = watch, None if stopped else self.source.usage
        if self.stats:
            print(watch.line(self._last[1]))
        return None if stopped and not answer else answer

    def help(self, rest: str) -> None:
        width = max(len(f"{name} {words}") for name, (_, words, _) in COMMANDS.items())
        for name, (_, words, text) in COMMANDS.items():
            print(f"  /{f'{name} {words}':{width}}  {text}")
        print(f"  /{'exit':{width}}  end (or Ctrl-D)")
        print(TYPING)

    def clear(self, rest: str) -> None:
        self.messages.clear()

    def set_system(self, rest: str) -> None:
        if rest:
            self.system = None if rest == "-" else rest
        print(f"system prompt: {self.system or 'none'}")

    def set_option(self, rest: str) -> None:
        name, _, value = rest.partition(" ")
        if name:
            talk.set_option(self.options, name, value.strip())
        for key, said in self.options.items():
            print(f"{key} {said}")
        if not self.options:
            print(f"nothing is set; possible: {', '.join(talk.OPTIONS)}")

    def save(self, rest: str) -> None:
        talk.save(rest, self.system, self.messages, self.options)
        print(f"{len(self.messages)} messages saved")

    def load(self, rest: str) -> None:
        self.system, self.messages, self.options = talk.load(rest)
        print(f"{len(self.messages)} messages")
        for message in self.messages[-2:]:
            print(("> " if message["role"] == "user" else "") + printable(message["content"]))

    def tell_stats(self, rest: str) -> None:
        if rest:
            if rest not in ("on", "off"):
                raise ConfigError(f"/stats takes on or off, not {rest[:40]!r}")
            self.stats = rest == "on"
        elif self._last is None:
            print("nothing was answered yet")
        else:
            print(self._last[0].line(self._last[1]))

    def retry(self, rest: str) -> None:
        if not self.messages:
            raise ConfigError("there is nothing to retry")
        kept = self.messages.copy()
        if self.messages[-1]["role"] == "assistant":
            self.messages.pop()
        if not self.say(self.messages.pop()["content"]):
            self.messages = kept


#: Name -> (what it does, words behind it, help). /exit and /quit end the loop itself.
COMMANDS: dict[str, tuple[Callable[[Session, str], None], str, str]] = {
    "help": (Session.help, "", "this"),
    "clear": (Session.clear, "", "begin anew, with the same system prompt"),
    "new": (Session.clear, "", "the same"),
    "system": (Session.set_system, "[TEXT]", "what the model is told first; - takes it away"),
    "set": (
        Session.set_option,
        "[NAME [VALUE]]",
        "a sampling value, as /set temperature 0.7; without a value unset it",
    ),
    "retry": (Session.retry, "", "ask the last question again"),
    "save": (Session.save, "FILE", "write the conversation"),
    "load": (Session.load, "FILE", "go on with a saved one"),
    "stats": (Session.tell_stats, "[on|off]", "speed of the last answer; on: of each"),
}
