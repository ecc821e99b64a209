"""Where `octavo chat` and `octavo complete` get their text: a running server, or an engine in this process."""

import asyncio
import json
import sys
import time
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import AsyncIterator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

from octavo.cli.terminal import waiting
from octavo.common import log
from octavo.common.client import FAILURES, Identity, add_tls_flags, bearer, fetch, identity, reason, refusal
from octavo.config import env
from octavo.config.args import EngineArgs
from octavo.config.cli import Parser, add_flags, ask
from octavo.errors import ConfigError, RequestError, RequestFailed
from octavo.outputs import CompletionOutput, RequestOutput
from octavo.params import RequestOutputKind

if TYPE_CHECKING:
    from octavo.front.parsers.base import Format
    from octavo.front.parsers.events import Event

#: Seconds to connect, and between two pieces of an answer.
PATIENCE = 300.0
#: Control characters but tab and line feed: a model must not move the cursor or write a window's title.
_CONTROL = dict.fromkeys([*range(9), *range(11, 32), *range(127, 160)])


class Piece(NamedTuple):
    """A piece of an answer; a call's is its name or a part of its arguments."""

    text: str
    kind: Literal["content", "reasoning", "call", "arguments"] = "content"


class Usage(NamedTuple):
    """Tokens of one answer."""

    prompt: int
    output: int
    cached: int = 0


