"""Intake: a prompt and SamplingParams to what the core takes. Everything that depends on the model is checked here."""

import hashlib
import numbers
import random
import struct
import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from msgspec import ValidationError, convert
from msgspec.structs import replace

from octavo.config.engine import EngineConfig
from octavo.errors import BadRequest, Unsupported
from octavo.front.tokenizers.base import Tokenizer, check_text
from octavo.params import SamplingParams
from octavo.wire.arrays import outside, pack_tokens, unpack_tokens
from octavo.wire.hello import Ready
from octavo.wire.request import EngineRequest, GrammarRef, Sampling
from octavo.wire.vocabulary import Vocabulary

#: Text, token ids (a list or an array), or a dict with "prompt" or "prompt_token_ids" (vLLM's TextPrompt and
#: TokensPrompt).
PromptType: TypeAlias = str | Sequence[int] | Mapping[str, Any]
#: Where a prompt is cut.
Side: TypeAlias = Literal["left", "right"]
#: Texts longer than this (characters) are worked on in a thread: an event loop has others to serve.
LONG_TEXT = 16384
_SEEDS = 2**63
_MAX_PRIORITY = 2**31 - 1
_KEYS = frozenset({"prompt", "prompt_token_ids", "cache_salt"})


class Prompt(NamedTuple):
    """A checked prompt. ``text`` is None where ids were given. ``packed``: the ids as the core takes them, where they
    are at hand."""

    text: str | None
    ids: list[int]
    salt: bytes = b""
    packed: bytes = b""


def ends_of(config: EngineConfig, tokenizer: Tokenizer | None, width: int) -> tuple[int, ...]:
    """The ids that end an answer, of ``width`` logits: the tokenizer's and the model's own."""
    ends = [*(tokenizer.eos if tokenizer is not None else ()), *config.model.facts.eos]
    return tuple(token for token in dict.fromkeys(ends) if token < width)


