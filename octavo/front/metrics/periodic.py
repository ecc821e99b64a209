"""The log line every few seconds: throughput, queue, cache. Silent, and without a timer, while nothing happens."""

import asyncio
import time

from octavo.common.log import logger
from octavo.wire.stats import StepStats

_log = logger(__name__)


class Periodic:
    """Adds up step statistics and logs a line every ``interval`` seconds in which there were any."""

    def __init__(self, interval: float = 10.0):
        self._interval = interval
        self._timer: asyncio.TimerHandle | None = None
        self._since = 0.0
        self._clear()
        self._last = StepStats()

    def stats(self, stats: StepStats) -> None:
        """What the core reports. Called on the event loop."""
        if self._timer is None:
            self._since = time.monotonic()
            self._timer = asyncio.get_running_loop().call_later(self._interval, self._tell)
        self._prompt += stats.prompt_tokens
        self._generated += stats.generation_tokens
        self._queries += stats.prefix_queries
        self._hits += stats.prefix_hits
        self._drafts += stats.draft_tokens
        self._accepted += sum(stats.accepted)
        self._last = stats

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        # The next statistics start the next timer.
        self._timer = None
        _log.info("%s", self.line(time.monotonic() - self._since))
        self._clear()

    def _clear(self) -> None:
        self._prompt = self._generated = self._queries = self._hits = self._drafts = self._accepted = 0

    def line(self, seconds: float) -> str:
        """What to say of the last ``seconds``."""
        hits = f", prefix cache hits {self._hits / self._queries:.0%}" if self._queries else ""
        right = f", drafts accepted {self._accepted / self._drafts:.0%} of {self._drafts}" if self._drafts else ""
        return (
            f"prompt {self._prompt / seconds:.1f} tok/s, generation {self._generated / seconds:.1f} tok/s, "
            f"running {self._last.running}, waiting {self._last.waiting}, KV cache {self._last.kv_usage:.1%}"
            f"{hits}{right}"
        )
