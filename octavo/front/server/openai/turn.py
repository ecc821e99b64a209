"""ChatTurn: a conversation's next turn, whatever API asks for it: prompt, tools, grammar, and the answers as events.

Streams and whole answers are made of the same events, so that they cannot differ; ``Message`` folds them.
"""

from collections.abc import AsyncIterator, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from starlette.requests import Request

from octavo.errors import BadRequest, Unsupported
from octavo.front.chat.constraint import constraint
from octavo.front.chat.guided import GuidedCalls
from octavo.front.chat.tools import for_template, loosened, read_choice, read_tools
from octavo.front.parsers.base import Format, ParserStream, Tool
from octavo.front.parsers.events import Event, Kind
from octavo.front.server.openai.job import Tally, check
from octavo.front.server.openai.schema import ChatBody, ChatFields, Usage
from octavo.front.server.service import Service, Work
from octavo.outputs import CompletionOutput, RequestOutput
from octavo.params import RequestOutputKind, SamplingParams, StructuredOutputsParams

#: Tokens at a prompt's end among which the end of a reasoning that the template left empty stands.
_CLOSED = 8


class News(Struct, gc=False):
    """What is new of one answer. ``finish_reason`` is "tool_calls" where calls ended it."""

    index: int
    events: list[Event]
    output: CompletionOutput
    finish_reason: str | None


class Call(NamedTuple):
    """A tool call. ``arguments``: pieces of its JSON."""

    id: str
    name: str
    arguments: list[str]


class Message:
    """News of one answer put together."""

    def __init__(self) -> None:
        self._reasoning: list[str] = []
        self._content: list[str] = []
        self._calls: list[Call] = []
        self.finish_reason: str | None = None
        self.stop_reason: int | str | None = None

    def add(self, news: News) -> None:
        for event in news.events:
            if event.kind is Kind.CONTENT:
                self._content.append(event.text)
            elif event.kind is Kind.REASONING:
                self._reasoning.append(event.text)
            elif event.kind is Kind.CALL:
                self._calls.append(Call(event.id, event.text, []))
            elif event.kind is Kind.ARGUMENTS:
                self._calls[event.index].arguments.append(event.text)
        if news.finish_reason is not None:
            self.finish_reason, self.stop_reason = news.finish_reason, news.output.stop_reason

    @property
    def reasoning(self) -> str | None:
        return "".join(self._reasoning) or None

    @property
    def content(self) -> str | None:
        """None where the answer is reasoning or calls only."""
        text = "".join(self._content)
        return text if text or not (self._reasoning or self._calls) else None

    @property
    def calls(self) -> list[tuple[str, str, str]]:
        """(id, name, arguments) of each call."""
        return [(call.id, call.name, "".join(call.arguments)) for call in self._calls]


async def render(service: Service, body: ChatFields, request: Request) -> list[int]:
    """The prompt that ``body.messages`` make."""
    options = service.options
    if body.add_special_tokens:
        raise Unsupported(
            "add_special_tokens is not supported for chat: the template writes them", "add_special_tokens"
        )
    if body.chat_template is not None and not options.trust_request_chat_template:
        raise BadRequest(
            "chat_template of a request needs a server started with --trust-request-chat-template", "chat_template"
        )
    choice = read_choice(body.tool_choice, read_tools(body.tools))
    shown = body.tools if choice.mode != "none" or not options.hide_unused_tools else None
    more = template_kwargs(service, body)
    continues = bool(body.continue_final_message)
    generation = not continues if body.add_generation_prompt is None else body.add_generation_prompt
    return await service.render_chat(
        len(await request.body()),
        [message.model_dump(exclude_unset=True) for message in body.messages],
        tools=for_template(shown) if shown else None,
        documents=body.documents,
        add_generation_prompt=generation,
        continue_final_message=continues,
        chat_template=body.chat_template,
        chat_template_kwargs=more,
        **_cut(body),
    )


def _cut(body: ChatFields) -> dict[str, Any]:
    """How the prompt is cut, where it is to be answered."""
    if not isinstance(body, ChatBody):
        return {}
    return {"truncate": body.truncate_prompt_tokens, "side": body.truncation_side or "left"}


def template_kwargs(service: Service, body: ChatFields) -> dict[str, Any]:
    """Variables of the template: the server's, the request's, and what ``reasoning_effort`` says."""
    more = service.options.chat_template_kwargs | (body.chat_template_kwargs or {})
    if body.reasoning_effort is not None:
        more = {"enable_thinking": body.reasoning_effort != "none"} | more | {"reasoning_effort": body.reasoning_effort}
    return more