class Source(Protocol):
    """Text that streams. ``usage``: of the last answer, where it is known."""

    usage: Usage | None

    def chat(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> Iterator[Piece]:
        """The answer to a conversation, piece by piece. Raises ``RequestError`` or ``RequestFailed``."""

    def complete(self, prompt: str, options: Mapping[str, Any]) -> Iterator[str]:
        """The continuation of a text, piece by piece."""

    def close(self) -> None: ...


def add_source_flags(parser: Parser) -> None:
    """Flags that say where text comes from and how it is sampled."""
    parser.add_argument("model", nargs="?", metavar="MODEL", help="directory, GGUF file or hub name, to run it here")
    parser.add_argument("--url", metavar="URL", help="a running server instead, as http://localhost:8000")
    parser.add_argument("--model-name", metavar="NAME", help="the server's name of the model (its first)")
    parser.add_argument("--api-key", metavar="KEY", help="key for the server (OCTAVO_API_KEY)")
    add_tls_flags(parser)
    parser.add_argument("-q", "--quick", "--prompt", metavar="TEXT", help="answer this one text and end")
    parser.add_argument("--stats", action="store_true", help="tell time to first token and tokens per second")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer")
    parser.add_argument("--temperature", type=float, metavar="T", help="0: always the likeliest token")
    add_flags(parser, EngineArgs, skip=("model", "disable_log_stats"))


def open_source(parsed: Namespace) -> Source:
    """What the flags ask for. Raises ``ConfigError``."""
    if parsed.model is not None and any(map(str.isspace, parsed.model)) and not Path(parsed.model).exists():
        raise ConfigError(f"{parsed.model!r} is no model; a text to answer goes behind -q")
    if parsed.url is None:
        for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
            if getattr(parsed, name) is not None:
                raise ConfigError(f"--{name.replace('_', '-')} is for a server: it needs --url")
        return Local(ask(EngineArgs, parsed))
    if parsed.model is not None:
        raise ConfigError("a server at --url has its own model: name it with --model-name, or leave --url out")
    who = identity(parsed, parsed.url, env.read("OCTAVO_SSL_KEYFILE_PASSWORD"))
    return Remote(parsed.url, parsed.api_key or env.read("OCTAVO_API_KEY"), parsed.model_name, who)


def sampling(parsed: Namespace) -> dict[str, Any]:
    """The sampling values that were said."""
    said = {"max_tokens": parsed.max_tokens, "temperature": parsed.temperature}
    return {name: value for name, value in said.items() if value is not None}


def printable(text: str) -> str:
    """``text`` as it may be written to a terminal; as it is where standard output is none."""
    return text.translate(_CONTROL) if sys.stdout.isatty() else text


@dataclass
class Stopwatch:
    """Tells of the speed of one answer."""

    begin: float
    first: float | None = None
    last: float | None = None
    pieces: int = 0

    @classmethod
    def now(cls) -> "Stopwatch":
        return cls(time.monotonic())

    def piece(self) -> None:
        self.last = time.monotonic()
        self.first = self.first or self.last
        self.pieces += 1

    def line(self, usage: Usage | None = None) -> str:
        """The speed in words: of tokens where ``usage`` tells them, else of pieces of text."""
        if self.first is None or self.last is None:
            return "[no text]"
        count, what = (self.pieces, "pieces") if usage is None else (usage.output, "tokens")
        spent = self.last - self.first
        speed = f", {(count - 1) / spent:.1f} {what} per second" if spent and count > 1 else ""
        prompt = ""
        if usage is not None:
            cached = f" ({usage.cached} cached)" if usage.cached else ""
            prompt = f", prompt {usage.prompt}{cached}"
        return f"[{(self.first - self.begin) * 1e3:.0f} ms to the first token, {count} {what}{speed}{prompt}]"


class Remote:
    """A server that speaks OpenAI's API. ``url`` may end in /v1. Raises ``ConfigError`` where nobody answers."""

    def __init__(self, url: str, key: str | None, model: str | None, who: Identity | None = None):
        self._who = who
        self._url = url.rstrip("/").removesuffix("/v1")
        if not self._url.startswith(("http://", "https://")):
            raise ConfigError(f"--url {url!r} must begin with http:// or https://")
        self._headers = {"Content-Type": "application/json"} | bearer(key)
        self._model = model or self._first_model()
        self.usage: Usage | None = None

    def chat(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> Iterator[Piece]:
        body = {"messages": list(messages), "stream_options": {"include_usage": True}, **options}
        for choice in self._stream("/v1/chat/completions", body):
            delta = choice["delta"]
            if thought := delta.get("reasoning") or delta.get("reasoning_content"):
                yield Piece(thought, "reasoning")
            if text := delta.get("content"):
                yield Piece(text)
            for call in delta.get("tool_calls") or ():
                function = call.get("function") or {}
                if name := function.get("name"):
                    yield Piece(name, "call")
                if arguments := function.get("arguments"):
                    yield Piece(arguments, "arguments")

    def complete(self, prompt: str, options: Mapping[str, Any]) -> Iterator[str]:
        return (choice["text"] for choice in self._stream("/v1/completions", {"prompt": prompt, **options}))

    def close(self) -> None:
        pass

    def _first_model(self) -> str:
        why = "name it with --model-name"
        try:
            with self._open("/v1/models", None) as answer:
                told = answer.read()
            return json.loads(told)["data"][0]["id"]
        except RequestError as error:
            why = str(error)
        except ConfigError:
            raise
        except FAILURES as error:
            why = f"the answer broke off: {reason(error)}"
        except (ValueError, LookupError, TypeError):
            pass
        raise ConfigError(f"the server at {self._url} does not tell its model: {why}")

    def _stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        self.usage = None
        with self._open(path, {"model": self._model, "stream": True, **body}) as answer:
            for line in _lines(answer):
                if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise RequestFailed(chunk["error"]["message"])
                if told := chunk.get("usage"):
                    cached = (told.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
                    self.usage = Usage(told["prompt_tokens"], told["completion_tokens"], cached)
                yield from chunk["choices"]

    def _open(self, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers)
        try:
            return fetch(request, PATIENCE, self._who)
        except urllib.error.HTTPError as error:
            raise RequestError(refusal(error)) from None
        except FAILURES as error:
            raise ConfigError(f"no server answers at {self._url}: {reason(error)}") from None


class Local:
    """An engine in this process. Raises ``ConfigError`` where it cannot start."""

    def __init__(self, args: EngineArgs):
        log.setup(env.read("OCTAVO_LOG_LEVEL") or "WARNING")
        self._loop = asyncio.new_event_loop()
        with waiting(f"loading {args.model or 'the embedded model'} ..."):
            from octavo.async_llm import AsyncLLM
            from octavo.config.resolve import resolve

            self._llm = AsyncLLM.from_config(resolve(args), inline=True)
        self._format = self._parser()
        self.usage: Usage | None = None

    def chat(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> Iterator[Piece]:
        prompt = self._llm.engine.render_chat(messages)
        if self._format is None:
            yield from (Piece(output.text) for output in self._stream(prompt, options))
            return
        parser = self._format.open(prompt_ids=prompt)
        for output in self._stream(prompt, {**options, "skip_special_tokens": False}):
            yield from _pieces(parser.feed(output.text, output.marks))
        yield from _pieces(parser.finish())

    def complete(self, prompt: str, options: Mapping[str, Any]) -> Iterator[str]:
        return (output.text for output in self._stream(prompt, options))

    def close(self) -> None:
        self._llm.close()
        self._loop.close()

    def _parser(self) -> "Format | None":
        from octavo.front.parsers.base import choose

        engine = self._llm.engine
        if engine.tokenizer is None or engine.chat is None:
            return None
        return choose(engine.tokenizer, engine.chat.source)

    def _stream(self, prompt: str | list[int], options: Mapping[str, Any]) -> "Iterator[CompletionOutput]":
        engine, count = self._llm.engine, 0
        self.usage = None
        sampling = {"max_tokens": None, "output_kind": RequestOutputKind.DELTA, **options}
        stream = self._loop.run_until_complete(engine.submit(prompt, engine.intake.default_params().clone(**sampling)))
        outputs = aiter(stream)
        try:
            while (output := self._loop.run_until_complete(_next(outputs))) is not None:
                count += len(output.outputs[0].token_ids)
                self.usage = Usage(len(output.prompt_token_ids), count, output.num_cached_tokens or 0)
                yield output.outputs[0]
        finally:
            stream.abort()


def _pieces(events: "Iterable[Event]") -> Iterator[Piece]:
    return (Piece(event.text, "reasoning" if event.kind.name == "REASONING" else "content") for event in events)


async def _next(outputs: AsyncIterator[RequestOutput]) -> RequestOutput | None:
    return await anext(outputs, None)


def _lines(answer: Iterable[bytes]) -> Iterator[bytes]:
    """Raises ``RequestFailed`` where the rest does not come."""
    try:
        yield from answer
    except FAILURES as error:
        raise RequestFailed(f"the answer broke off: {reason(error)}") from None
