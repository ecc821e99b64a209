"""`octavo bench grammar`: what a grammar costs the step loop (a mask), and its request (until the first mask).

Schemas are a few typical ones of this file, and those that the package check-jsonschema ships, where it is installed.
Answers are random walks: each next token is drawn from the mask, with a fixed seed.
"""

import json
import random
import time
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from octavo.bench import report
from octavo.common.math import cdiv
from octavo.config.args import EngineArgs
from octavo.config.resolve import resolve
from octavo.core.grammar.base import DEFAULT, ENGINES, Engine
from octavo.errors import BadRequest, ConfigError
from octavo.front.intake import ends_of
from octavo.front.tokenizers.base import load
from octavo.wire.request import GrammarRef

COLUMNS = [
    "workload",
    "schemas",
    "refused",
    "masks",
    "mask_us_p50",
    "mask_us_p99",
    "mask_us_max",
    "first_ms_p50",
    "first_ms_max",
    "accept_us_p50",
]

_TEXT, _INT = {"type": "string"}, {"type": "integer"}
_PERSON = {
    "type": "object",
    "properties": {"name": _TEXT, "age": {"type": "integer", "minimum": 0, "maximum": 130}, "email": _TEXT},
    "required": ["name", "age"],
    "additionalProperties": False,
}
#: What applications ask for.
TYPICAL: dict[str, dict[str, Any]] = {
    "object": {"type": "object"},
    "person": _PERSON,
    "people": {"type": "array", "items": _PERSON, "minItems": 1, "maxItems": 20},
    "call": {
        "type": "object",
        "properties": {"city": _TEXT, "unit": {"enum": ["celsius", "fahrenheit"]}, "days": _INT},
        "required": ["city"],
        "additionalProperties": False,
    },
    "label": {"type": "object", "properties": {"label": {"enum": ["good", "bad", "neither"]}}, "required": ["label"]},
    "dates": {"type": "array", "items": {"type": "string", "format": "date-time"}, "maxItems": 8},
    "tree": {
        "$defs": {
            "node": {
                "type": "object",
                "properties": {
                    "value": {"type": "number"},
                    "children": {"type": "array", "items": {"$ref": "#/$defs/node"}},
                },
                "required": ["value"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/node",
    },
    "shapes": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"kind": {"const": kind}, **{name: {"type": "number"} for name in names}},
                "required": ["kind", *names],
                "additionalProperties": False,
            }
            for kind, names in (("circle", ["radius"]), ("box", ["width", "height"]), ("ring", ["inner", "outer"]))
        ]
    },
    "code": {"type": "string", "pattern": "^[A-Z]{3}-[0-9]{4}(-[a-z]+)?$"},
}

#: Tokens of an answer at most.
TOKENS = 64


@dataclass(frozen=True, kw_only=True)
class GrammarLoad:
    """``walks`` random answers of each schema, of at most ``tokens`` tokens (``TOKENS``). ``flood``: so many hostile
    grammars beside a stream instead, on a device that takes ``step_ms`` milliseconds a step."""

    model: str | None = None
    backend: str = DEFAULT
    walks: int = 4
    tokens: int | None = None
    seed: int = 0
    flood: int = 0
    step_ms: float = 5.0


def grammar(load_: GrammarLoad) -> list[dict[str, Any]]:
    """One record for each set of schemas. Raises ``ConfigError``."""
    config = resolve(EngineArgs(model=load_.model))
    tokenizer, width = load(config.text.tokenizer), config.model.facts.vocab
    begin = time.perf_counter()
    vocabulary = msgspec.structs.replace(tokenizer.vocabulary(), eos=ends_of(config, tokenizer, width))
    if load_.flood:
        from octavo.bench.flood import flood

        return flood(vocabulary, width, load_.flood, load_.step_ms / 1e3, load_.backend, load_.tokens)
    taught = time.perf_counter()
    engine = ENGINES.load(load_.backend)(vocabulary, width)
    built = time.perf_counter()
    label = (load_.model or "embedded").rstrip("/").rpartition("/")[2]
    sets = {"typical": TYPICAL} | ({"check-jsonschema": vendored()} if find_spec("check_jsonschema") else {})
    records = []
    for name, schemas in sets.items():
        values = _measure(engine, width, schemas, load_)
        records.append(
            report.record(
                model=label,
                impl=f"octavo-{load_.backend}",
                workload=name,
                vocab=width,
                vocabulary_s=round(taught - begin, 3),
                engine_s=round(built - taught, 3),
                **values,
            )
        )
    return records


def vendored() -> dict[str, dict[str, Any]]:
    """The schemas that check-jsonschema ships."""
    spec = find_spec("check_jsonschema")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "builtin_schemas"
    found = {path.stem: json.loads(path.read_text()) for path in sorted(folder.rglob("*.json"))}
    if not found:
        raise ConfigError(f"{folder} holds no schemas")
    return found


def _measure(engine: Engine, width: int, schemas: dict[str, dict[str, Any]], load_: GrammarLoad) -> dict[str, Any]:
    firsts: list[float] = []
    masks: list[float] = []
    accepts: list[float] = []
    refused: dict[str, str] = {}
    draw = random.Random(load_.seed)
    for name, schema in schemas.items():
        text = json.dumps(schema)
        begin = time.perf_counter()
        try:
            template = engine.build(engine.prepare(GrammarRef("json_schema", text)))
        except BadRequest as error:
            refused[name] = error.message
            continue
        bits = np.zeros(cdiv(width, 32), np.int32)
        template.open().fill(bits)
        firsts.append(time.perf_counter() - begin)
        for _ in range(load_.walks):
            state = template.open()
            for _ in range(TOKENS if load_.tokens is None else load_.tokens):
                bits[:] = 0
                begin = time.perf_counter()
                state.fill(bits)
                masks.append(time.perf_counter() - begin)
                may = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
                begin = time.perf_counter()
                said = state.accept(int(may[draw.randrange(len(may))]))
                accepts.append(time.perf_counter() - begin)
                assert said, "a token of the mask was refused"
    return {
        "schemas": len(firsts),
        "refused": len(refused),
        "masks": len(masks),
        "mask_us_p50": round(report.percentile(masks, 50) * 1e6, 1),
        "mask_us_p99": round(report.percentile(masks, 99) * 1e6, 1),
        "mask_us_max": round(max(masks, default=0.0) * 1e6, 1),
        "accept_us_p50": round(report.percentile(accepts, 50) * 1e6, 1),
        "first_ms_p50": round(report.percentile(firsts, 50) * 1e3, 2),
        "first_ms_max": round(max(firsts, default=0.0) * 1e3, 2),
        "reasons": refused,
    }
