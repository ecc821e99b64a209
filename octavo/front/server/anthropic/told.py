"""Events of a message's stream, as the OpenAPI document shows them; ``events`` writes them."""

from typing import Literal

from octavo.front.server.anthropic.schema import Answer, BlockOut, MessageOut, StopReason, UsageOut


class MessageStart(Answer):
    type: Literal["message_start"]
    message: MessageOut


class BlockStart(Answer):
    type: Literal["content_block_start"]
    index: int
    content_block: BlockOut


class TextDelta(Answer):
    type: Literal["text_delta"]
    text: str


class ThinkingDelta(Answer):
    type: Literal["thinking_delta"]
    thinking: str


class SignatureDelta(Answer):
    type: Literal["signature_delta"]
    signature: str


class InputDelta(Answer):
    """``partial_json``: a piece of the input's JSON."""

    type: Literal["input_json_delta"]
    partial_json: str


class BlockDelta(Answer):
    type: Literal["content_block_delta"]
    index: int
    delta: TextDelta | ThinkingDelta | SignatureDelta | InputDelta


class BlockStop(Answer):
    type: Literal["content_block_stop"]
    index: int


class Ending(Answer):
    stop_reason: StopReason | None
    stop_sequence: str | None


class MessageDelta(Answer):
    type: Literal["message_delta"]
    delta: Ending
    usage: UsageOut


class MessageStop(Answer):
    type: Literal["message_stop"]


Told = MessageStart | BlockStart | BlockDelta | BlockStop | MessageDelta | MessageStop
