"""Ticket: one step's results on their way to the host. On a CPU they are there when the step returns."""

from octavo.wire.result import StepExtras, StepResult


class DoneTicket:
    """Results that are already on the host."""

    def __init__(self, result: StepResult, extras: StepExtras | None = None):
        self.step = result.step
        self._result = result
        self._extras = extras or StepExtras()

    def ready(self) -> bool:
        return True

    def wait(self, timeout: float | None = None) -> StepResult:
        return self._result

    def extras(self) -> StepExtras:
        return self._extras
