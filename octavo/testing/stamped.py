"""A device that costs nothing and says when it said what: `octavo bench front` and `octavo bench soak` serve it.

Token ids are step numbers, counted from ``FIRST`` (and again from there, at the vocabulary's end). The file ``stamps``
holds, at each such id, the monotonic second in which the step's tokens were ready, and a token's text says its id
(``<filler 1024>``): whoever sees one knows how long it was on its way.

    python -m octavo.testing.stamped FOLDER STEP_SECONDS [flags of octavo serve]
"""

import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from octavo.config.engine import EngineConfig
from octavo.testing import served, tokenizer
from octavo.testing.fakes import FakeOptions, FakeTicket, FakeWorker
from octavo.wire.plan import GrammarMasks

WORKER = "octavo.testing.stamped:StampedWorker"
VOCAB = 1 << 15
#: Ids before it are bytes, words and special tokens.
FIRST = 1 << 10
STAMPS = "stamps"
MAX_LENGTH = 4096


class StampedWorker(FakeWorker):
    """``FakeWorker`` that checks nothing and says step numbers."""

    def __init__(self, config: EngineConfig, options: FakeOptions | None = None):
        super().__init__(config, options)
        self._stamps = np.memmap(config.model.facts.raw["stamps"], np.float64, "r+", shape=(VOCAB,))

    def sample(self, masks: GrammarMasks | None) -> Sequence[FakeTicket]:
        tickets = super().sample(masks)
        for ticket in tickets:
            token = FIRST + ticket.step % (VOCAB - FIRST)
            ticket.result.tokens[:] = token
            self._stamps[token] = ticket.when or time.monotonic()
        return tickets


def write(folder: Path, step_seconds: float) -> Path:
    """The model's directory, with empty stamps."""
    tokenizer.write(folder, VOCAB)
    np.zeros(VOCAB, np.float64).tofile(folder / STAMPS)
    fake = {"vocab": VOCAB, "strict": False, "latency": step_seconds, "memory": 64 << 20, "page_sizes": (16,)}
    config = served.CONFIG | {"vocab_size": VOCAB, "max_position_embeddings": MAX_LENGTH, "fake": fake}
    (folder / "config.json").write_text(json.dumps(config | {"stamps": str(folder / STAMPS)}))
    return folder


def main(argv: Sequence[str]) -> int:
    """Make the directory and serve it."""
    folder, step_seconds, *flags = argv
    return served.main([WORKER, str(write(Path(folder), float(step_seconds))), *flags])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
