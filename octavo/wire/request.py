"""A request as the front hands it to the core: everything checked, everything data."""

from typing import NewType

from msgspec import Struct

#: The front's own small int for a request; unique within one client, never reused while the request lives.
Handle = NewType("Handle", int)


class AdapterRef(Struct, frozen=True, array_like=True, gc=False):
    """A LoRA adapter: its name for people, its content hash for the prefix cache."""

    name: str
    content: bytes


class MediaRef(Struct, frozen=True, array_like=True, gc=False):
    """Media that stand for prompt tokens ``start <= i < stop``; the features themselves travel by reference.

    ``content`` is the hash of the data and of how it was processed.
    """

    content: bytes
    start: int
    stop: int
    source: str = ""


class GrammarRef(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """A grammar to obey: ``kind`` is json_schema, json_object, regex, choice (a JSON list), grammar (Lark or GBNF),
    structural_tag (JSON), lark (made by this program: it may name token ids) or free (any text).

    ``after`` are the token ids that end reasoning: the grammar bites behind them; empty means from the first token.
    ``opens``: ids one of which may come first and begin the reasoning; with ``open`` it has begun already, or does so
    without them. ``budget``: tokens of reasoning after which ``after`` is forced; None: as many as it likes.
    ``whitespace``: what may stand between JSON tokens, as a regex; "" nothing, None what JSON allows.
    ``closed``: a JSON object has no properties but those that its schema names.
    """

    kind: str
    text: str
    after: tuple[int, ...] = ()
    whitespace: str | None = None
    closed: bool = False
    opens: tuple[int, ...] = ()
    open: bool = True
    budget: int | None = None


class Sampling(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """How a row's tokens are drawn. Ids are in the vocabulary; the front has checked them.

    ``seed`` is always set: what is drawn depends on (seed, position, logits) and on nothing else.
    ``logprobs``: how many of the most likely tokens to report with each token; None none, -1 the vocabulary.
    ``allowed``, ``bias_ids``, ``logprob_ids`` are int32 bytes, ``bias_values`` float32 bytes.
    """

    seed: int
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_ids: bytes = b""
    allowed: bytes = b""
    bias_ids: bytes = b""
    bias_values: bytes = b""
    bad_words: tuple[tuple[int, ...], ...] = ()

    @property
    def needs_history(self) -> bool:
        """Whether a stage looks at the tokens before: they then travel with ``NewRow.tokens``."""
        return bool(
            self.presence_penalty
            or self.frequency_penalty
            or self.repetition_penalty != 1.0
            or self.bad_words
            or self.prompt_logprobs is not None
        )


class EngineRequest(Struct, frozen=True, array_like=True, omit_defaults=True, gc=False):
    """One answer to make: ``n`` answers are n requests that share a prompt.

    ``tokens``: the prompt as int32 bytes, never empty. ``stops``: end-of-sequence and stop token ids, in that order of
    reporting; ``eos`` says how many of the first are end-of-sequence (reported without a reason).
    ``limit`` and ``min_length`` are total lengths (prompt and output). ``limit == prompt length`` asks for no token:
    the prompt is only scored. ``every``: tell tokens every so many (1 a stream, 0 only at the end).
    ``deadline``: monotonic seconds after which the request is aborted. ``salt`` isolates the prefix cache.
    """

    handle: int
    tokens: bytes
    sampling: Sampling
    limit: int
    client: int = 0
    min_length: int = 0
    stops: tuple[int, ...] = ()
    eos: int = 0
    every: int = 1
    priority: int = 0
    arrival: float = 0.0
    deadline: float | None = None
    salt: bytes = b""
    read_cache: bool = True
    adapter: AdapterRef | None = None
    media: tuple[MediaRef, ...] = ()
    grammar: GrammarRef | None = None
