"""Columns: what the scheduler knows of rows, as arrays, so that rows that only decode cost no Python each."""

import numpy as np

#: Stop ids of a row that are compared as columns; a row with more is looked at one by one.
STOPS = 8

#: Bits of ``flags``: what makes a row more than a plain decode.
LOGPROBS = 1
PROMPT_LOGPROBS = 2
MANY_STOPS = 4
GRAMMAR = 8


class Columns:
    """One entry a row. Lengths count tokens from the first of the prompt.

    length     tokens known here
    pending    tokens that launched steps will surely add: length + pending is where the device is
    computed   tokens whose keys and values are computed once every launched step is done
    done       the same for the steps that are retired: only these pages may be published or given back
    capacity   tokens that the row's pages hold
    published  pages whose content others may find
    told       tokens of which the client has heard
    epoch      of the request in the row; -1 where there is none
    uses       launched sub-steps that name the row and are not retired
    prefill    the device has no last token yet: the row still takes pieces of known tokens
    last       the youngest launched step that samples this row
    tokens     the ids, [rows, longest]; memory that is never written is never touched
    """

    def __init__(self, rows: int, longest: int):
        def column(dtype=np.int32, fill=0):
            return np.full(rows, fill, dtype)

        self.length = column()
        self.pending = column()
        self.computed = column()
        self.done = column()
        self.capacity = column()
        self.published = column()
        self.told = column()
        self.limit = column()
        self.min_length = column()
        self.every = column()
        self.client = column()
        self.handle = column(np.int64)
        self.epoch = column(fill=-1)
        self.uses = column()
        self.flags = column(np.uint8)
        self.prefill = column(np.bool_)
        self.last = column(np.int64, -1)
        self.stops = np.full((rows, STOPS), -1, np.int32)
        self.tokens = np.empty((rows, longest), np.int32)