class ChatTurn:
    """``n`` answers to one conversation. ``start`` returns once the core has admitted them; then iterate for ``News``.

    Raises ``RequestError`` for what is asked wrongly. ``close`` aborts what has not finished; call it in any case.
    """

    prefix = "chatcmpl"

    def __init__(self, service: Service, body: ChatBody, request: Request):
        check(body)
        if body.top_logprobs is not None and not body.logprobs:
            raise BadRequest("top_logprobs needs logprobs", "top_logprobs")
        self.service, self.body, self.request = service, body, request
        self.model = service.model(body.model)
        self.id = f"{self.prefix}-{body.request_id or request.state.request_id}"
        self.tools = read_tools(body.tools)
        self.choice = read_choice(body.tool_choice, self.tools)
        self.continues = bool(body.continue_final_message or body.add_generation_prompt is False)
        self.kwargs = template_kwargs(service, body)
        self.tally = Tally(reasoned=True)
        self.format: Format | None = service.format
        #: Calls are a JSON list, since the model's own notation is not known.
        self._guided = False
        if self.choice.forced:
            self._guided = constraint(self.format, self.tools, self.choice, self.parallel).guided
        self._answers: dict[int, Answer] = {}
        #: The last output of the engine.
        self.last: RequestOutput | None = None
        self._work: Work | None = None
        self._budget = self._thinking_budget()
        if self.format is not None and not (self.format.has_reasoning or (self.tools and self.format.has_calls)):
            self.format = None  # there is nothing to read

    def _thinking_budget(self) -> int | None:
        asked = self.body.thinking_token_budget
        if asked is None or asked < 0:
            return None
        if self.format is None or not self.format.reasoning_end:
            raise BadRequest(
                "thinking_token_budget needs a model whose reasoning this server knows (--reasoning-parser)",
                "thinking_token_budget",
            )
        return asked

    @property
    def parallel(self) -> bool:
        """Whether one answer may hold several calls."""
        return self.body.parallel_tool_calls is not False

    @property
    def asked_max_tokens(self) -> int | None:
        """As the request says it."""
        longest = self.body.max_completion_tokens
        return self.body.max_tokens if longest is None else longest

    @property
    def capped(self) -> bool:
        """Whether an answer that would pass the model's length ends there, instead of being refused."""
        return self.asked_max_tokens is None

    @property
    def prompt_ids(self) -> list[int]:
        """Once started."""
        assert self._work is not None
        return self._work.streams[0].prompt_token_ids

    async def prompt(self) -> list[int]:
        """Token ids of the conversation, before they are cut to ``truncate_prompt_tokens``."""
        return await render(self.service, self.body, self.request)

    def params(self) -> SamplingParams:
        """How the engine samples, but for what depends on the prompt."""
        body = self.body
        asked = self.asked_max_tokens
        limit = self.service.engine.config.text.generation_defaults.get("max_tokens") if asked is None else asked
        if limit == 0:
            raise BadRequest("max_tokens must be at least 1", "max_tokens")
        logprobs = (body.top_logprobs or 0) if body.logprobs else None
        params = self.service.sampling(body, max_tokens=limit, logprobs=logprobs, prompt_logprobs=body.prompt_logprobs)
        if self.format is not None:
            params.skip_special_tokens = False  # they are marks to the parser, which drops what nobody asked for
        return params

    async def start(self) -> None:
        """Hand the turn to the core. Raises what a request can be refused with."""
        params = self.params()
        params.output_kind = RequestOutputKind.DELTA
        ids = await self.prompt()
        try:
            await self._submit(params, ids, self.tools)
        except BadRequest as error:
            if error.param != "tools" or all(tool.strict for tool in self.tools):
                raise
            # A schema that no grammar can hold; those that are not strict need not hold to the letter.
            await self._submit(params, ids, [loosened(tool) for tool in self.tools])

    async def _submit(self, params: SamplingParams, ids: list[int], tools: Sequence[Tool]) -> None:
        params = self.constrained(params, ids, tools)
        self._work = await self.service.submit(self.body, self.id, [ids], params, self.capped)

    def constrained(
        self, params: SamplingParams, ids: Sequence[int], tools: Sequence[Tool] | None = None
    ) -> SamplingParams:
        """``params`` with the grammar that the answer to ``ids`` must keep to, behind its reasoning. ``tools``: with
        other schemas than the request's own."""
        found = constraint(self.format, tools or self.tools, self.choice, self.parallel, params.structured_outputs)
        asked = found.params
        form = self.format
        if form is not None and form.reasoning_end and (asked is not None or self._budget is not None):
            begun = not self._open(ids).reasoning_over
            # Who does not begin in reasoning may open it with the first token, unless the prompt has closed it.
            may = not (self.continues or form.reasoning_end[-1] in ids[-_CLOSED:])
            if begun or (may and len(form.reasoning_start) == 1):
                asked = asked or StructuredOutputsParams(free=True)
                asked.after, asked.opens, asked.open = form.reasoning_end, form.reasoning_start, begun
                asked.budget = self._budget
        return params if asked is params.structured_outputs else params.clone(structured_outputs=asked)

    def __aiter__(self) -> AsyncIterator[News]:
        return self._news()

    async def _news(self) -> AsyncIterator[News]:
        assert self._work is not None, "the turn was not started"
        async for output in self._work.streams[0]:
            self.last = output
            self.tally.count(0, output)
            for choice in output.outputs:
                yield self.read(output, choice)

    def read(self, output: RequestOutput, choice: CompletionOutput) -> News:
        """The news that the engine's output of one answer holds."""
        if self.format is None and not self._guided:
            text = choice.text
            return News(choice.index, [Event(Kind.CONTENT, text)] if text else [], choice, choice.finish_reason)
        answer = self._answers.get(choice.index)
        if answer is None:
            parser = None if self.format is None else self._open(output.prompt_token_ids)
            answer = self._answers[choice.index] = Answer(self, parser, GuidedCalls() if self._guided else None)
        news = answer.read(choice)
        self.tally.reasoning[choice.index] = answer.reasoning_tokens
        return news

    def _open(self, ids: Sequence[int]) -> ParserStream:
        """A parser of an answer to the prompt ``ids``."""
        assert self.format is not None
        # An answer that goes on with a message is content, unless that leaves its reasoning open.
        kwargs = self.kwargs | ({"enable_thinking": False, "thinking": False} if self.continues else {})
        return self.format.open(
            tools=() if self._guided else self.tools,
            prompt_ids=ids,
            template_kwargs=kwargs,
            reasoning=self.body.include_reasoning is not False,
            calls=self.choice.mode != "none",
            history_calls=self._history_calls(),
            keep_special=not self.body.skip_special_tokens,
        )

    def _history_calls(self) -> int:
        return sum(len(message.tool_calls or ()) for message in self.body.messages)

    def usage(self) -> Usage:
        """Of the news so far."""
        return self.tally.usage()

    def close(self) -> None:
        if self._work is not None:
            self._work.close()