class Intake:
    """Checks and defaults of one engine. Methods may be called from any thread, except ``admit`` (it draws seeds)."""

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer | None, ready: Ready):
        self._text = config.text
        self._policy = config.schedule.policy
        self._structure = config.grammar
        self._tokenizer = tokenizer
        self._ready = ready
        self._limits = ready.limits
        self._seed = config.model.seed
        self._seeds = random.Random(self._seed)
        self.eos = ends_of(config, tokenizer, ready.vocab)
        #: Most characters of a text that could still fit: longer ones are refused before any work is spent on them.
        self.max_chars = ready.max_model_len * (tokenizer.longest if tokenizer is not None else 1)

    def draw_apart(self, number: int) -> None:
        """Give requests without a seed others than the intakes of other processes do, each with a ``number``."""
        self._seeds = random.Random(f"{self._seed} {number}")

    def default_params(self) -> SamplingParams:
        """What a request gets that asks for nothing: the model's own defaults."""
        return SamplingParams(**self._text.generation_defaults)

    # -- the prompt --

    def prompt(
        self,
        prompt: PromptType,
        *,
        truncate: int | None = None,
        side: Side = "left",
        add_special_tokens: bool = True,
        param: str = "prompt",
    ) -> Prompt:
        """Ids of a prompt, checked against vocabulary and length.

        ``truncate`` keeps the last so many tokens (-1: as many as the model takes), or with ``side`` "right" the first.
        Raises ``BadRequest``.
        """
        text, ids, salt = self._parts(prompt, param)
        keep = self._keep(truncate)
        if ids is None:
            assert text is not None
            ids = self._coder(param).encode(self._bounded(text, keep, param, side), add_special_tokens)
        if keep is not None:
            ids = ids[-keep:] if side == "left" else ids[:keep]
        return Prompt(text, ids, salt, *self._packed([ids], [param]))

    def prompts(self, prompts: Sequence[PromptType], param: str = "prompts") -> list[Prompt]:
        """``prompt`` for many: texts are tokenised together, on all cores."""
        names = [f"{param}.{i}" for i in range(len(prompts))]
        parts = [self._parts(prompt, name) for prompt, name in zip(prompts, names, strict=True)]
        texts = [
            self._bounded(text, None, name)
            for (text, ids, _), name in zip(parts, names, strict=True)
            if ids is None and text
        ]
        encoded = iter(self._coder(param).encode_batch(texts) if texts else ())
        each = [next(encoded) if ids is None else ids for _, ids, _ in parts]
        packed = self._packed(each, names)
        return [Prompt(text, ids, salt, data) for (text, _, salt), ids, data in zip(parts, each, packed, strict=True)]

    def _packed(self, prompts: Sequence[list[int]], names: Sequence[str]) -> list[bytes]:
        """Ids of prompts as the core takes them. Raises ``BadRequest`` that names the prompt which has none, or one
        that is out of the vocabulary."""
        try:
            packed = [pack_tokens(ids) for ids in prompts]
            sound = all(packed) and not outside(unpack_tokens(b"".join(packed)), self._ready.vocab)
        except struct.error:  # an id that does not fit
            sound = False
        if not sound:
            for ids, name in zip(prompts, names, strict=True):
                if not ids:
                    raise BadRequest(f"{name} must not be empty", name)
                self._in_vocabulary(ids, name)
        return packed

    def _coder(self, param: str) -> Tokenizer:
        if self._tokenizer is None:
            raise BadRequest(f"{param} must be token ids: this engine runs without a tokenizer", param)
        return self._tokenizer

    def _parts(self, prompt: PromptType, param: str) -> tuple[str | None, list[int] | None, bytes]:
        salt = b""
        text = None
        if isinstance(prompt, Mapping):
            if not prompt.keys() <= _KEYS:
                unknown = next(key for key in prompt if key not in _KEYS)
                raise BadRequest(
                    f"{param} has the key {str(unknown)[:40]!r}; possible: prompt, prompt_token_ids, cache_salt", param
                )
            salt = salt_bytes(prompt.get("cache_salt"))
            text = prompt.get("prompt")
            given = prompt.get("prompt_token_ids")
            prompt = text if given is None else given  # type: ignore[assignment]
            if given is not None and text is not None:
                check_text(text, param)
        if isinstance(prompt, str):
            if not prompt:
                raise BadRequest(f"{param} must not be empty", param)
            return prompt, None, salt
        if isinstance(prompt, np.ndarray) and prompt.ndim == 1 and prompt.dtype.kind in "iu":
            return text, prompt.tolist(), salt
        if not isinstance(prompt, (list, tuple)):
            raise BadRequest(f"{param} must be text or a list of token ids, got {type(prompt).__name__}", param)
        return text, _whole(prompt, param), salt

    def _keep(self, truncate: int | None) -> int | None:
        if truncate is None:
            return None
        limit = self._ready.max_model_len
        if isinstance(truncate, bool) or not isinstance(truncate, int) or truncate < -1 or truncate == 0:
            raise BadRequest(
                f"truncate_prompt_tokens must be -1 or at least 1, got {truncate!r}", "truncate_prompt_tokens"
            )
        if truncate > limit:
            raise BadRequest(
                f"truncate_prompt_tokens is {truncate}, over this model's maximum context length of {limit} tokens",
                "truncate_prompt_tokens",
            )
        return limit - 1 if truncate == -1 else truncate

    def cut(self, text: str, truncate: int | None, side: Side = "left", param: str = "prompt") -> str:
        """Without what ``truncate`` would cut off in any case; the whole text where nothing is to be cut. Raises
        ``BadRequest``."""
        keep = self._keep(truncate)
        return text if keep is None else self._bounded(text, keep, param, side)

    def _bounded(self, text: str, keep: int | None, param: str, side: Side = "left") -> str:
        """The part of ``text`` that is worth tokenising. Raises ``BadRequest`` where it cannot fit, or is no text."""
        if keep is not None:
            # What is beyond cannot reach the tokens that are kept: each covers at most ``longest`` characters.
            longest = (keep + 1) * self._coder(param).longest
            text = text[-longest:] if side == "left" else text[:longest]
        else:
            self.check_length(text, param)
        check_text(text, param)
        return text

    def check_length(self, text: str, param: str = "prompt") -> None:
        """Raises ``BadRequest`` for a text that cannot fit, however it is tokenised."""
        if len(text) > self.max_chars:
            limit = self._ready.max_model_len
            raise BadRequest(
                f"This model's maximum context length is {limit} tokens. However, your {param} has {len(text)} "
                f"characters, more than {limit} tokens can hold ({self.max_chars}). Please shorten it.",
                param,
            )

    def _in_vocabulary(self, ids: Sequence[int] | None, param: str) -> None:
        if ids and (min(ids) < 0 or max(ids) >= self._ready.vocab):
            wrong = next(token for token in ids if not 0 <= token < self._ready.vocab)
            raise BadRequest(
                f"{param} has the token id {wrong}, which is out of the vocabulary (0 to {self._ready.vocab - 1})",
                param,
            )

    # -- the request --

    def admit(
        self,
        prompt: Prompt,
        params: SamplingParams,
        handles: Sequence[int],
        *,
        cap: bool = False,
        priority: int = 0,
        salt: str | None = None,
        deadline: float | None = None,
        every: int = 1,
        arrival: float | None = None,
    ) -> list[EngineRequest]:
        """One request for each of ``handles`` (``params.n``). Raises ``BadRequest`` that names the field.

        ``cap``: an output that would pass the model's length ends there with reason "length", instead of an error.
        ``every``: tell tokens every so many, 0 only at the end; stop strings need them one by one.
        """
        assert len(handles) == params.n
        self._check(params)
        if isinstance(priority, bool) or not isinstance(priority, int) or abs(priority) > _MAX_PRIORITY:
            raise BadRequest(f"priority must be a whole number within 32 bits, got {str(priority)[:40]}", "priority")
        if priority and self._policy != "priority":
            raise BadRequest(
                f"priority is {priority}, but the engine runs {self._policy}: start it with "
                "--scheduling-policy priority",
                "priority",
            )
        limit = self._limit(len(prompt.ids), params, cap)
        stops, eos = self._stops(params)
        sampling = self._sampling(params)
        self._check_choice(params, stops, sampling.bad_words)
        first = EngineRequest(
            handle=handles[0],
            tokens=prompt.packed or pack_tokens(prompt.ids),
            sampling=sampling,
            limit=limit,
            min_length=min(len(prompt.ids) + params.min_tokens, limit) if params.min_tokens else 0,
            stops=stops,
            eos=eos,
            every=1 if params.stop else every,
            priority=priority,
            arrival=time.monotonic() if arrival is None else arrival,
            deadline=deadline,
            salt=salt_bytes(salt) or prompt.salt,
            grammar=self._grammar(params),
            read_cache=not params.skip_reading_prefix_cache and params.prompt_logprobs is None,
        )
        return [first, *[self._child(first, handles[index], index) for index in range(1, params.n)]]

    def vocabulary(self) -> Vocabulary:
        """What grammars are made of; costs a second where a vocabulary is large. Any thread may call it."""
        assert self._tokenizer is not None
        return replace(self._tokenizer.vocabulary(), eos=self.eos)

    def _grammar(self, params: SamplingParams) -> GrammarRef | None:
        asked = params.structured_outputs
        if asked is None:
            return None
        if self._tokenizer is None:
            raise BadRequest(
                "structured_outputs need a tokenizer, and this engine runs without one", "structured_outputs"
            )
        if self._tokenizer.pieces is None and asked.kind != "free":
            raise Unsupported(
                "structured_outputs need tokens that stand for bytes, each by itself; this tokenizer's do not",
                "structured_outputs",
            )
        check_text(asked.text, "structured_outputs")
        self._in_vocabulary((*asked.after, *asked.opens), "structured_outputs")
        whitespace, closed = self._structure.whitespace, self._structure.closed
        if asked.whitespace_pattern is not None or asked.disable_any_whitespace:
            whitespace = asked.whitespace_pattern or ""
        return GrammarRef(
            asked.kind,
            asked.text,
            asked.after,
            whitespace,
            closed or asked.disable_additional_properties,
            asked.opens,
            asked.open,
            asked.budget,
        )

    @staticmethod
    def _child(first: EngineRequest, handle: int, index: int) -> EngineRequest:
        """Answer 0 draws with the seed that was given, answer i with i more; only answer 0 scores the prompt."""
        seed = (first.sampling.seed + index) % _SEEDS
        return replace(first, handle=handle, sampling=replace(first.sampling, seed=seed, prompt_logprobs=None))

    def _limit(self, length: int, params: SamplingParams, cap: bool) -> int:
        """Total length at which the answer ends."""
        limit, wanted = self._ready.max_model_len, params.max_tokens
        least = 0 if wanted == 0 else 1
        if length + least > limit or (not cap and wanted is not None and length + wanted > limit):
            asked = f"max_tokens is {wanted}" if wanted is not None else "an answer needs at least 1"
            raise BadRequest(
                f"This model's maximum context length is {limit} tokens. However, your prompt has {length} tokens and "
                f"{asked}, {length + (1 if wanted is None else wanted)} tokens in total. "
                "Please shorten the prompt or lower max_tokens.",
                "prompt" if length + least > limit else "max_tokens",
            )
        return limit if wanted is None else min(length + wanted, limit)

    def _check(self, params: SamplingParams) -> None:
        if params.n > self._text.max_n:
            raise BadRequest(f"n is {params.n}; this engine allows at most {self._text.max_n} (--max-n)", "n")
        self._check_logprobs("logprobs", params.logprobs)
        self._check_logprobs("prompt_logprobs", params.prompt_logprobs)
        if bias := params.logit_bias:
            if len(bias) > self._limits.bias:
                most = self._limits.bias
                raise BadRequest(f"logit_bias may hold at most {most} entries, got {len(bias)}", "logit_bias")
            self._in_vocabulary(list(bias), "logit_bias")
        self._in_vocabulary(params.stop_token_ids, "stop_token_ids")
        self._in_vocabulary(params.allowed_token_ids, "allowed_token_ids")
        self._in_vocabulary(params.logprob_token_ids, "logprob_token_ids")
        if len(params.stop or ()) > self._text.max_stop:
            most = self._text.max_stop
            raise BadRequest(f"stop may hold at most {most} strings (--max-stop), got {len(params.stop or ())}", "stop")
        if params.stop and self._tokenizer is None:
            raise BadRequest("stop strings need a tokenizer, and this engine runs without one", "stop")
        for word in params.stop or ():
            check_text(word, "stop")
        if params.extra_args:
            raise BadRequest(
                f"extra_args has {str(next(iter(params.extra_args)))[:40]!r}, which nothing here reads", "extra_args"
            )

    @staticmethod
    def _check_choice(params: SamplingParams, stops: tuple[int, ...], bad_words: tuple[tuple[int, ...], ...]) -> None:
        """Of the allowed ids one must be left."""
        if params.allowed_token_ids:
            banned = {word[0] for word in bad_words if len(word) == 1} | set(stops if params.min_tokens else ())
            if banned.issuperset(params.allowed_token_ids):
                raise BadRequest("bad_words and min_tokens leave none of allowed_token_ids", "allowed_token_ids")

    def _check_logprobs(self, name: str, asked: int | None) -> None:
        if asked is None:
            return
        most, vocab = self._text.max_logprobs, self._ready.vocab
        if self._limits.logprobs >= 0:
            most = self._limits.logprobs if most < 0 else min(most, self._limits.logprobs)
        if most >= 0 and (vocab if asked < 0 else asked) > most:
            what = f"the whole vocabulary ({vocab})" if asked < 0 else str(asked)
            raise BadRequest(f"{name} asks for {what}; this engine allows at most {most} (--max-logprobs)", name)
        if asked > vocab:
            raise BadRequest(f"{name} is {asked}, but the vocabulary has only {vocab} tokens", name)

    def _stops(self, params: SamplingParams) -> tuple[tuple[int, ...], int]:
        ends = () if params.ignore_eos else self.eos
        stops = tuple(dict.fromkeys([*ends, *params.stop_token_ids])) if params.stop_token_ids else ends
        if len(stops) > self._limits.stop_ids:
            room = self._limits.stop_ids - len(ends)
            raise BadRequest(
                f"stop_token_ids may hold at most {room} ids for this model, got {len(params.stop_token_ids or ())}",
                "stop_token_ids",
            )
        return stops, len(ends)

    def _sampling(self, params: SamplingParams) -> Sampling:
        seed = self._seeds.getrandbits(63) if params.seed is None else params.seed % _SEEDS
        bias = params.logit_bias or {}
        return Sampling(
            seed=seed,
            temperature=float(params.temperature),
            top_k=min(params.top_k, self._ready.vocab),
            top_p=float(params.top_p),
            min_p=float(params.min_p),
            presence_penalty=float(params.presence_penalty),
            frequency_penalty=float(params.frequency_penalty),
            repetition_penalty=float(params.repetition_penalty),
            logprobs=0 if params.logprobs is None and params.logprob_token_ids else params.logprobs,
            prompt_logprobs=params.prompt_logprobs,
            logprob_ids=pack_tokens(params.logprob_token_ids) if params.logprob_token_ids else b"",
            allowed=pack_tokens(sorted(set(params.allowed_token_ids))) if params.allowed_token_ids else b"",
            bias_ids=pack_tokens(list(bias)) if bias else b"",
            bias_values=np.asarray(list(bias.values()), "<f4").tobytes() if bias else b"",
            bad_words=self._bad_words(params),
        )

    def _bad_words(self, params: SamplingParams) -> tuple[tuple[int, ...], ...]:
        """Each word as it is written at the start of a text and behind a space."""
        if not params.bad_words:
            return ()
        if self._tokenizer is None:
            raise BadRequest("bad_words need a tokenizer, and this engine runs without one", "bad_words")
        found: dict[tuple[int, ...], None] = {}
        for word in params.bad_words:
            check_text(word, "bad_words")
            bare = word.lstrip()
            if not bare:
                raise BadRequest("bad_words must not hold an entry of spaces only", "bad_words")
            for text in (bare, " " + bare):
                if ids := self._tokenizer.encode(text, add_special_tokens=False):
                    self._in_vocabulary(ids, "bad_words")
                    found[tuple(ids)] = None
        if len(found) > self._limits.bad_words:
            raise BadRequest(
                f"bad_words make {len(found)} token sequences; this engine allows at most {self._limits.bad_words}",
                "bad_words",
            )
        return tuple(found)


def _whole(ids: Sequence[Any], param: str) -> list[int]:
    """``ids`` as Python's ints; numpy's are taken too."""
    try:
        return convert(ids, list[int])  # takes ints only, at a fraction of what a look at each takes
    except ValidationError:
        pass
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, numbers.Integral):
            raise BadRequest(f"{param} must hold whole numbers only, got {type(token).__name__}", param)
    return [int(token) for token in ids]


def salt_bytes(salt: Any) -> bytes:
    """A cache salt as the prefix hash takes it; empty for None. Raises ``BadRequest``."""
    if salt is None:
        return b""
    if not isinstance(salt, str) or not salt:
        raise BadRequest("cache_salt must be a non-empty string", "cache_salt")
    check_text(salt, "cache_salt")
    return hashlib.blake2b(salt.encode(), digest_size=16).digest()
