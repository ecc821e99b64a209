"""The whole engine, greedy, against Transformers' generate: chunked prompts that share steps, windows that move on."""

import pytest
import torch

from conformance.driver import random_ids
from octavo import LLM, SamplingParams
from octavo.testing import tiny

transformers = pytest.importorskip("transformers")


@pytest.mark.parametrize("architecture", tiny.ARCHITECTURES)
def test_generated_ids(tmp_path, architecture):
    folder = tiny.write_hf(tmp_path, architecture, eos_token_id=None)
    prompts = [random_ids(length, 320, length) for length in (3, 17, 40, 60)]
    reference = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    want = []
    for prompt in prompts:
        ids = torch.tensor([prompt])
        seen = torch.ones_like(ids)
        out = reference.generate(ids, attention_mask=seen, max_new_tokens=30, do_sample=False, pad_token_id=0)
        want.append(out[0, len(prompt) :].tolist())
    sizes = {"threads": 1, "max_num_batched_tokens": 16, "max_num_seqs": 3, "block_size": 4}
    params = SamplingParams(temperature=0, max_tokens=30, ignore_eos=True, detokenize=False)
    with LLM(model=str(folder), dtype="float32", skip_tokenizer_init=True, **sizes) as llm:
        outputs = llm.generate([{"prompt_token_ids": prompt} for prompt in prompts], params, use_tqdm=False)
    assert [output.outputs[0].token_ids for output in outputs] == want