class Answer:
    """Reads one answer of a turn: the parser of the model's format, or the JSON list of calls, or one on the other."""

    def __init__(self, turn: ChatTurn, parser: ParserStream | None, guided: GuidedCalls | None):
        self._parser, self._guided = parser, guided
        self._named = turn.choice.mode == "named"
        self._most = None if turn.parallel else 1
        self._told_calls = 0

    @property
    def reasoning_tokens(self) -> int:
        return 0 if self._parser is None else self._parser.reasoning_tokens

    def read(self, output: CompletionOutput) -> News:
        if self._parser is None:
            events = [Event(Kind.CONTENT, output.text)]
        else:
            events = self._parser.feed(output.text, output.marks, output.token_ids)
            if output.finish_reason is not None:
                events += self._parser.finish(stopped=output.finish_reason == "stop" and output.stop_reason is None)
        if self._guided is not None:
            events = self._called(self._guided, events)
        events = [event for event in events if self._wanted(event)]
        reason: str | None = output.finish_reason
        if reason == "stop" and self._told_calls and not self._named and not self._truncated:
            reason = "tool_calls"
        return News(output.index, events, output, reason)

    @property
    def _truncated(self) -> bool:
        if self._guided is not None:
            return self._guided.truncated
        return self._parser is not None and self._parser.truncated

    @staticmethod
    def _called(guided: GuidedCalls, events: list[Event]) -> list[Event]:
        found: list[Event] = []
        for event in events:
            if event.kind is Kind.CONTENT:
                found += guided.feed(event.text)
            else:
                found.append(event)
        return found

    def _wanted(self, event: Event) -> bool:
        if self._most is not None and event.index >= self._most:
            return False
        if event.kind is Kind.CALL:
            self._told_calls += 1
        return True
