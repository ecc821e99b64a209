"""What a caller may ask of sampling: validated once, here, for the offline API and for HTTP alike.

What depends on the model (vocabulary, length, limits set by flags) is checked by ``front.intake``.
"""

import enum
import json
import math
import numbers
import re
from dataclasses import dataclass, field
from typing import Any

from octavo.errors import BadRequest

#: A temperature below this is greedy; vLLM's value.
GREEDY_EPSILON = 1e-5
#: A positive temperature is raised to at least this: below it float32 logits overflow.
MIN_TEMPERATURE = 0.01
MAX_TOKEN_ID = 2**31 - 1
MAX_STOP_STRINGS = 64
MAX_STOP_IDS = 128
MAX_BAD_WORDS = 128
MAX_TEXT = 4096
MAX_BEAMS = 1024
MAX_LENGTH_PENALTY = 16.0
MAX_BIAS = 65536
#: Structured outputs: characters of a grammar or schema, values in a schema and how deep they nest, texts to choose
#: from, characters of a whitespace pattern.
MAX_GRAMMAR = 1 << 20
MAX_NODES = 50_000
MAX_DEPTH = 64
MAX_CHOICES = 10_000
MAX_WHITESPACE = 200
#: Token ids of a marker of reasoning.
MAX_MARKER = 64
_ID = re.compile("-?[0-9]{1,20}")
#: Factors and divisors of logits stay where float32 can hold what they make.
MAX_FACTOR = 1e6


class RequestOutputKind(enum.Enum):
    """What an iterator over outputs yields: all so far, what is new, or only the end."""

    CUMULATIVE = 0
    DELTA = 1
    FINAL_ONLY = 2


@dataclass(kw_only=True)
class StructuredOutputsParams:
    """What an answer must look like; vLLM's names. Exactly one of the first six.

    ``json``: a JSON schema, as an object or its text. ``regex``: the whole answer matches it. ``choice``: one of these
    texts. ``grammar``: Lark or GBNF. ``json_object``: any JSON object. ``structural_tag``: free text with tagged parts,
    as an object or its text. ``whitespace_pattern``: a regex of what may stand between JSON tokens, instead of all that
    JSON allows; ``disable_any_whitespace``: nothing. ``disable_additional_properties``: objects have the properties
    that their schemas name and no others. Raises ``BadRequest``.

    The others are set by this program only: ``lark``, a grammar that names token ids; ``free``, any text; ``after``,
    ``opens``, ``open`` and ``budget`` of ``wire.GrammarRef``; ``param``, the field that asked for it, for errors.
    """

    json: str | dict[str, Any] | bool | None = None
    regex: str | None = None
    choice: list[str] | None = None
    grammar: str | None = None
    json_object: bool | None = None
    structural_tag: str | dict[str, Any] | None = None
    disable_any_whitespace: bool = False
    disable_additional_properties: bool = False
    whitespace_pattern: str | None = None
    lark: str | None = field(default=None, repr=False)
    free: bool | None = field(default=None, repr=False)
    after: tuple[int, ...] = field(default=(), repr=False)
    opens: tuple[int, ...] = field(default=(), repr=False)
    open: bool = field(default=True, repr=False)
    budget: int | None = field(default=None, repr=False)
    param: str = field(default="structured_outputs", repr=False)

    def __post_init__(self) -> None:
        kinds = ("json", "regex", "choice", "grammar", "json_object", "structural_tag", "lark", "free")
        given = [name for name in kinds if getattr(self, name) is not None]
        if self.json_object is False:
            given.remove("json_object")
        if len(given) != 1:
            what = " and ".join(given) if given else "nothing"
            raise BadRequest(
                f"structured_outputs needs exactly one of {', '.join(kinds[:-2])}; it has {what}", "structured_outputs"
            )
        self._name = given[0]
        self._check_reasoning()
        for name in ("disable_any_whitespace", "disable_additional_properties", "open"):
            if not isinstance(getattr(self, name), bool):
                raise BadRequest(f"{name} must be true or false", f"structured_outputs.{name}")
        if self.whitespace_pattern is not None:
            size = len(self.whitespace_pattern) if isinstance(self.whitespace_pattern, str) else 0
            if not 0 < size <= MAX_WHITESPACE:
                raise BadRequest(
                    f"whitespace_pattern must be text of 1 to {MAX_WHITESPACE} characters", "structured_outputs"
                )
            if self.disable_any_whitespace:
                raise BadRequest(
                    "disable_any_whitespace and whitespace_pattern exclude one another", "structured_outputs"
                )
        self.kind, self.text = self._as_text()
        if len(self.text) > MAX_GRAMMAR:
            raise BadRequest(
                f"{self._param} may have at most {MAX_GRAMMAR} characters, got {len(self.text)}", self._param
            )

    def _check_reasoning(self) -> None:
        for name in ("after", "opens"):
            setattr(self, name, tuple(_token_ids(f"structured_outputs.{name}", getattr(self, name), MAX_MARKER)))
        if self.budget is not None:
            _whole("structured_outputs.budget", self.budget, 0, MAX_TOKEN_ID)

    @property
    def _param(self) -> str:
        return f"{self.param}.{self._name}" if self.param == "structured_outputs" else self.param

    def _as_text(self) -> tuple[str, str]:
        """Kind and text of ``wire.GrammarRef``."""
        name, value = self._name, getattr(self, self._name)
        if name in ("json", "structural_tag"):
            kind = "json_schema" if name == "json" else name
            if not isinstance(value, (str, dict, bool)) or (isinstance(value, bool) and name != "json"):
                raise BadRequest(f"{name} must be an object, or its text", self._param)
            return kind, value if isinstance(value, str) else _json_text(value, self._param)
        if name == "free":
            if value is not True:
                raise BadRequest("free must be true", self._param)
            return name, ""
        if name == "json_object":
            if value is not True:
                raise BadRequest("json_object must be true or false", self._param)
            return name, ""
        if name == "choice":
            if not isinstance(value, (list, tuple)) or not value or not all(isinstance(one, str) for one in value):
                raise BadRequest("choice must be a list of at least one text", self._param)
            if len(value) > MAX_CHOICES:
                raise BadRequest(f"choice may hold at most {MAX_CHOICES} texts, got {len(value)}", self._param)
            if not all(value):
                raise BadRequest("choice must not hold an empty text", self._param)
            return name, json.dumps(list(value))
        if not isinstance(value, str) or not value.strip():
            raise BadRequest(f"{name} must be text, and not empty", self._param)
        return name, value


