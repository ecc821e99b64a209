"""The embedded model on a GPU, in float32 and greedy, says token for token what Transformers was recorded to say of the
same file (golden/smollm2.json, flow/golden_smollm2.json): with the defaults, in bursts, in pieces, preempted, eager.

SMOLLM2_GGUF names the file where its package is not installed.
"""

import json
import os
from pathlib import Path

import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.config.args import EngineArgs
from octavo.config.checkpoint import embedded, locate
from octavo.config.resolve import resolve
from octavo.core.engine.core import EngineCore
from octavo.core.scheduler.burst import Pace
from octavo.errors import CheckpointError, ConfigError
from octavo.testing.cores import Drawn

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]
DEVICE = "cuda"
TESTS = Path(__file__).parents[1]
IDS = json.loads((TESTS / "golden" / "smollm2.json").read_text())
TEXTS = json.loads((TESTS / "flow" / "golden_smollm2.json").read_text())
#: Tokens a page, and pages in which some of the prompts fit together, and their answers do not.
PAGE, FEW = 4, 36


@pytest.fixture(scope="module")
def file() -> str:
    named = os.environ.get("SMOLLM2_GGUF")
    if named:
        return named
    try:
        return str(embedded())
    except CheckpointError:
        raise
    except ConfigError as error:
        pytest.skip(str(error))


class Seen:
    """An engine, and what its core planned: ``repeats`` of plans, ``preemptions``."""

    def __init__(self, file: str, pace: Pace | None = None, **options):
        config = resolve(EngineArgs.of({"model": file, "device": DEVICE, "dtype": "float32", **options}))
        self.core = EngineCore(config, pace=pace)
        self.llm = LLM.from_config(config, self.core)
        self.repeats: list[int] = []
        self.preemptions = 0
        forward, preempt = self.core.worker.forward, self.core.scheduler.book.preempt

        def planned(plan):
            self.repeats.append(plan.repeat)
            forward(plan)

        def preempted(request):
            self.preemptions += 1
            preempt(request)

        self.core.worker.forward, self.core.scheduler.book.preempt = planned, preempted

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.llm.close()

    def say(self, prompts: list[list[int]], counts: list[int]) -> list[list[int]]:
        params = [SamplingParams(temperature=0, max_tokens=count, detokenize=False) for count in counts]
        outputs = self.llm.generate([{"prompt_token_ids": one} for one in prompts], params, use_tqdm=False)
        assert self.core.faults == 0
        pool = self.core.scheduler.book.kv.pool
        assert pool.free == pool.pages - 1
        return [output.outputs[0].token_ids for output in outputs]


def check(engine: Seen) -> None:
    """Each alone, then all at once, twice: what is captured on its second use is replayed."""
    prompts, want = [case["prompt_ids"] for case in IDS], [case["output_ids"] for case in IDS]
    counts = [len(ids) for ids in want]
    for prompt, count, ids in zip(prompts, counts, want, strict=True):
        assert engine.say([prompt], [count]) == [ids]
    for _ in range(2):
        engine.llm.reset_prefix_cache()
        assert engine.say(prompts, counts) == want


def test_with_the_defaults_of_a_user(file):
    with Seen(file, max_num_seqs=16) as engine:
        check(engine)
        for known, outputs in (
            (TEXTS["completions"], engine.llm.generate),
            (TEXTS["chats"], engine.llm.chat),
        ):
            asked = [one["prompt"] for one in known]
            if known is TEXTS["chats"]:
                asked = [[{"role": "user", "content": prompt}] for prompt in asked]
            params = [SamplingParams(temperature=0, max_tokens=len(one["ids"])) for one in known]
            for one, output in zip(known, outputs(asked, params, use_tqdm=False), strict=True):
                assert output.prompt_token_ids == one["prompt_ids"]
                assert output.outputs[0].token_ids == one["ids"]
                assert output.outputs[0].text == one.get("text", output.outputs[0].text)


def test_in_bursts(file):
    with Seen(file, Drawn(16), skip_tokenizer_init=True, max_model_len=128, max_num_seqs=8, burst_ms=4) as engine:
        check(engine)
        assert max(engine.repeats) > 8


def test_in_pieces_and_preempted(file):
    sizes = {"max_model_len": 128, "max_num_seqs": 6, "max_num_batched_tokens": 16, "block_size": PAGE}
    facts = locate(file).facts
    page = facts.layers * 2 * facts.kv_heads * facts.head_dim * torch.float32.itemsize * PAGE
    with Seen(file, skip_tokenizer_init=True, kv_cache_memory_bytes=page * (FEW + 1), **sizes) as engine:
        check(engine)
        assert engine.preemptions


def test_eager_and_step_by_step(file):
    with Seen(
        file, skip_tokenizer_init=True, max_model_len=128, max_num_seqs=8, enforce_eager=True, async_scheduling=False
    ) as engine:
        check(engine)
        assert max(engine.repeats) == 1
