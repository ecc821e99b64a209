"""LLM over a real core and a fake worker: results in order, errors before anything runs, an engine that stays clean."""

import gc
import signal

import numpy as np
import pytest

from octavo import LLM, SamplingParams
from octavo.config.args import EngineArgs
from octavo.config.resolve import resolve
from octavo.core.engine.core import EngineCore
from octavo.errors import BadRequest, ConfigError, EngineDead, Unsupported
from octavo.params import RequestOutputKind
from octavo.testing.fakes import FakeOptions, FakeWorker, expected
from octavo.testing.served import FAKE, fake_model

VOCAB = 320
GREEDY = SamplingParams(temperature=0.0, max_tokens=5)


class House:
    """An LLM and the fake worker under it."""

    def __init__(self, folder, fake=None, **options):
        config = resolve(EngineArgs.of({"model": str(fake_model(folder)), **options}), worker=FAKE)
        self.worker = FakeWorker(config, FakeOptions(vocab=VOCAB, **(fake or {})))
        self.llm = LLM.from_config(config, EngineCore(config, self.worker))

    def generate(self, prompts, params=None, **more):
        return self.llm.generate(prompts, params, use_tqdm=False, **more)

    def clean(self):
        stats = self.llm._engine.call("stats")
        assert (stats["running"], stats["waiting"], stats["pages_free"]) == (0, 0, stats["pages"])
        assert self.worker.wrong == []


@pytest.fixture
def house(tmp_path):
    one = House(tmp_path)
    yield one
    one.clean()
    one.llm.close()


def right(prompt, seed, max_tokens):
    return expected(prompt, seed, len(prompt) + max_tokens, VOCAB, stops=(1,))


def test_results_in_the_order_of_the_prompts(house):
    prompts = [[5 + i] * (1 + i % 9) for i in range(60)]
    params = [SamplingParams(max_tokens=1 + i % 13, seed=i) for i in range(60)]
    outputs = house.generate(prompts, params)
    assert [output.prompt_token_ids for output in outputs] == prompts
    for i, output in enumerate(outputs):
        answer = output.outputs[0]
        assert output.finished
        assert answer.token_ids == right(prompts[i], i, 1 + i % 13)
        assert answer.finish_reason == ("stop" if answer.token_ids[-1] == 1 else "length")


def test_one_prompt_or_many_text_or_ids_or_dicts(house):
    tokenizer = house.llm.get_tokenizer()
    ids = tokenizer.encode("the cat")
    for prompts in ("the cat", ["the cat"], ids, [ids], {"prompt": "the cat"}, [{"prompt_token_ids": ids}]):
        outputs = house.generate(prompts, SamplingParams(seed=1, max_tokens=4))
        assert len(outputs) == 1
        assert outputs[0].outputs[0].token_ids == right(ids, 1, 4)
    assert house.generate([]) == []


def test_arrays_of_ids_are_prompts(house):
    greedy = SamplingParams(max_tokens=3, seed=1)
    want = right([5, 6, 7], 1, 3)
    row = np.array([5, 6, 7])
    for one in (row, row.astype(np.uint16), list(row), {"prompt_token_ids": row}):
        assert [output.outputs[0].token_ids for output in house.generate(one, greedy)] == [want]
    for many in (np.array([row, row]), [row, row], [list(row)] * 2):
        assert [output.outputs[0].token_ids for output in house.generate(many, greedy)] == [want, want]
    assert house.generate(np.array([], np.int64)) == []
    for wrong in (np.array([0.5]), np.array(5), np.zeros((1, 1, 1), int), np.array([True]), np.array([[320]])):
        with pytest.raises(BadRequest, match="prompts"):
            house.generate(wrong)
    with pytest.raises(BadRequest, match="possible: prompt, prompt_token_ids, cache_salt"):
        house.generate({"prompt_embeds": row})


def test_the_first_token_is_timed_though_all_are_told_at_the_end(tmp_path):
    house = House(tmp_path, fake={"latency": 0.01})
    (output,) = house.generate([[5]], SamplingParams(max_tokens=11, ignore_eos=True))
    times = output.metrics
    assert times.arrival_time <= times.first_scheduled_time <= times.first_token_time
    assert times.last_token_time - times.first_token_time >= 0.09
    assert times.finished_time >= times.last_token_time
    house.llm.close()


def test_several_answers_and_their_logprobs(house):
    output = house.generate([[5, 6]], SamplingParams(n=3, seed=4, max_tokens=6, logprobs=2, ignore_eos=True))[0]
    for i, answer in enumerate(output.outputs):
        assert answer.token_ids == expected([5, 6], 4 + i, 8, VOCAB)
        assert len(answer.logprobs) == 6
        assert [next(iter(position)) for position in answer.logprobs] == answer.token_ids
        chosen = zip(answer.logprobs, answer.token_ids, strict=True)
        assert answer.cumulative_logprob == sum(position[token].logprob for position, token in chosen)


