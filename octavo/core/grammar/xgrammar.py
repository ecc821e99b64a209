"""Grammars by xgrammar, for who asks for it: a pushdown automaton with masks computed ahead. Its package brings torch.

It passes over in silence what it does not know in a JSON schema; so only what it enforces is let through (``check``).
"""

import json
import time
from typing import Any

import xgrammar

from octavo.core.grammar import prepare, schema, tags
from octavo.core.grammar.base import PARAM, Grammar, allow
from octavo.core.grammar.cost import Telling
from octavo.errors import BadRequest, Unsupported
from octavo.wire.arrays import Ints
from octavo.wire.request import GrammarRef
from octavo.wire.vocabulary import Vocabulary

_EVERYWHERE = frozenset({"$defs", "definitions", "$id"})
#: Keywords that are enforced where they stand alone, and beside ``type``.
_ALONE = ("anyOf", "$ref", "enum", "const")
_BESIDE: dict[str, frozenset[str]] = {
    "integer": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"}),
    "string": frozenset({"pattern", "minLength", "maxLength"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "boolean": frozenset(),
    "null": frozenset(),
}


class XGrammar:
    """The engine, bound to a vocabulary."""

    def __init__(self, vocabulary: Vocabulary, width: int):
        if not vocabulary.eos:
            raise Unsupported("structured output needs a model with an end-of-sequence token", PARAM)
        special = set(vocabulary.special)
        pieces = [b"" if token in special else piece for token, piece in enumerate(vocabulary.pieces[:width])]
        info = xgrammar.TokenizerInfo(
            pieces, xgrammar.VocabType.RAW, vocab_size=width, stop_token_ids=list(vocabulary.eos)
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=1, cache_enabled=False)
        self.ends = vocabulary.eos

    def prepare(self, ref: GrammarRef) -> str:
        kind, text = ref.kind, ref.text
        if ref.whitespace:
            raise BadRequest("whitespace_pattern is not supported by the backend xgrammar", PARAM)
        if kind in ("json_schema", "json_object"):
            kind, text = "json_schema", json.dumps(_schema(schema.parse(text or '{"type": "object"}'), ref.closed))
        elif kind == "choice":
            kind, text = "lark", prepare.choice(ref)
        elif kind == "structural_tag":
            text = _tag(ref)
        elif kind in ("grammar", "lark", "regex"):
            prepare.nests(text, f"the {kind}")
            if kind == "grammar" and not prepare.is_gbnf(text):
                kind = "lark"
            if kind == "lark":
                text = prepare.own_lark(text, lambda value: "%json " + json.dumps(_schema(value, ref.closed)))
        else:
            raise BadRequest(f"structured outputs of kind {kind!r} are not known", PARAM)
        return json.dumps({"kind": kind, "text": text, "tight": ref.whitespace == ""})

    def build(self, text: str) -> "XGrammarTemplate":
        asked = json.loads(text)
        kind, body = asked["kind"], asked["text"]
        try:
            if kind == "json_schema":
                compiled = self._compiler.compile_json_schema(
                    body, any_whitespace=not asked["tight"], separators=(",", ":") if asked["tight"] else None,
                    strict_mode=False, max_whitespace_cnt=None if asked["tight"] else schema.MAX_WHITESPACE,
                )  # fmt: skip
            elif kind == "regex":
                compiled = self._compiler.compile_regex(body)
            elif kind == "lark":
                compiled = self._compiler.compile_lark(body)
            elif kind == "structural_tag":
                compiled = self._compiler.compile_structural_tag(body)
            else:
                compiled = self._compiler.compile_grammar(body)
        except (RuntimeError, ValueError, TypeError) as error:
            raise BadRequest(f"xgrammar: {prepare.sentence(str(error))}", PARAM) from None
        return XGrammarTemplate(compiled, self.ends)


class XGrammarTemplate:
    worn = False

    def __init__(self, compiled: Any, ends: tuple[int, ...]):
        self.compiled = compiled
        self.ends = ends
        self.looks, self.telling = True, Telling()

    def open(self) -> "XGrammarState":
        return XGrammarState(self)


class XGrammarState(Grammar):
    def __init__(self, template: XGrammarTemplate):
        self._template = template
        self._matcher = xgrammar.GrammarMatcher(template.compiled)
        self._ends = template.ends
        #: Ends that were said; the library takes none but the first.
        self._beyond = 0

    def accept(self, token: int) -> bool:
        if token in self._ends:
            fine = self._beyond > 0 or self._matcher.is_completed()
            self._beyond += fine
            return fine
        return not self._beyond and self._matcher.accept_token(token)

    def fill(self, bits: Ints) -> None:
        if self._beyond:
            allow(bits, self._ends)
        else:
            self._matcher.fill_next_token_bitmask(bits.reshape(1, -1), 0)

    def rollback(self, count: int) -> None:
        beyond = min(count, self._beyond)
        self._beyond -= beyond
        if count > beyond:
            self._matcher.rollback(count - beyond)

    def forced(self, limit: int) -> list[int]:
        template = self._template
        if self._beyond or not template.looks:
            return []
        begin = time.thread_time()
        tokens = self._matcher.find_jump_forward_tokens()
        template.looks = template.telling.quick(time.thread_time() - begin)
        return tokens[:limit]


def _schema(value: Any, closed: bool) -> Any:
    """The schema in words of draft 2020-12. Raises ``BadRequest`` for what xgrammar does not enforce."""
    rewritten = schema.Rewriter(closed).schema(value, "", 0)
    _check(rewritten)
    return rewritten


def _check(value: Any) -> None:
    if isinstance(value, bool):
        if not value:
            raise BadRequest("the JSON schema has false where the backend xgrammar needs a schema", PARAM)
        return
    words = value.keys() - _EVERYWHERE
    alone = next((word for word in _ALONE if word in words), None)
    kind = value.get("type")
    if alone is not None:
        beside = words - {alone} - ({"type"} if _typed(value) else set())
    elif isinstance(kind, list):
        beside = words - {"type"}
    else:
        beside = words - {"type"} - (_BESIDE.get(kind, frozenset()) if isinstance(kind, str) else frozenset())
    if not set(map(str, value.get("required") or ())) <= value.get("properties", {}).keys():
        beside |= {"required"}
    if "pattern" in words:
        beside |= words & {"minLength", "maxLength"}
    if beside:
        word = min(beside)
        shown = "'format' or 'allOf'" if word == "allOf" else repr(word)
        raise BadRequest(
            f"the JSON schema has {shown} where the backend xgrammar does not enforce it; guidance may", PARAM
        )
    for word in ("properties", "$defs", "definitions"):
        for one in value.get(word, {}).values():
            _check(one)
    for one in (*value.get("anyOf", ()), *value.get("prefixItems", ())):
        _check(one)
    for word in ("items", "additionalProperties"):
        if not isinstance(value.get(word, True), bool):
            _check(value[word])


_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "null": type(None),
    "array": list,
    "object": dict,
}


def _typed(value: dict[str, Any]) -> bool:
    """Whether all of ``enum`` or ``const`` are of the one type that stands beside it, which then says nothing."""
    kind = _TYPES.get(str(value.get("type")))
    fixed = value["enum"] if "enum" in value else [value["const"]] if "const" in value else []
    if kind is None or not isinstance(fixed, list) or not fixed:
        return False
    return all(isinstance(one, kind) and (not isinstance(one, bool) or kind is bool) for one in fixed)


def _tag(ref: GrammarRef) -> str:
    """A structural tag in its newer form, its schemas checked."""
    value = tags.parse(ref.text)
    stack = [value]
    while stack:
        one = stack.pop()
        if isinstance(one, dict):
            if one.get("type") == "json_schema":
                one["json_schema"] = _schema(one.get("json_schema", True), ref.closed)
            else:
                stack += one.values()
        elif isinstance(one, list):
            stack += one
    return json.dumps({"type": "structural_tag", "format": value})
