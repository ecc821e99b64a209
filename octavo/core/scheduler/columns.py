"""Columns: what the scheduler knows of rows, as arrays, so that rows that only decode cost no Python each."""

import numpy as np

#: Stop ids of a row that are compared as columns; a row with more is looked at one by one.
STOPS = 8

#: Bits of ``flags``: what makes a row more than a plain decode.
LOGPROBS = 1
PROMPT_LOGPROBS = 2
MANY_STOPS = 4
GRAMMAR = 8
#: The client has not heard yet when its first token was known.
FIRST = 16
#: Drafts of the row are in flight: how far it is will be known when they come back.
VERIFYING = 32
#: What the row may say next is worked out off the loop: it is in no plan until that is known.
HELD = 64

# The fields of a block. What changes together stands together: a plan raises the first three of its decodes by one, a
# retired decode changes the second to the sixth by ``RETIRED_BY`` (the sixth where the client hears of it at once).
COMPUTED, PENDING, USES, DONE, LENGTH, TOLD, FULL_AT, CAPACITY, EPOCH, PREFILL, LIMIT, MIN_LENGTH = range(12)
EVERY, CLIENT, HANDLE, FLAGS, STOP = range(12, 17)
PLANNED = slice(COMPUTED, USES + 1)
RETIRED = slice(PENDING, TOLD + 1)
RETIRED_UNTOLD = slice(PENDING, TOLD)
RETIRED_BY = np.array([[-1], [-1], [1], [1], [1]], np.int32)

#: Bytes of tokens that are written to at the start: the system gives memory when it is first used, in large pieces, and
#: an admission that comes upon one has waited 5 ms for it.
AT_ONCE = 64 << 20


class Columns:
    """One entry a row. Lengths count tokens from the first of the prompt.

    computed   tokens whose keys and values are surely computed once every launched step is done (drafts do not count)
    pending    tokens that launched steps will surely add: length + pending is where the device is
    uses       launched sub-steps that name the row and are not retired
    done       tokens computed in retired steps: only these pages may be published or given back
    length     tokens known here
    told       tokens of which the client has heard
    full_at    the ``done`` at which the row's next page is full
    capacity   tokens that the row's pages hold
    epoch      of the request in the row; -1 where there is none
    prefill    1: the device has no last token yet, the row still takes pieces of known tokens
    last       the youngest launched step that samples this row, int64; kept for rows with a grammar
    stops      stop ids, [STOPS, rows], -1 where there are fewer
    tokens     the ids, [rows, longest]; where they are many, memory that is never written is never touched

    ``block`` [fields, rows] holds all but ``last`` and ``tokens``: one gather takes all about the rows of a step.
    """

    def __init__(self, rows: int, longest: int):
        self.block = block = np.zeros((STOP + STOPS, rows), np.int32)
        self.computed, self.pending, self.uses = block[COMPUTED], block[PENDING], block[USES]
        self.done, self.length, self.told = block[DONE], block[LENGTH], block[TOLD]
        self.full_at, self.capacity = block[FULL_AT], block[CAPACITY]
        self.epoch, self.prefill = block[EPOCH], block[PREFILL]
        self.limit, self.min_length = block[LIMIT], block[MIN_LENGTH]
        self.every, self.client, self.handle = block[EVERY], block[CLIENT], block[HANDLE]
        self.flags, self.stops = block[FLAGS], block[STOP:]
        self.last = np.full(rows, -1, np.int64)
        self.tokens = np.empty((rows, longest), np.int32)
        if self.tokens.nbytes <= AT_ONCE:
            self.tokens.fill(0)
        self.epoch.fill(-1)