def test_prompts_are_scored(house):
    output = house.generate([[5, 6, 7, 8]], SamplingParams(max_tokens=0, prompt_logprobs=0))[0]
    assert (output.outputs[0].token_ids, output.outputs[0].finish_reason) == ([], "length")
    assert [None if one is None else list(one) for one in output.prompt_logprobs] == [None, [6], [7], [8]]


def test_an_answer_ends_at_the_models_length(house):
    limit = house.llm._engine.ready.max_model_len
    output = house.generate([[5] * (limit - 3)], SamplingParams(max_tokens=100, ignore_eos=True))[0]
    assert (len(output.outputs[0].token_ids), output.outputs[0].finish_reason) == (3, "length")


def test_the_callers_parameters_are_left_alone(house):
    params = SamplingParams(max_tokens=2, output_kind=RequestOutputKind.DELTA)
    house.generate(["a", "b"], params)
    assert params.output_kind is RequestOutputKind.DELTA


def test_a_stop_string(house):
    whole = house.generate([[5, 6]], SamplingParams(seed=3, max_tokens=40, ignore_eos=True))[0].outputs[0]
    stop = next(whole.text[i : i + 2] for i in range(6, 60) if "\ufffd" not in whole.text[i : i + 2])
    cut = house.generate([[5, 6]], SamplingParams(seed=3, max_tokens=40, ignore_eos=True, stop=stop))[0].outputs[0]
    assert cut.text == whole.text[: whole.text.index(stop)]
    assert (cut.finish_reason, cut.stop_reason) == ("stop", stop)
    assert cut.token_ids == whole.token_ids[: len(cut.token_ids)]


def test_nothing_runs_where_one_request_is_wrong(house):
    for prompts, params in (
        (["a", ""], GREEDY),
        (["a", [VOCAB]], GREEDY),
        (["a", "b"], [GREEDY, SamplingParams(stop_token_ids=[VOCAB])]),
        (["a", "b"], [GREEDY]),
        (["a", [5] * 5000], GREEDY),
        (7, GREEDY),
        (["a"], "greedy"),
        (["a"], {"n": 1}),
        (["a"], [7]),
        (["a"], SamplingParams(n=2**31 - 1)),
    ):
        plans = house.worker.plans
        with pytest.raises(BadRequest):
            house.generate(prompts, params)
        house.clean()
        assert house.worker.plans <= plans + 1
    with pytest.raises(BadRequest, match="2 prompts, but 1 priorities"):
        house.generate(["a", "b"], GREEDY, priority=[0])


def test_messages_that_are_none(house):
    for messages in (None, "hi", 7):
        with pytest.raises(BadRequest, match="messages"):
            house.llm.chat(messages, GREEDY, use_tqdm=False)


def test_chat(house):
    messages = [{"role": "user", "content": "hi"}]
    prompt = "<|turn|>user\nhi<|turn_end|>\n<|turn|>assistant\n"
    params = SamplingParams(seed=1, max_tokens=4)
    output = house.llm.chat(messages, params, use_tqdm=False)[0]
    assert output.prompt == prompt
    assert output.outputs[0].token_ids == right(house.llm.get_tokenizer().encode(prompt), 1, 4)
    assert len(house.llm.chat([messages, messages], params, use_tqdm=False)) == 2
    answer = [*messages, {"role": "assistant", "content": "I"}]
    output = house.llm.chat(answer, params, use_tqdm=False, add_generation_prompt=False, continue_final_message=True)[0]
    assert output.prompt.endswith("assistant\nI")


def test_the_prefix_cache_is_counted_and_reset(house):
    prompt = [5] * 40
    counts = [house.generate([prompt], GREEDY)[0].num_cached_tokens for _ in range(2)]
    assert counts[0] == 0
    assert counts[1] >= 16
    assert house.llm.reset_prefix_cache()
    assert house.generate([prompt], GREEDY)[0].num_cached_tokens == 0
    other = {"prompt_token_ids": prompt, "cache_salt": "another tenant"}
    assert house.generate([other], GREEDY)[0].num_cached_tokens == 0


def test_little_memory_only_takes_longer(tmp_path):
    # 24 pages of 4 tokens for 8 requests of 40: they take turns, and come back after preemption.
    house = House(tmp_path, {"memory": 24 * 16}, max_model_len=64, max_num_seqs=8, block_size=4)
    params = SamplingParams(max_tokens=30, ignore_eos=True, seed=2)
    outputs = house.generate([[5 + i] * 10 for i in range(8)], params)
    for i, output in enumerate(outputs):
        assert output.outputs[0].token_ids == expected([5 + i] * 10, 2, 40, VOCAB)
    house.clean()
    house.llm.close()


def test_priority(tmp_path):
    house = House(tmp_path, max_num_seqs=1, scheduling_policy="priority")
    ends = []
    generate = house.llm._engine.run
    house.llm._engine.run = lambda groups, finished: generate(groups, lambda group: ends.append(group.request_id))
    house.generate(["a", "b", "c"], SamplingParams(max_tokens=3, ignore_eos=True), priority=[3, 2, 1])
    assert ends == ["2", "1", "0"]
    house.llm.close()


