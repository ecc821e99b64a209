"""The front's share of a configuration: how text becomes ids and back."""

from octavo.config.engine import EngineConfig
from octavo.front.chat.template import ChatTemplate
from octavo.front.parsers.base import Format, choose
from octavo.front.server.options import Options
from octavo.front.tokenizers.base import Tokenizer, load


def front_of(config: EngineConfig) -> tuple[Tokenizer | None, ChatTemplate | None]:
    """Tokenizer and chat template that ``config`` names; None for an engine that takes ids only.

    Raises ``ConfigError``.
    """
    if config.text.skip_tokenizer:
        return None, None
    tokenizer = load(config.text.tokenizer)
    return tokenizer, ChatTemplate.of(tokenizer, config.text.chat_template)


def format_of(tokenizer: Tokenizer | None, chat: ChatTemplate | None, options: Options) -> Format | None:
    """How the model writes reasoning and calls, as the server will read it. Raises ``ConfigError``."""
    if tokenizer is None:
        return None
    return choose(tokenizer, None if chat is None else chat.source, options.reasoning_parser, options.tool_call_parser)
