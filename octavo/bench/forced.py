"""`octavo bench grammar --forced`: answers of which a grammar forces most, with and without drafts of what it forces.

A model answers as agents have it answer: it is shown a schema or a tool, and a grammar holds it to that. Two engines
take turns, one as it is asked for and one that makes no drafts; the prompts are in the prefix cache of both. What is
told is medians, the median of the pairs' ratios, and what the first answers took, before their grammar was known.
"""

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from octavo.bench import report
from octavo.front.chat.constraint import constraint
from octavo.front.chat.tools import Choice, read_tools
from octavo.front.parsers.base import guided
from octavo.params import SamplingParams, StructuredOutputsParams

COLUMNS = [
    "workload", "rows", "tokens", "steps_without", "steps", "out_tok_s_without", "out_tok_s", "gain", "drafted",
    "accepted", "first_steps", "same",
]  # fmt: skip

_ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {
        "customer_identifier": {"type": "string", "maxLength": 24},
        "preferred_contact_method": {"enum": ["electronic_mail", "telephone_call", "postal_letter"]},
        "requires_manager_approval": {"type": "boolean"},
        "number_of_items_ordered": {"type": "integer", "minimum": 0, "maximum": 999},
        "order_fulfilment_status": {"enum": ["awaiting_payment", "in_preparation", "handed_to_carrier"]},
        "schema_version": {"const": "2026-01-order-record"},
    },
    "additionalProperties": False,
}
_ORDER["required"] = list(_ORDER["properties"])
_CALL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "schedule_customer_callback",
        "description": "Have somebody call a customer back.",
        "parameters": {
            "type": "object",
            "properties": {
                "customer_full_name": {"type": "string", "maxLength": 24},
                "callback_reason": {"enum": ["delivery_question", "billing_question", "product_complaint"]},
                "preferred_time_of_day": {"enum": ["early_morning", "around_noon", "late_afternoon"]},
                "priority_level": {"type": "integer", "minimum": 1, "maximum": 5},
            },
            "required": ["customer_full_name", "callback_reason", "preferred_time_of_day", "priority_level"],
            "additionalProperties": False,
        },
    },
}
_NAMES = ("Ann Smith", "Bela Novak", "Carla Jones", "Dev Patel", "Eve Olsen", "Finn Mayer", "Gita Rao", "Hugo Lind")
_THINGS = ("lamps", "chairs", "books", "kettles", "bicycles")
_WAYS = ("by phone in the morning", "by e-mail", "with a letter", "late in the afternoon")
#: Tokens of an answer at most; the grammars end theirs before.
_LONGEST = 256


class Work(NamedTuple):
    """``shown``: what the model is told to keep to."""

    name: str
    about: str
    shown: str
    grammar: StructuredOutputsParams


def works(tokenizer: Any) -> list[Work]:
    """What agents have a model write: a record in compact JSON, and a call of the tool that they name."""
    tools = read_tools([_CALL])
    call = constraint(guided(tokenizer), tools, Choice("named", _CALL["function"]["name"]), parallel=False)
    assert call is not None
    return [
        Work(
            "record",
            "an object of long names, enums and a const, compact",
            f"Answer with a JSON object of this schema, without spaces:\n{json.dumps(_ORDER)}",
            StructuredOutputsParams(json=_ORDER, disable_any_whitespace=True),
        ),
        Work(
            "call",
            "a call of a named tool",
            f"You have access to these tools: <tools>{json.dumps([_CALL])}</tools>\nAnswer with a JSON list of calls: "
            '[{"name": "tool", "parameters": {"name": value}}]',
            call,
        ),
    ]


def asked(number: int) -> str:
    """What a customer wants, the same for the same number."""
    name, thing, way = (some[number % len(some)] for some in (_NAMES, _THINGS, _WAYS))
    return f"{name} of customer number {4711 + number} ordered {2 + number % 7} {thing} and wants to be reached {way}."


