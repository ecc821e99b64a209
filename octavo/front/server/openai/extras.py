"""Fields of vLLM's that every chat-like API takes beside its own, under their chat names."""

from typing import Any

from octavo.front.server.openai.schema import Bias, Body, Ids, NonEmpty, Texts


class Extras(Body):
    """None means the model's default."""

    min_p: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    repetition_penalty: float | None = None
    seed: int | None = None
    stop_token_ids: Ids | None = None
    include_stop_str_in_output: bool | None = None
    ignore_eos: bool | None = None
    min_tokens: int | None = None
    logit_bias: Bias | None = None
    allowed_token_ids: Ids | None = None
    bad_words: Texts | None = None
    skip_special_tokens: bool | None = None
    structured_outputs: dict[str, Any] | None = None
    thinking_token_budget: int | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    priority: int | None = None
    cache_salt: NonEmpty | None = None

    def extras(self) -> dict[str, Any]:
        """Those that were given."""
        found = {name: getattr(self, name) for name in Extras.model_fields}
        return {name: value for name, value in found.items() if value is not None}
