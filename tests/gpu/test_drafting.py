"""Drafts on a GPU: between graphs, whatever else runs, each request says what it says without them."""

import pytest
import torch
from test_engine import core_of, requests_of, run

from octavo.config.engine import Speculation

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU is here"),
]


@pytest.mark.parametrize("windows", [(), (None, 9)])
@pytest.mark.parametrize("eager", [False, True])
def test_drafted_is_plain(windows, eager):
    ngram = Speculation(method="ngram", tokens=4, shortest=1, longest=2)
    for seed in (1, 2, 3):
        requests = requests_of(seed, plain=seed == 3)
        said = []
        for speculation in (None, ngram):
            core = core_of(windows, eager=eager, max_num_seqs=4, max_num_batched_tokens=24, speculation=speculation)
            said.append(run(core, requests, each=2))
            core.close()
        assert said[0] == said[1]
