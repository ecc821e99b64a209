"""A fake device that says what grammars allow."""

from collections.abc import Sequence

import numpy as np

from octavo.testing.fakes import FakeTicket, FakeWorker
from octavo.wire.plan import GrammarMasks


class Obedient(FakeWorker):
    """Says a token that the row's mask allows, any at all where it has none. For options that are not ``strict``."""

    def sample(self, masks: GrammarMasks | None) -> Sequence[FakeTicket]:
        tickets = super().sample(masks)
        if masks is not None:
            for row, bits in zip(masks.rows.tolist(), masks.bits, strict=True):
                may = np.flatnonzero(np.unpackbits(bits.view(np.uint8), bitorder="little"))
                token = tickets[0].result.tokens[row]
                token[0] = may[int(token[0]) % len(may)] if len(may) else 0
        return tickets
