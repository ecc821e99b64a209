"""A device on which single requests fail."""

from octavo.testing.fakes import FakeWorker

#: Requests with this total length fail in their middle.
FAULTY_LIMIT = 77


class Faulty(FakeWorker):
    def __init__(self, config):
        super().__init__(config)
        self.row_faults = self._fail

    def _fail(self, plan):
        rows = [self.rows[number] for number in plan.rows.tolist()]
        return {
            index: "a number that is none"
            for index, row in enumerate(rows)
            if row.new.limit == FAULTY_LIMIT and row.length > 40
        }
