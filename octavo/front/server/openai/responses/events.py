"""The state machine of a response: parsed events in, ordered server-sent events out, the whole response beside them.

The response that a caller gets in one piece is the one that the last event of a stream holds: both are built here.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from octavo.front.parsers.events import Event, Kind
from octavo.front.server.blocks import Block, Blocks, Move, Step
from octavo.front.server.openai.responses.answers import (
    ArgumentsDelta,
    ArgumentsDone,
    CallOut,
    IncompleteDetails,
    ItemOut,
    ItemStatus,
    ItemTold,
    Lifecycle,
    MessageOut,
    OutputText,
    PartTold,
    ReasoningDelta,
    ReasoningDone,
    ReasoningOut,
    ReasoningText,
    Response,
    ResponseError,
    ResponseUsage,
    Status,
    TextDelta,
    TextDone,
    Told,
)
from octavo.front.server.openai.schema import TokenLogprob

_PREFIX = {Kind.REASONING: "rs", Kind.CONTENT: "msg", Kind.CALL: "fc"}
#: How a response may end -> the event that says so. There is none for a cancelled one: it is incomplete.
_LAST = {"completed": "completed", "incomplete": "incomplete", "cancelled": "incomplete", "failed": "failed"}


def frame(event: Told) -> bytes:
    """An event as it is sent."""
    return f"event: {event.type}\ndata: {event.model_dump_json()}\n\n".encode()


class ResponseEvents:
    """``begin`` once, ``feed`` as often as there is news, ``end`` once; each returns the frames to send.

    ``response`` is the response as far as it has come: its output holds the items that are done.
    """

    def __init__(self, response: Response):
        self.response = response
        self._blocks = Blocks()
        self._count = 0
        self._logprobs: list[TokenLogprob] = []

    @property
    def ended(self) -> bool:
        return self.response.status not in ("queued", "in_progress")

    def begin(self) -> list[bytes]:
        """A background response waits before it goes on; others are under way when they are created."""
        frames = [self._lifecycle("created")]
        if self.response.status == "queued":
            frames.append(self._lifecycle("queued"))
            self.response.status = "in_progress"
        return [*frames, self._lifecycle("in_progress")]

    def feed(self, events: Iterable[Event], logprobs: Sequence[TokenLogprob] = ()) -> list[bytes]:
        """``logprobs``: of the tokens that made the text among ``events``."""
        return self._told(self._blocks.feed(events), logprobs)

    def end(
        self,
        status: Status,
        usage: ResponseUsage | None = None,
        at: int | None = None,
        error: ResponseError | None = None,
    ) -> list[bytes]:
        """``status``: one that is final. ``at``: seconds since 1970. What is open is closed first."""
        fill = status in ("completed", "incomplete")
        frames = self._told(self._blocks.finish(cut=status != "completed", fill=fill))
        response = self.response
        response.status = status
        response.usage = usage
        response.error = error
        if status == "completed":
            response.completed_at = at
        elif status == "incomplete":
            response.incomplete_details = IncompleteDetails(reason="max_output_tokens")
        return [*frames, self._lifecycle(_LAST[status])]

    def _told(self, steps: Iterable[Step], logprobs: Sequence[TokenLogprob] = ()) -> list[bytes]:
        frames: list[bytes] = []
        for move, block, text in steps:
            match move:
                case Move.OPEN:
                    self._open(block, frames)
                case Move.GROW:
                    given = logprobs if block.kind is Kind.CONTENT else ()
                    frames.append(self._grow(block, text, given))
                    if given:
                        logprobs = ()
                case Move.CLOSE:
                    self._close(block, frames)
        return frames

    def _open(self, block: Block, frames: list[bytes]) -> None:
        item = self._item(block, "in_progress")
        self._logprobs = []
        frames.append(self._tell(ItemTold, type="response.output_item.added", output_index=block.index, item=item))
        part = _empty_part(block)
        if part is not None:
            frames.append(self._at(PartTold, block, type="response.content_part.added", part=part))

    def _grow(self, block: Block, text: str, logprobs: Sequence[TokenLogprob]) -> bytes:
        if block.kind is Kind.CONTENT:
            self._logprobs += logprobs
            return self._at(TextDelta, block, delta=text, logprobs=list(logprobs))
        return self._at(ReasoningDelta if block.kind is Kind.REASONING else ArgumentsDelta, block, delta=text)

    def _close(self, block: Block, frames: list[bytes]) -> None:
        item = self._item(block, "completed" if block.whole else "incomplete")
        match item:
            case MessageOut():
                part = item.content[0] = OutputText(text=block.text, logprobs=self._logprobs)
                frames.append(self._at(TextDone, block, text=part.text, logprobs=part.logprobs))
                frames.append(self._at(PartTold, block, type="response.content_part.done", part=part))
            case ReasoningOut():
                frames.append(self._at(ReasoningDone, block, text=block.text))
                frames.append(self._at(PartTold, block, type="response.content_part.done", part=item.content[0]))
            case CallOut():
                frames.append(self._at(ArgumentsDone, block, name=block.name, arguments=block.text))
        frames.append(self._tell(ItemTold, type="response.output_item.done", output_index=block.index, item=item))
        self.response.output.append(item)

    def _id(self, block: Block) -> str:
        return f"{_PREFIX[block.kind]}_{self.response.id.removeprefix('resp_')}{block.index:04x}"

    def _item(self, block: Block, status: ItemStatus) -> ItemOut:
        own: dict[str, Any] = {"id": self._id(block), "status": status}
        begun = status != "in_progress"
        match block.kind:
            case Kind.REASONING:
                return ReasoningOut(**own, content=[ReasoningText(text=block.text)] if begun else [])
            case Kind.CONTENT:
                return MessageOut(**own, content=[OutputText(text=block.text)] if begun else [])
        return CallOut(**own, call_id=block.id, name=block.name, arguments=block.text)

    def _at(self, cls: type[Told], block: Block, **fields: Any) -> bytes:
        return self._tell(cls, item_id=self._id(block), output_index=block.index, **fields)

    def _lifecycle(self, what: str) -> bytes:
        return self._tell(Lifecycle, type=f"response.{what}", response=self.response)

    def _tell(self, cls: type[Told], **fields: Any) -> bytes:
        event = cls(sequence_number=self._count, **fields)
        self._count += 1
        return frame(event)


def _empty_part(block: Block) -> OutputText | ReasoningText | None:
    match block.kind:
        case Kind.CONTENT:
            return OutputText()
        case Kind.REASONING:
            return ReasoningText()
    return None
