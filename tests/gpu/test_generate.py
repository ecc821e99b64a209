"""LLM on a GPU, greedy in float32, against Transformers: every architecture."""

import numpy as np
import pytest
import torch

from octavo import LLM, SamplingParams
from octavo.testing import tiny

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]


def said(llm: LLM, prompts: list[list[int]], count: int) -> list[list[int]]:
    params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
    outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    return [output.outputs[0].token_ids for output in outputs]


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_generated_ids(tmp_path, architecture):
    transformers = pytest.importorskip("transformers")
    folder = tiny.write_hf(tmp_path, architecture, eos_token_id=None)
    rng = np.random.default_rng(0)
    prompts = [rng.integers(0, 320, length).tolist() for length in (3, 17, 40, 60)]
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    want = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        out = reference.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=30, do_sample=False, pad_token_id=0
        )
        want.append(out[0, len(prompt) :].tolist())
    sizes = {"max_num_batched_tokens": 16, "max_num_seqs": 3, "block_size": 4, "kv_cache_memory_bytes": 32 << 20}
    for more in ({}, {"enforce_eager": True}, {"async_scheduling": False}):
        with LLM(model=str(folder), dtype="float32", skip_tokenizer_init=True, device="cuda", **sizes, **more) as llm:
            assert said(llm, prompts, 30) == want, more