@dataclass(frozen=True, kw_only=True)
class ForcedLoad:
    """``rows``: answers at once, a measurement each. ``pairs``: runs of each engine that count. ``engine``: keyword
    arguments of ``LLM``."""

    rows: Sequence[int] = (1, 8)
    pairs: int = 7
    engine: dict[str, Any] = field(default_factory=dict)


class Run(NamedTuple):
    seconds: float
    steps: int
    drafted: int
    accepted: int
    answers: list[list[int]]

    @property
    def tokens(self) -> int:
        return sum(map(len, self.answers))


def forced(load: ForcedLoad) -> list[dict[str, Any]]:
    """One record for each workload and number of rows. Raises what building an engine raises."""
    from octavo.llm import LLM

    engine = {"max_num_seqs": max(load.rows), "max_model_len": 1024} | load.engine
    plain = engine | {"speculative_config": {"method": "grammar", "num_speculative_tokens": 0}}
    label = (engine.get("model") or "embedded").rstrip("/").rpartition("/")[2]
    records = []
    with LLM(**engine) as with_drafts, LLM(**plain) as without:
        for work in works(with_drafts.get_tokenizer()):
            for rows in load.rows:
                found = _measure(without, with_drafts, work, rows, load.pairs)
                dtype = with_drafts.config.model.dtype
                records.append(
                    report.record(
                        model=label,
                        impl="octavo",
                        dtype=dtype,
                        workload=work.name,
                        about=work.about,
                        rows=rows,
                        **found,
                    )
                )
    return records


def _measure(without: Any, with_drafts: Any, work: Work, rows: int, pairs: int) -> dict[str, Any]:
    for llm in (without, with_drafts):  # the prompts into the cache
        _run(llm, work, rows, SamplingParams(temperature=0, max_tokens=1))
    params = SamplingParams(temperature=0, max_tokens=_LONGEST, structured_outputs=work.grammar)
    _run(without, work, rows, params)
    first = _run(with_drafts, work, rows, params)
    both: list[tuple[Run, Run]] = []
    for turn in range(pairs):
        order = (without, with_drafts) if turn % 2 == 0 else (with_drafts, without)
        runs = {id(llm): _run(llm, work, rows, params) for llm in order}
        both.append((runs[id(without)], runs[id(with_drafts)]))
    plain, drafted = ([pair[i] for pair in both] for i in (0, 1))
    # Answers may differ where the model's numbers are coarse, so speeds are compared, not seconds.
    ratios = [(b.tokens / b.seconds) / (a.tokens / a.seconds) for a, b in both]
    last = drafted[-1]
    return {
        "pairs": pairs,
        "tokens": last.tokens,
        "steps_without": plain[-1].steps,
        "steps": last.steps,
        "out_tok_s_without": round(report.median([run.tokens / run.seconds for run in plain]), 1),
        "out_tok_s": round(report.median([run.tokens / run.seconds for run in drafted]), 1),
        "gain": round(report.median(ratios), 3),
        "gains": [round(ratio, 3) for ratio in ratios],
        "drafted": last.drafted,
        "accepted": last.accepted,
        "first_steps": first.steps,
        "first_drafted": first.drafted,
        "first_accepted": first.accepted,
        "same": sum(a == b for a, b in zip(plain[-1].answers, last.answers, strict=True)),
    }


def _run(llm: Any, work: Work, rows: int, params: SamplingParams) -> Run:
    conversations = [
        [{"role": "system", "content": work.shown}, {"role": "user", "content": asked(number)}]
        for number in range(rows)
    ]
    before = llm.stats()
    begin = time.perf_counter()
    outputs = llm.chat(conversations, params, use_tqdm=False)
    seconds = time.perf_counter() - begin
    after = llm.stats()
    steps, drafted, accepted = (after[name] - before[name] for name in ("steps", "draft_tokens", "accepted_tokens"))
    return Run(seconds, steps, drafted, accepted, [list(one.outputs[0].token_ids) for one in outputs])
