"""Where `octavo chat` and `octavo complete` get their text: a running server, or an engine in this process."""

import asyncio
import json
import time
import urllib.error
import urllib.request
from argparse import Namespace
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from octavo.common import log
from octavo.config import env
from octavo.config.args import EngineArgs
from octavo.config.cli import Parser, add_flags, ask
from octavo.errors import ConfigError, RequestError, RequestFailed
from octavo.outputs import RequestOutput
from octavo.params import RequestOutputKind

#: Seconds to connect, and between two pieces of an answer.
PATIENCE = 300.0


class Source(Protocol):
    """Text that streams."""

    def chat(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> Iterator[str]:
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
    parser.add_argument("-q", "--quick", metavar="TEXT", help="answer this one text and end")
    parser.add_argument("--stats", action="store_true", help="tell time to first token and tokens per second")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="longest answer")
    parser.add_argument("--temperature", type=float, metavar="T", help="0: always the likeliest token")
    add_flags(parser, EngineArgs, skip=("model", "disable_log_stats"))


def open_source(parsed: Namespace) -> Source:
    """What the flags ask for. Raises ``ConfigError``."""
    if parsed.url is None:
        return Local(ask(EngineArgs, parsed))
    if parsed.model is not None:
        raise ConfigError("a server at --url has its own model: name it with --model-name, or leave --url out")
    return Remote(parsed.url, parsed.api_key or env.read("OCTAVO_API_KEY"), parsed.model_name)


def sampling(parsed: Namespace) -> dict[str, Any]:
    """The sampling values that were said."""
    said = {"max_tokens": parsed.max_tokens, "temperature": parsed.temperature}
    return {name: value for name, value in said.items() if value is not None}


@dataclass
class Stopwatch:
    """Tells of the speed of one answer."""

    begin: float
    first: float | None = None
    pieces: int = 0

    @classmethod
    def now(cls) -> "Stopwatch":
        return cls(time.monotonic())

    def piece(self) -> None:
        self.first = self.first or time.monotonic()
        self.pieces += 1

    def line(self) -> str:
        if self.first is None:
            return "[no text]"
        spent = time.monotonic() - self.first
        speed = f", {(self.pieces - 1) / spent:.1f} pieces per second" if spent and self.pieces > 1 else ""
        return f"[{(self.first - self.begin) * 1e3:.0f} ms to the first token, {self.pieces} pieces{speed}]"


class Remote:
    """A server that speaks OpenAI's API. ``url`` may end in /v1. Raises ``ConfigError`` where nobody answers."""

    def __init__(self, url: str, key: str | None, model: str | None):
        self._url = url.rstrip("/").removesuffix("/v1")
        if not self._url.startswith(("http://", "https://")):
            raise ConfigError(f"--url {url!r} must begin with http:// or https://")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
        self._model = model or self._first_model()

    def chat(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> Iterator[str]:
        body = {"messages": list(messages), **options}
        return (choice["delta"].get("content") or "" for choice in self._stream("/v1/chat/completions", body))

    def complete(self, prompt: str, options: Mapping[str, Any]) -> Iterator[str]:
        return (choice["text"] for choice in self._stream("/v1/completions", {"prompt": prompt, **options}))

    def close(self) -> None:
        pass

    def _first_model(self) -> str:
        with self._open("/v1/models", None) as answer:
            return json.load(answer)["data"][0]["id"]

    def _stream(self, path: str, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        with self._open(path, {"model": self._model, "stream": True, **body}) as answer:
            for line in answer:
                if not line.startswith(b"data: ") or line.strip() == b"data: [DONE]":
                    continue
                chunk = json.loads(line[6:])
                if "error" in chunk:
                    raise RequestFailed(chunk["error"]["message"])
                yield from chunk["choices"]

    def _open(self, path: str, body: dict[str, Any] | None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(self._url + path, data, self._headers)
        try:
            return urllib.request.urlopen(request, timeout=PATIENCE)
        except urllib.error.HTTPError as error:
            raise RequestError(_reason(error)) from None
        except (urllib.error.URLError, OSError) as error:
            raise ConfigError(f"no server answers at {self._url}: {getattr(error, 'reason', error)}") from None


class Local:
    """An engine in this process. Raises ``ConfigError`` where it cannot start."""

    def __init__(self, args: EngineArgs):
        from octavo.async_llm import AsyncLLM
        from octavo.config.resolve import resolve

        log.setup(env.read("OCTAVO_LOG_LEVEL") or "WARNING")
        self._loop = asyncio.new_event_loop()
        self._llm = AsyncLLM.from_config(resolve(args), inline=True)

    def chat(self, messages: Sequence[Mapping[str, str]], options: Mapping[str, Any]) -> Iterator[str]:
        return self._stream(self._llm.engine.render_chat(messages), options)

    def complete(self, prompt: str, options: Mapping[str, Any]) -> Iterator[str]:
        return self._stream(prompt, options)

    def close(self) -> None:
        self._llm.close()
        self._loop.close()

    def _stream(self, prompt: str | list[int], options: Mapping[str, Any]) -> Iterator[str]:
        engine = self._llm.engine
        sampling = {"max_tokens": None, "output_kind": RequestOutputKind.DELTA, **options}
        stream = self._loop.run_until_complete(engine.submit(prompt, engine.intake.default_params().clone(**sampling)))
        outputs = aiter(stream)
        try:
            while (output := self._loop.run_until_complete(_next(outputs))) is not None:
                yield output.outputs[0].text
        finally:
            stream.abort()


async def _next(outputs: AsyncIterator[RequestOutput]) -> RequestOutput | None:
    return await anext(outputs, None)


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        return json.load(error)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"the server says {error.code} {error.reason}"