def _json_text(value: Any, name: str) -> str:
    """``value`` as JSON. Raises ``BadRequest`` before much work is spent on one that is too large or too deep."""
    level: list[Any] = [value]
    count = depth = 0
    while level:
        count, depth = count + len(level), depth + 1
        if count > MAX_NODES or depth > MAX_DEPTH:
            raise BadRequest(f"{name} is too large: at most {MAX_NODES} values, {MAX_DEPTH} deep", name)
        level = [
            item
            for part in level
            if isinstance(part, (dict, list, tuple))
            for item in (part.values() if isinstance(part, dict) else part)
        ]
    try:
        return json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise BadRequest(f"{name} is no JSON: {error}", name) from None


@dataclass(kw_only=True)
class SamplingParams:
    """Sampling parameters with vLLM's names, defaults and meaning.

    Raises ``BadRequest`` (a ``ValueError``) that names the field when a value is out of range.
    ``max_tokens=None`` means up to the model's length.
    """

    n: int = 1
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    include_stop_str_in_output: bool = False
    ignore_eos: bool = False
    max_tokens: int | None = 16
    min_tokens: int = 0
    logprobs: int | None = None
    prompt_logprobs: int | None = None
    logprob_token_ids: list[int] | None = None
    logit_bias: dict[int, float] | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    detokenize: bool = True
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    output_kind: RequestOutputKind = RequestOutputKind.CUMULATIVE
    skip_reading_prefix_cache: bool = False
    structured_outputs: StructuredOutputsParams | None = None
    extra_args: dict[str, Any] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        self._check_numbers()
        self._check_lists()
        if self.seed == -1:
            self.seed = None
        if self.greedy:
            self.temperature = 0.0
            self.top_p, self.top_k, self.min_p = 1.0, 0, 0.0
        elif self.temperature < MIN_TEMPERATURE:
            self.temperature = MIN_TEMPERATURE
        if self.top_k == -1:
            self.top_k = 0

    @property
    def greedy(self) -> bool:
        return self.temperature < GREEDY_EPSILON

    def clone(self, **changes: Any) -> "SamplingParams":
        """A copy with some fields changed, validated anew: what is here may have been set since it was made."""
        return SamplingParams(**(vars(self) | changes))

    def _check_numbers(self) -> None:
        _whole("n", self.n, 1, MAX_TOKEN_ID)
        _real("temperature", self.temperature, 0.0, MAX_FACTOR)
        _real("top_p", self.top_p, 0.0, 1.0, open_low=True)
        _whole("top_k", self.top_k, -1, MAX_TOKEN_ID)
        _real("min_p", self.min_p, 0.0, 1.0)
        _real("presence_penalty", self.presence_penalty, -2.0, 2.0)
        _real("frequency_penalty", self.frequency_penalty, -2.0, 2.0)
        _real("repetition_penalty", self.repetition_penalty, 1 / MAX_FACTOR, MAX_FACTOR)
        _whole("min_tokens", self.min_tokens, 0, MAX_TOKEN_ID)
        if self.seed is not None:
            _whole("seed", self.seed, -(2**63), 2**63 - 1)
        if self.max_tokens is not None:
            _whole("max_tokens", self.max_tokens, 0, 2**63 - 1)
            if self.max_tokens == 0 and self.prompt_logprobs is None:
                raise BadRequest(
                    "max_tokens must be at least 1 (0 only scores a prompt, with echo or prompt_logprobs)", "max_tokens"
                )
            if self.min_tokens > self.max_tokens:
                raise BadRequest(
                    f"min_tokens ({self.min_tokens}) must not be over max_tokens ({self.max_tokens})", "min_tokens"
                )
        for name in ("logprobs", "prompt_logprobs"):
            value = getattr(self, name)
            if value is not None:
                _whole(name, value, -1, MAX_TOKEN_ID)
        if self.n > 1 and self.greedy:
            raise BadRequest(f"n must be 1 with temperature 0: all {self.n} answers would be the same", "n")

    def _check_lists(self) -> None:
        self.stop = _strings("stop", self.stop, MAX_STOP_STRINGS)
        self.bad_words = _strings("bad_words", self.bad_words, MAX_BAD_WORDS)
        if self.stop and not self.detokenize:
            raise BadRequest("stop strings need detokenize=True", "stop")
        self.stop_token_ids = _token_ids("stop_token_ids", self.stop_token_ids, MAX_STOP_IDS)
        if self.allowed_token_ids is not None:
            self.allowed_token_ids = _token_ids("allowed_token_ids", self.allowed_token_ids, None)
            if not self.allowed_token_ids:
                raise BadRequest("allowed_token_ids must not be empty", "allowed_token_ids")
        if self.logprob_token_ids is not None:
            self.logprob_token_ids = _token_ids("logprob_token_ids", self.logprob_token_ids, 128)
        if self.structured_outputs is not None:
            self._check_structure()
        if self.logit_bias is not None:
            if not isinstance(self.logit_bias, dict):
                raise BadRequest("logit_bias must map token ids to numbers", "logit_bias")
            if len(self.logit_bias) > MAX_BIAS:
                raise BadRequest(
                    f"logit_bias may hold at most {MAX_BIAS} entries, got {len(self.logit_bias)}", "logit_bias"
                )
            bias = {}
            for key, value in self.logit_bias.items():
                try:
                    token = int(key) if not isinstance(key, str) or _ID.fullmatch(key) else None
                except (TypeError, ValueError):
                    token = None
                if token is None:
                    raise BadRequest(
                        f"logit_bias has the key {str(key)[:40]!r}, which is no token id", "logit_bias"
                    ) from None
                _real("logit_bias", value, None, None)
                bias[token] = max(-100.0, min(100.0, float(value)))
            _token_ids("logit_bias", list(bias), None)
            self.logit_bias = bias

    def _check_structure(self) -> None:
        if not isinstance(self.structured_outputs, StructuredOutputsParams):
            raise BadRequest("structured_outputs must be StructuredOutputsParams", "structured_outputs")
        if self.min_tokens and not self.structured_outputs.free:
            raise BadRequest(
                "min_tokens and structured_outputs exclude one another: the grammar says where an answer ends",
                "min_tokens",
            )