@pytest.mark.parametrize(("policy", "known"), [("fcfs", 2), ("priority", 9)])
def test_the_device_begins_before_the_core_has_taken_all(tmp_path, monkeypatch, policy, known):
    """But not where one that comes last may be the first to run."""
    house = House(tmp_path, max_num_seqs=4, max_num_batched_tokens=16, scheduling_policy=policy)
    book = house.llm._engine.core.scheduler.book
    live, forward = [], house.worker.forward
    monkeypatch.setattr(house.worker, "forward", lambda plan: (live.append(len(book.live)), forward(plan)))
    prompts = [[5 + i] * 10 for i in range(9)]
    outputs = house.generate(prompts, [SamplingParams(max_tokens=7, seed=i) for i in range(9)])
    assert live[0] == known
    assert [output.outputs[0].token_ids for output in outputs] == [right(prompts[i], i, 7) for i in range(9)]
    house.clean()
    house.llm.close()


def test_a_run_makes_no_garbage_and_leaves_the_collector_as_it_was(house):
    prompts, params = [[5, 6, 7]] * 40, SamplingParams(max_tokens=6, ignore_eos=True, temperature=0.7)
    house.generate(prompts, params)
    gc.collect()
    assert gc.isenabled()
    house.generate(prompts, params)
    assert gc.isenabled()
    gc.disable()
    try:
        house.generate(prompts, params)
        assert not gc.isenabled()
        assert gc.collect() == 0, "what the run made has cycles, and nobody collects meanwhile"
    finally:
        gc.enable()


def test_ctrl_c_ends_the_run_and_leaves_a_clean_engine(house):
    def interrupt(plan):
        if house.worker.plans == 5:
            signal.raise_signal(signal.SIGINT)

    house.worker.on_forward = interrupt
    with pytest.raises(KeyboardInterrupt):
        house.generate([[5 + i] * 20 for i in range(20)], SamplingParams(max_tokens=60, ignore_eos=True))
    house.worker.on_forward = None
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    house.clean()
    assert house.generate([[5, 6]], SamplingParams(seed=7, max_tokens=3))[0].outputs[0].token_ids == right([5, 6], 7, 3)


def test_one_that_fails_does_not_take_the_others_with_it(house, caplog):
    house.worker.row_faults = lambda plan: {0: "the logits are not finite"} if house.worker.plans == 3 else {}
    outputs = house.generate([[5], [6], [7]], SamplingParams(max_tokens=8, ignore_eos=True, seed=1))
    reasons = [output.outputs[0].finish_reason for output in outputs]
    assert sorted(reasons) == ["error", "length", "length"]
    for i, output in enumerate(outputs):
        if reasons[i] == "length":
            assert output.outputs[0].token_ids == expected([5 + i], 1, 9, VOCAB)


def test_a_closed_engine_says_so(tmp_path):
    with House(tmp_path).llm as llm:
        pass
    llm.close()
    with pytest.raises(EngineDead, match="closed"):
        llm.generate("a", GREEDY, use_tqdm=False)


def test_options_that_are_none():
    with pytest.raises(ConfigError, match=r"unknown argument 'max_model_length' \(did you mean 'max_model_len'\?\)"):
        LLM(max_model_length=5)


def test_ids_only(tmp_path):
    house = House(tmp_path, skip_tokenizer_init=True)
    output = house.generate([[5, 6]], SamplingParams(seed=1, max_tokens=4, detokenize=False))[0].outputs[0]
    assert (output.text, output.token_ids) == ("", right([5, 6], 1, 4))
    for call in (
        lambda: house.generate("text"),
        lambda: house.llm.chat([{"role": "user", "content": "a"}]),
        house.llm.get_tokenizer,
    ):
        with pytest.raises(BadRequest, match="tokenizer"):
            call()
    house.llm.close()


def test_defaults_come_from_the_model(tmp_path):
    fake_model(tmp_path)
    (tmp_path / "generation_config.json").write_text('{"temperature": 0.25, "top_k": 7, "do_sample": true}')
    house = House(tmp_path)
    params = house.llm.get_default_sampling_params()
    assert (params.temperature, params.top_k) == (0.25, 7)
    house.llm.close()


def test_a_long_run_shows_how_far_it_is(house, capsys, monkeypatch):
    monkeypatch.setattr("octavo.llm._BAR_DELAY", 0.0)
    house.llm.generate([[5]] * 3, GREEDY)
    shown = capsys.readouterr().err
    assert "Processed prompts" in shown
    assert "3/3" in shown
    assert "output" in shown


def test_calls_written_for_vllm(house):
    assert len(house.generate([[5]], GREEDY, lora_request=None)) == 1
    for call in (house.llm.generate, house.llm.chat):
        with pytest.raises(Unsupported, match="LoRA"):
            call([], lora_request=object())
    with pytest.raises(Unsupported):
        house.llm.sleep(1)  # the fake device cannot
    with pytest.raises(BadRequest, match="level"):
        house.llm.sleep(3)
    with pytest.raises(BadRequest, match="possible: weights, kv_cache"):
        house.llm.wake_up(["all"])
    house.llm.wake_up()
    assert house.llm.reset_prefix_cache() is True
    assert len(house.generate([[5]], GREEDY)) == 1
