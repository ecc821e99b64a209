"""ChatTurn: a conversation's next turn, whatever API asks for it: prompt, tools, grammar, and the answers as events.

Streams and whole answers are made of the same events, so that they cannot differ (``news``).
"""

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

from starlette.requests import Request

from octavo.errors import BadRequest, EngineDead, OctavoError, RequestFailed, Unsupported
from octavo.front.chat.constraint import constraint
from octavo.front.chat.tools import for_template, loosened, read_choice, read_tools
from octavo.front.parsers.base import Format, ParserStream, Tool
from octavo.front.parsers.events import Event, Kind
from octavo.front.server.openai.job import Tally, check
from octavo.front.server.openai.news import News, Reader
from octavo.front.server.openai.schema import ChatBody, ChatFields, Usage
from octavo.front.server.service import Service, Work
from octavo.outputs import CompletionOutput, RequestOutput
from octavo.params import RequestOutputKind, SamplingParams, StructuredOutputsParams

#: Tokens at a prompt's end among which the end of a reasoning that the template left empty stands.
_CLOSED = 8


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
    if continues and body.add_generation_prompt is None and body.messages[-1].role != "assistant":
        raise BadRequest(
            f"continue_final_message goes on with the assistant's message, but the last is of role "
            f"{body.messages[-1].role[:40]!r}; to go on with that, set add_generation_prompt to false",
            "continue_final_message",
        )
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
        self.format: Format | None = service.forced if self.choice.forced else service.format
        self._readers: dict[int, Reader] = {}
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
        return self.work.streams[0].prompt_token_ids

    async def prompt(self) -> list[int]:
        """Token ids of the conversation, before they are cut to ``truncate_prompt_tokens``."""
        return await render(self.service, self.body, self.request)

    def params(self) -> SamplingParams:
        """How the engine samples, but for what depends on the prompt."""
        body = self.body
        asked = self.asked_max_tokens
        limit = self.service.engine.config.text.generation_defaults.get("max_tokens") if asked is None else asked
        if limit == 0:
            name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
            raise BadRequest(f"{name} must be at least 1", name)
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
        asked = constraint(self.format, tools or self.tools, self.choice, self.parallel, params.structured_outputs)
        form = self.format
        within = asked is not None and asked.lark is not None and form is not None and form.grammar_reasons
        if within and self._budget is not None:
            raise BadRequest(
                "thinking_token_budget cannot be had together with tools that are strict or forced: this model reasons "
                "in the messages among which its calls stand",
                "thinking_token_budget",
            )
        if form is not None and form.reasoning_end and not within and (asked is not None or self._budget is not None):
            # A format of messages reasons, or calls, until the one whose header says that it is the answer.
            begun = not (self.continues if form.spec.fused else self._open(ids).reasoning_over)
            # Who does not begin in reasoning may open it with the first token, unless the prompt has closed it.
            may = not (self.continues or form.reasoning_end[-1] in ids[-_CLOSED:])
            if begun or (may and len(form.reasoning_start) == 1):
                asked = asked or StructuredOutputsParams(free=True)
                asked.after, asked.opens, asked.open = form.reasoning_end, form.reasoning_start, begun
                asked.budget = self._budget
        return params if asked is params.structured_outputs else params.clone(structured_outputs=asked)

    def __aiter__(self) -> AsyncIterator[News]:
        return self._news()

    @property
    def work(self) -> Work:
        """Once started."""
        assert self._work is not None, "the turn was not started"
        return self._work

    async def _news(self) -> AsyncIterator[News]:
        async for output in self.work.streams[0]:
            for news in self.news(output):
                yield news

    def news(self, output: RequestOutput) -> Iterator[News]:
        """What an output of the engine tells."""
        self.last = output
        self.tally.count(0, output)
        for choice in output.outputs:
            yield self.read(output, choice)

    def read(self, output: RequestOutput, choice: CompletionOutput) -> News:
        """The news that the engine's output of one answer holds."""
        if self.format is None:
            text = choice.text
            return News(choice.index, [Event(Kind.CONTENT, text)] if text else [], choice, choice.finish_reason)
        reader = self._readers.get(choice.index)
        if reader is None:
            reader = self._readers[choice.index] = Reader(
                self._open(output.prompt_token_ids), self.choice.mode == "named", self.parallel
            )
        news = reader.read(choice)
        self.tally.reasoning[choice.index] = reader.reasoning_tokens
        return news

    def _open(self, ids: Sequence[int]) -> ParserStream:
        """A parser of an answer to the prompt ``ids``."""
        assert self.format is not None
        # An answer that goes on with a message is content, unless that leaves its reasoning open.
        kwargs = self.kwargs | ({"enable_thinking": False, "thinking": False} if self.continues else {})
        return self.format.open(
            tools=self.tools,
            prompt_ids=ids,
            template_kwargs=kwargs,
            reasoning=self.body.include_reasoning is not False,
            calls=self.choice.mode != "none",
            history_calls=self._history_calls(),
            keep_special=not self.body.skip_special_tokens,
        )

    def _history_calls(self) -> int:
        return sum(len(message.tool_calls or ()) for message in self.body.messages)

    def why_aborted(self) -> OctavoError:
        """Of an answer that nobody here has ended: an API without such an end says that it failed."""
        if self.service.draining:
            return EngineDead("the server is shutting down")
        return RequestFailed("the answer was ended before it was complete: its time was up")

    def usage(self) -> Usage:
        """Of the news so far."""
        return self.tally.usage()

    def close(self) -> None:
        if self._work is not None:
            self._work.close()