@dataclass(kw_only=True)
class BeamSearchParams:
    """Beam search with vLLM's names. Raises ``BadRequest`` that names the field.

    A beam's score is the sum of its log-probabilities over (its number of generated tokens, an end-of-sequence token
    included) ** ``length_penalty``: over 0 it favours long ones. ``temperature`` matters only where log-probabilities
    are told as sampling sees them (``logprobs_mode``).
    """

    beam_width: int
    max_tokens: int
    ignore_eos: bool = False
    temperature: float = 0.0
    length_penalty: float = 1.0
    include_stop_str_in_output: bool = False
    stop_token_ids: list[int] | None = None

    def __post_init__(self) -> None:
        _whole("beam_width", self.beam_width, 1, MAX_BEAMS)
        _whole("max_tokens", self.max_tokens, 1, None)
        _real("temperature", self.temperature, 0.0, MAX_FACTOR)
        _real("length_penalty", self.length_penalty, -MAX_LENGTH_PENALTY, MAX_LENGTH_PENALTY)
        self.stop_token_ids = _token_ids("stop_token_ids", self.stop_token_ids, MAX_STOP_IDS)


# The two begin with what nearly always holds: the rest is for other kinds of numbers, and for words about wrong ones.


def _whole(name: str, value: Any, low: int | None, high: int | None) -> None:
    if type(value) is int and (low is None or value >= low) and (high is None or value <= high):
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Integral):
        raise BadRequest(f"{name} must be a whole number, got {_shown(value)}", name)
    _range(name, value, low, high, False)


