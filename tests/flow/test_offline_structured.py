"""Structured outputs through LLM: what was asked is what comes, however requests are batched, cut or preempted."""

import asyncio
import json
import re

import jsonschema
import pytest

from octavo import LLM, AsyncLLM, SamplingParams, StructuredOutputsParams
from octavo.errors import BadRequest
from octavo.testing import tiny, tokenizer
from octavo.testing.served import PATIENCE

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
    },
    "required": ["name", "age", "tags"],
    "additionalProperties": False,
}


def asks(**more):
    return StructuredOutputsParams(**more)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tokenizer.write(tiny.write_hf(tmp_path_factory.mktemp("model"), "LlamaForCausalLM"), size=320)


def make(folder, **more) -> LLM:
    return LLM(str(folder), dtype="float32", max_model_len=96, block_size=16, threads=1, **more)


@pytest.fixture(scope="module")
def llm(folder):
    with make(folder, max_num_seqs=8) as found:
        yield found


def test_answers_do_not_depend_on_their_neighbours_and_obey(folder, llm):
    kinds = [
        (asks(regex="[a-f]{30}"), lambda text: re.fullmatch("[a-f]{30}", text)),
        (asks(choice=["one of them", "another", "日本"]), lambda text: text in ("one of them", "another", "日本")),
        (asks(regex=r"(\d{4}-){6}end"), lambda text: re.fullmatch(r"(\d{4}-){6}end", text)),
        (None, lambda text: True),
    ]
    prompts = [[5 + i, 9, 40 + i] * 4 for i in range(8)]
    params = [
        SamplingParams(max_tokens=60, seed=i, structured_outputs=kinds[i % 4][0], ignore_eos=kinds[i % 4][0] is None)
        for i in range(8)
    ]
    outputs = [one.outputs[0] for one in llm.generate(prompts, params, use_tqdm=False)]
    for i, output in enumerate(outputs):
        assert kinds[i % 4][1](output.text), output.text
        assert output.finish_reason == ("length" if i % 4 == 3 else "stop")
    right = [output.token_ids for output in outputs]
    tight = {"max_num_seqs": 6, "max_num_batched_tokens": 16, "kv_cache_memory_bytes": 160 * 1024}
    with make(folder, **tight) as preempted:
        again = preempted.generate(prompts, params, use_tqdm=False)
    assert [one.outputs[0].token_ids for one in again] == right


def test_many_answers_share_a_grammar(llm):
    params = SamplingParams(n=4, seed=3, max_tokens=40, structured_outputs=asks(regex="[a-z]{12}"))
    [output] = llm.generate([[5, 6, 7]], params, use_tqdm=False)
    texts = [one.text for one in output.outputs]
    assert len(set(texts)) == 4
    assert all(re.fullmatch("[a-z]{12}", text) for text in texts)


def test_a_grammar_holds_behind_reasoning_only(llm):
    free = SamplingParams(max_tokens=40, seed=1, ignore_eos=True)
    [output] = llm.generate([[5, 6, 7]], free, use_tqdm=False)
    ids = output.outputs[0].token_ids
    place = ids.index(ids[5])
    ruled = free.clone(structured_outputs=asks(regex="[0-9]+", after=(ids[place],)))
    [output] = llm.generate([[5, 6, 7]], ruled, use_tqdm=False)
    said = output.outputs[0].token_ids
    assert said[: place + 1] == ids[: place + 1]
    ends = llm.get_tokenizer().eos
    digits = [token for token in said[place + 1 :] if token not in ends]
    assert digits
    assert re.fullmatch("[0-9]+", llm.get_tokenizer().decode(digits))


def test_what_is_wrong_is_told_and_the_engine_goes_on(llm):
    for wrong in (asks(regex="("), asks(json={"not": {}}), asks(grammar="start: nope")):
        with pytest.raises(BadRequest) as error:
            llm.generate([[5]], SamplingParams(structured_outputs=wrong), use_tqdm=False)
        assert error.value.param == "structured_outputs"
    for more in ({}, {"json": {}, "regex": "a"}, {"choice": []}, {"json_object": False}, {"regex": 5}, {"json": [1]}):
        with pytest.raises(BadRequest):
            asks(**more)
    with pytest.raises(BadRequest, match="min_tokens"):
        SamplingParams(min_tokens=3, structured_outputs=asks(regex="a"))
    fine = SamplingParams(structured_outputs=asks(choice=["fine"]))
    assert llm.generate([[5]], fine, use_tqdm=False)[0].outputs[0].text == "fine"


def test_an_engine_without_a_tokenizer_says_so(folder):
    with (
        make(folder, skip_tokenizer_init=True) as llm,
        pytest.raises(BadRequest, match="tokenizer"),
    ):
        llm.generate([[5]], SamplingParams(detokenize=False, structured_outputs=asks(regex="a")), use_tqdm=False)


def test_a_server_gets_ready_while_nobody_waits(folder, monkeypatch):
    monkeypatch.setattr("octavo.front.engine._IDLE", 0.01)

    async def run() -> None:
        async with AsyncLLM(str(folder), inline=True, dtype="float32", max_model_len=96, threads=1) as llm:
            engine = llm.engine
            engine.attach()
            free = llm.generate([5, 6], SamplingParams(max_tokens=30, ignore_eos=True))
            await anext(free)
            engine.teach_when_idle()
            await asyncio.sleep(0.05)
            async for _ in free:
                pass
            async with asyncio.timeout(PATIENCE):
                while not engine._taught:
                    await asyncio.sleep(0.01)
            ruled = SamplingParams(structured_outputs=asks(choice=["fine"]))
            texts = [one.outputs[0].text async for one in llm.generate([5], ruled)]
            assert texts[-1] == "fine"

    asyncio.run(run())


@pytest.mark.model
def test_the_embedded_model_writes_what_it_is_told_to():
    schema = asks(json=SCHEMA)
    chats = [[{"role": "user", "content": text}] for text in ("Describe Ada as JSON.", "A date?", "Is water wet?")]
    kinds = [schema, asks(regex=r"\d{4}-\d{2}-\d{2}"), asks(choice=["yes", "no"])]
    params = [SamplingParams(temperature=0, max_tokens=120, structured_outputs=one) for one in kinds]
    with LLM(dtype="float32", max_model_len=256, max_num_seqs=4, threads=1) as llm:
        answers = [one.outputs[0] for one in llm.chat(chats, params, use_tqdm=False)]
    assert [one.finish_reason for one in answers] == ["stop"] * 3
    jsonschema.validate(json.loads(answers[0].text), SCHEMA)
    assert re.fullmatch(r"\d{4}-\d{2}-\d{2}", answers[1].text)
    assert answers[2].text in ("yes", "no")
