"""Bursts on a GPU: several steps of one plan, replayed back to back, say what single steps say."""

import pytest
import torch
from msgspec.structs import replace
from test_engine import core_of, requests_of, run

from octavo import LLM, SamplingParams
from octavo.testing import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]


@pytest.mark.parametrize("windows", [(), (None, 9)])
@pytest.mark.parametrize("plain", [True, False])
def test_bursts_are_single_steps(windows, plain):
    requests = [replace(one, every=index % 3) for index, one in enumerate(requests_of(11, 12, plain=plain))]
    core = core_of(windows, max_num_seqs=6, max_num_batched_tokens=64)
    want = run(core, requests, 3)
    core.close()
    repeats = []
    for options in ({}, {"depth": 2}, {"depth": 2, "pages": 24}, {"depth": 2, "eager": True}):
        for burst in (2, 5, 16):
            core = core_of(windows, max_num_seqs=6, max_num_batched_tokens=64, burst=burst, **options)
            forward = core.worker.forward
            core.worker.forward = lambda plan, forward=forward: (
                repeats.append(plan.repeat),
                forward(plan),
            )
            assert run(core, requests, 3) == want, (options, burst)
            assert core.faults == 0
            core.scheduler.book.check()
            pool = core.scheduler.book.kv.pool
            assert pool.free == pool.pages - 1
            core.close()
    assert max(repeats) > 1


def test_bursts_of_the_whole_engine(tmp_path):
    """With the flag and the clock of a user, whatever n that gives."""
    folder = tiny.write_hf(tmp_path, "LlamaForCausalLM", eos_token_id=None)
    prompts = [{"prompt_token_ids": [3 + index, 5, 7]} for index in range(6)]
    params = [
        SamplingParams(temperature=0.8, seed=index, max_tokens=40 + index, detokenize=False) for index in range(6)
    ]
    said = []
    for burst in (0, 4, 50):
        with LLM(
            model=str(folder), device="cuda", skip_tokenizer_init=True, kv_cache_memory_bytes=32 << 20, burst_ms=burst
        ) as llm:
            outputs = llm.generate(prompts, params, use_tqdm=False)
            said.append([output.outputs[0].token_ids for output in outputs])
    assert said[1:] == said[:-1]
