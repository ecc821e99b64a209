"""The state machine of a message: parsed events in, Anthropic's server-sent events out, the whole message beside them.

The message that a caller gets in one piece is what the events of a stream add up to: both are built here.
"""

import hashlib
from collections.abc import Iterable
from typing import Any

import msgspec
from pydantic_core import from_json

from octavo.front.parsers.events import Event, Kind
from octavo.front.server.anthropic.schema import (
    BlockOut,
    MessageOut,
    StopReason,
    TextBlock,
    ThinkingBlock,
    ToolUseBlock,
    UsageOut,
)
from octavo.front.server.blocks import Block, Blocks, Move, Step

_CUT: dict[str, StopReason] = {"length": "max_tokens", "context": "model_context_window_exceeded"}


def frame(kind: str, **fields: Any) -> bytes:
    """An event as it is sent."""
    return b"event: " + kind.encode() + b"\ndata: " + msgspec.json.encode({"type": kind, **fields}) + b"\n\n"


class MessageEvents:
    """``begin`` once, ``feed`` as often as there is news, ``end`` once; each returns the frames to send.

    ``omit``: thinking is shown as blocks without text.
    """

    def __init__(self, message: MessageOut, omit: bool = False):
        self.message = message
        self._omit = omit
        self._blocks = Blocks()

    def begin(self, usage: UsageOut) -> list[bytes]:
        """``usage``: of the prompt."""
        self.message.usage = usage
        return [frame("message_start", message=self.message.model_dump())]

    def feed(self, events: Iterable[Event]) -> list[bytes]:
        return self._told(self._blocks.feed(events))

    def end(self, finish_reason: str, stop_reason: int | str | None, usage: UsageOut) -> list[bytes]:
        """``finish_reason`` and ``stop_reason``: chat's, but for one that was aborted; "context" where the length that
        ended it was the model's."""
        frames = self._told(self._blocks.finish(cut=finish_reason in _CUT))
        message = self.message
        calls = [block for block in self._blocks.all if block.kind is Kind.CALL]
        if finish_reason in _CUT:
            message.stop_reason = _CUT[finish_reason]
        elif isinstance(stop_reason, str) and not any(call.whole for call in calls):
            message.stop_reason, message.stop_sequence = "stop_sequence", stop_reason
        elif calls:
            message.stop_reason = "tool_use"
        else:
            message.stop_reason = "end_turn"
        message.usage = usage
        delta = {"stop_reason": message.stop_reason, "stop_sequence": message.stop_sequence}
        return [*frames, frame("message_delta", delta=delta, usage=usage.model_dump()), frame("message_stop")]

    def _told(self, steps: Iterable[Step]) -> list[bytes]:
        frames: list[bytes] = []
        for move, block, text in steps:
            hidden = self._omit and block.kind is Kind.REASONING
            match move:
                case Move.OPEN:
                    empty = _block(block, "").model_dump()
                    frames.append(frame("content_block_start", index=block.index, content_block=empty))
                case Move.GROW if not hidden:
                    frames.append(_delta(block, text))
                case Move.CLOSE:
                    found = _block(block, "" if hidden else block.text)
                    if isinstance(found, ThinkingBlock):
                        found.signature = _signature(found.thinking)
                        told = {"type": "signature_delta", "signature": found.signature}
                        frames.append(frame("content_block_delta", index=block.index, delta=told))
                    self.message.content.append(found)
                    frames.append(frame("content_block_stop", index=block.index))
        return frames


def _delta(block: Block, text: str) -> bytes:
    match block.kind:
        case Kind.CONTENT:
            delta = {"type": "text_delta", "text": text}
        case Kind.REASONING:
            delta = {"type": "thinking_delta", "thinking": text}
        case _:
            delta = {"type": "input_json_delta", "partial_json": text}
    return frame("content_block_delta", index=block.index, delta=delta)


def _block(block: Block, text: str) -> BlockOut:
    match block.kind:
        case Kind.CONTENT:
            return TextBlock(text=text)
        case Kind.REASONING:
            return ThinkingBlock(thinking=text)
    return ToolUseBlock(id=block.id, name=block.name, input=_input(text))


def _input(text: str) -> dict[str, Any]:
    """Arguments as an object; of those that were cut off, what is there, as clients read the pieces of a stream."""
    try:
        found = from_json(text, allow_partial=True) if text else {}
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _signature(thinking: str) -> str:
    # Clients send it back with the text; nothing here depends on it.
    return hashlib.sha256(thinking.encode("utf-8", "replace")).hexdigest()