def _real(name: str, value: Any, low: float | None, high: float | None, open_low: bool = False) -> None:
    within = type(value) is float and low is not None and high is not None and low <= value <= high
    if within and not (open_low and value == low):
        return
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise BadRequest(f"{name} must be a number, got {_shown(value)}", name)
    try:
        finite = math.isfinite(value)
    except OverflowError:  # an int that no float can hold
        raise BadRequest(f"{name} must be finite, got {_shown(value)}", name) from None
    if not finite:
        raise BadRequest(f"{name} must be finite, got {value}", name)
    _range(name, value, low, high, open_low)


def _range(name: str, value: Any, low: float | None, high: float | None, open_low: bool) -> None:
    if low is not None and (value < low or (open_low and value == low)):
        raise BadRequest(f"{name} must be {'over' if open_low else 'at least'} {low}, got {_shown(value)}", name)
    if high is not None and value > high:
        raise BadRequest(f"{name} must be at most {high}, got {_shown(value)}", name)


def _shown(value: Any) -> str:
    if isinstance(value, int) and value.bit_length() > 1024:  # Python writes no int of some thousand digits
        return "a very large number" if value > 0 else "a very large negative number"
    text = repr(value) if isinstance(value, (str, numbers.Number, type(None))) else type(value).__name__
    return text if len(text) <= 40 else text[:37] + "..."


def _strings(name: str, value: Any, most: int) -> list[str]:
    if value is None or (type(value) is list and not value):
        return []
    items = [value] if isinstance(value, str) else list(value) if isinstance(value, (list, tuple)) else None
    if items is None or any(not isinstance(item, str) for item in items):
        raise BadRequest(f"{name} must be a string or a list of strings", name)
    if len(items) > most:
        raise BadRequest(f"{name} may hold at most {most} entries, got {len(items)}", name)
    for item in items:
        if not item:
            raise BadRequest(f"{name} must not hold an empty string", name)
        if len(item) > MAX_TEXT:
            raise BadRequest(f"an entry of {name} may have at most {MAX_TEXT} characters, got {len(item)}", name)
    return items


def _token_ids(name: str, value: Any, most: int | None) -> list[int]:
    if value is None:
        return []
    if not isinstance(value, (list, tuple)):
        raise BadRequest(f"{name} must be a list of token ids", name)
    if most is not None and len(value) > most:
        raise BadRequest(f"{name} may hold at most {most} token ids, got {len(value)}", name)
    for token in value:
        _whole(name, token, 0, MAX_TOKEN_ID)
    return list(value)
