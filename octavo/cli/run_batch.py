"""`octavo run-batch`: answer a file of requests, one JSON object a line, in OpenAI's batch format.

Ends with 0 where every line was answered, 3 where some lines have errors, 1 where it could not go on: what was
answered until then is in OUTPUT.partial.
"""

import asyncio
import os
import sys
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from octavo.common import log
from octavo.common.words import nearest
from octavo.config import env
from octavo.config.args import EngineArgs, ServeArgs
from octavo.config.cli import Parser, add_flags, add_model, ask, one_model
from octavo.config.engine import WORKER
from octavo.errors import BadRequest, ConfigError, EngineDead

#: What a line may ask for. Routes that the server refuses give an error line that says so.
URLS = (
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/score",
    "/v1/rerank", "/score", "/rerank", "/v2/rerank", "/pooling", "/classify",
)  # fmt: skip
#: Flags of `octavo serve` that a batch has too: the others are of sockets and their clients.
OURS = frozenset(
    {"served_model_name", "max_body_size", "max_prompts", "response_role", "trust_request_chat_template",
     "default_chat_template_kwargs", "return_tokens_as_token_ids", "request_timeout", "log_level", "log_format"}
)  # fmt: skip
ALL_FINE, FAILED, SOME_ERRORS = 0, 1, 3
#: Lines read ahead of the oldest that is not answered, for each that may run.
AHEAD = 4
#: Times that a line is handed in again where the queue is full, a second each.
PATIENCE = 600
MAX_ID = 512


class Line(msgspec.Struct):
    """A request."""

    custom_id: str
    url: str
    body: dict[str, Any]
    method: str = "POST"


def parser() -> Parser:
    found = Parser(
        prog="octavo run-batch",
        usage="octavo run-batch [MODEL] -i INPUT -o OUTPUT [flags]",
        description=__doc__,
    )
    add_model(found)
    found.add_argument("-i", "--input-file", metavar="INPUT", required=True, help="requests, one a line (.jsonl)")
    found.add_argument("-o", "--output-file", metavar="OUTPUT", required=True, help="where the answers go")
    found.add_argument(
        "--max-concurrency", type=int, metavar="N", help="most lines that run at once (twice --max-num-seqs)"
    )
    ours = {spec.name for spec in fields(EngineArgs)} | OURS
    add_flags(found, ServeArgs, skip=["model", *(spec.name for spec in fields(ServeArgs) if spec.name not in ours)])
    return found


def main(argv: Sequence[str], worker: str = WORKER) -> int:
    """Answer the file; the exit status."""
    flags = parser()
    parsed = flags.parse_args(argv)
    one_model(flags, parsed)
    if parsed.max_concurrency is not None and not 1 <= parsed.max_concurrency <= 1 << 16:
        flags.error(f"--max-concurrency must be from 1 to 65536, got {parsed.max_concurrency}")
    try:
        args = ask(ServeArgs, parsed)
    except ConfigError as error:
        flags.error(str(error))
    source, target = Path(parsed.input_file), Path(parsed.output_file)
    for path in (parsed.input_file, parsed.output_file):
        if path.startswith(("http://", "https://")):
            raise ConfigError(f"{path}: requests and answers are files of this machine")
    log.setup(args.log_level or env.read("OCTAVO_LOG_LEVEL") or "WARNING")
    try:
        with source.open("rb") as lines, _partial(target).open("wb") as answers:
            status = _run(args, parsed.max_concurrency, lines, answers, worker)
    except OSError as error:
        raise ConfigError(f"{error.filename or target}: {error.strerror}") from None
    if status != FAILED:
        _partial(target).replace(target)
    return status


def _partial(target: Path) -> Path:
    return target.with_name(target.name + ".partial")


def _run(args: ServeArgs, most: int | None, lines: BinaryIO, answers: BinaryIO, worker: str) -> int:
    from octavo.async_llm import AsyncLLM
    from octavo.config.resolve import resolve
    from octavo.front.metrics.prometheus import Prometheus
    from octavo.front.server.app import build_app
    from octavo.launch.asked import server_options
    from octavo.launch.inprocess import post

    options = server_options(args)
    config = resolve(args, worker=worker)
    most = most or 2 * config.schedule.max_num_seqs

    async def work(llm: AsyncLLM) -> int:
        metrics = Prometheus(config.text.served_names[0], llm.engine.ready.max_model_len, {})
        app, _ = build_app(llm.engine, options, metrics)

        async def answer(line: Line) -> tuple[int, str | None, Any]:
            body = msgspec.json.encode(line.body)
            for _ in range(PATIENCE):
                said = await post(app, line.url, body)
                if said.status != 429:
                    break
                await asyncio.sleep(1.0)
            return said.status, said.headers.get("x-request-id"), _json(said.body)

        count = errors = 0
        with _Progress() as progress:
            async for result in ordered(_read(lines, options.max_body_size), answer, most):
                if llm.errored:
                    raise EngineDead(str(llm.engine.dead))
                answers.write(msgspec.json.encode(result) + b"\n")
                count, errors = count + 1, errors + (result["error"] is not None)
                progress.tell(errors)
        answers.flush()
        os.fsync(answers.fileno())
        print(f"octavo run-batch: {count} lines, {errors} of them with errors", file=sys.stderr)
        return SOME_ERRORS if errors else ALL_FINE

    with AsyncLLM.from_config(config) as llm:
        try:
            return asyncio.run(work(llm))
        except EngineDead as error:
            print(f"octavo run-batch: the engine is gone: {error}; the answers until then are kept", file=sys.stderr)
            return FAILED


