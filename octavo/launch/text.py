"""The front's share of a configuration: how text becomes ids and back."""

from octavo.config.engine import EngineConfig
from octavo.front.chat.template import ChatTemplate
from octavo.front.tokenizers.base import Tokenizer, load


def front_of(config: EngineConfig) -> tuple[Tokenizer | None, ChatTemplate | None]:
    """Tokenizer and chat template that ``config`` names; None for an engine that takes ids only.

    Raises ``ConfigError``.
    """
    if config.text.skip_tokenizer:
        return None, None
    tokenizer = load(config.text.tokenizer)
    return tokenizer, ChatTemplate.of(tokenizer, config.text.chat_template)