async def ordered(
    lines: Iterator[tuple[Line | None, str | None, str]],
    answer: Callable[[Line], Awaitable[tuple[int, str | None, Any]]],
    most: int,
) -> AsyncIterator[dict[str, Any]]:
    """A result for each of ``lines``, in their order, with at most ``most`` calls of ``answer`` at once."""
    room = asyncio.Semaphore(most)

    async def one(line: Line | None, name: str | None, wrong: str) -> dict[str, Any]:
        if line is None:
            return _result(name, 400, None, _error(wrong))
        async with room:
            return _result(name, *await answer(line))

    pending: deque[asyncio.Task[dict[str, Any]]] = deque()
    try:
        for line, name, wrong in lines:
            pending.append(asyncio.ensure_future(one(line, name, wrong)))
            while len(pending) >= AHEAD * most or (pending and pending[0].done()):
                yield await pending.popleft()
            await asyncio.sleep(0)
        while pending:
            yield await pending.popleft()
    finally:
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


def _read(lines: BinaryIO, longest: int) -> Iterator[tuple[Line | None, str | None, str]]:
    """(request, its id, what is wrong with it) of each line that is not blank."""
    seen: set[str] = set()
    number = 0
    while data := lines.readline(longest + 1):
        number += 1
        if len(data) > longest:
            while data and not data.endswith(b"\n"):
                data = lines.readline(longest + 1)
            yield None, None, f"line {number} is longer than {longest} bytes (--max-body-size)"
            continue
        if not data.strip():
            continue
        name: str | None = None
        try:
            found = _json(data)
            given = found.get("custom_id") if isinstance(found, dict) else None
            name = given[:MAX_ID] if isinstance(given, str) else None
            line = _checked(found)
            if line.custom_id in seen:
                raise BadRequest(f"custom_id {line.custom_id!r} was used by a line before")
            seen.add(line.custom_id)
            yield line, name, ""
        except BadRequest as error:
            yield None, name, f"line {number}: {error.message}"


def _checked(found: Any) -> Line:
    """Raises ``BadRequest``."""
    if found is None:
        raise BadRequest("it is not valid JSON")
    try:
        line = msgspec.convert(found, Line)
    except msgspec.ValidationError as error:
        raise BadRequest(str(error)) from None
    if not 0 < len(line.custom_id) <= MAX_ID:
        raise BadRequest(f"custom_id must have 1 to {MAX_ID} characters")
    if line.method.upper() != "POST":
        raise BadRequest(f"method must be POST, got {line.method[:80]!r}")
    if line.url not in URLS:
        raise BadRequest(
            f"url {line.url[:200]!r} is none of a batch{nearest(line.url[:200], URLS)}; known: {', '.join(URLS)}"
        )
    for name in ("stream", "background"):
        if line.body.get(name):
            raise BadRequest(f"{name} is not possible in a batch")
    return line


def _json(data: bytes) -> Any:
    """None for what is no JSON."""
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None


def _result(name: str | None, status: int, request_id: str | None, body: Any) -> dict[str, Any]:
    """A line of the output."""
    error = None
    if status != 200:
        body, error = None, body.get("error", body) if isinstance(body, dict) else _error(f"status {status}")
    response = {"status_code": status, "request_id": request_id or "", "body": body}
    return {"id": f"batch_{os.urandom(12).hex()}", "custom_id": name, "response": response, "error": error}


def _error(message: str) -> dict[str, Any]:
    return {"error": {"message": message, "type": "BadRequestError", "param": None, "code": 400}}


class _Progress:
    """A bar where somebody looks."""

    def __enter__(self) -> "_Progress":
        from tqdm.auto import tqdm

        self._bar = tqdm(desc="Answered", unit="line", disable=None, dynamic_ncols=True)
        return self

    def tell(self, errors: int) -> None:
        if errors:
            self._bar.set_postfix_str(f"{errors} with errors", refresh=False)
        self._bar.update()

    def __exit__(self, *_: object) -> None:
        self._bar.close()
