"""What a start has compiled ahead, beside reading the weights: the kernels of the steps that are made ready at once,
then those of all sizes. A mark in Triton's cache says that all of them are there, so that the next start asks nobody.
"""

import hashlib
import json
import os
import platform as machine
import time
from collections.abc import Sequence
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import torch

from octavo.common import probe
from octavo.common.log import logger
from octavo.config.engine import EngineConfig
from octavo.device.kernels import tuned
from octavo.device.kernels.variants import Variant
from octavo.device.kernels.warm import Warming
from octavo.device.platforms.base import Platform
from octavo.device.runner.decode import SIZES, padded
from octavo.device.runner.mixed import ROWS, TOKENS
from octavo.device.sampling.sampler import Draw
from octavo.device.worker.variants import needed

_log = logger(__name__)

#: Decode steps of so many rows are made ready before the first request, and of as many as there may be.
FIRST = (1, 8, 64, 256)
#: Tokens of mixed steps up to which each size has kernels of its own.
_OWN = 64


def first_sizes(most: int) -> list[int]:
    return sorted({most, *(size for size in FIRST if size < most)})


def other_sizes(most: int) -> list[int]:
    """The rest, powers of two first."""
    there = {padded(size) for size in first_sizes(most)}
    rest = [size for size in SIZES if size <= padded(most) and size not in there]
    return sorted(rest, key=lambda size: (size.bit_count(), size))


def ahead_of(config: EngineConfig, platform: Platform, dtype: torch.dtype) -> "Ahead | None":
    """None where no kernel is compiled, or it is not known which."""
    gpus = probe.gpus()
    if not gpus or "triton" not in platform.attention or config.device.deterministic:
        return None
    try:
        return Ahead(config, dtype, gpus[0].capability)
    except Exception as error:  # a start that compiles what it comes across is slow, not wrong
        _log.warning("no kernels are compiled ahead: %s: %s", type(error).__name__, error)
        return None


class Ahead:
    """Of a configuration, for GPUs of a compute capability; at work from the start on."""

    def __init__(
        self, config: EngineConfig, dtype: torch.dtype, capability: tuple[int, int], processes: int | None = None
    ):
        self._config, self._dtype, self._capability = config, dtype, capability
        self._table = _measured(capability)
        self.mark = cache() / f"octavo-{self._key()}"
        self._warming: Warming | None = None
        self.told = ""
        self.failed: list[str] = []
        if find_spec("triton") is None or self.mark.exists():
            return
        self._warming = Warming(capability, processes)
        try:
            self._warming.add(self._first())
        except BaseException:
            self.close()
            raise

    def ready(self) -> float:
        """Wait for what the first steps need; the seconds that it took. The rest is asked for before."""
        begun = time.monotonic()
        if self._warming is not None:
            mark = self._warming.count
            try:
                self._warming.add(self._rest())
            except Exception as error:  # as for the first: a start goes on without
                self._warming.outcome.failed.append(f"not known beforehand: {type(error).__name__}: {error}")
            self._warming.seal()
            self._warming.wait(mark)
        return time.monotonic() - begun

    def poll(self) -> bool:
        """Whether there is nothing to wait for any more. What came of it is then in the log."""
        if self._warming is None:
            return True
        if not self._warming.done:
            return False
        self.told, self.failed = self._warming.told(), self._warming.outcome.failed
        if not self.failed:
            self.mark.parent.mkdir(parents=True, exist_ok=True)
            self.mark.write_text(json.dumps({"model": self._config.model.path, "capability": self._capability}))
        _log.info("%s", self.told)
        self.close()
        return True

    def finish(self) -> str:
        """Wait for everything; what came of it, "" where all was there."""
        self.ready()
        if self._warming is not None:
            self._warming.wait()
        self.poll()
        return self.told

    def close(self) -> None:
        if self._warming is not None:
            self._warming.close()
            self._warming = None

    def _first(self) -> list[Variant]:
        most = self._config.schedule.max_num_seqs
        return [
            *self._needed(first_sizes(most), (Draw.WARM,), [(TOKENS[-1], most)]),
            *self._needed((1,), (Draw.GREEDY, Draw.CUT)),
        ]

    def _rest(self) -> list[Variant]:
        """Draws that are not warm have no kernels that depend on the number of rows."""
        most = self._config.schedule.max_num_seqs
        sizes = [size for size in SIZES if size <= most]
        few = [(tokens, 1) for tokens in TOKENS if tokens <= _OWN]
        rows = [(2 * _OWN, count) for count in ROWS if count <= most]
        return self._needed(sizes, (Draw.WARM,), few + rows)

    def _needed(
        self, sizes: Sequence[int], draws: Sequence[Draw], mixed: Sequence[tuple[int, int]] = ()
    ) -> list[Variant]:
        schedule, facts = self._config.schedule, self._config.model.facts
        with tuned.using(self._table):
            return needed(
                facts,
                self._dtype,
                max_num_seqs=schedule.rows,
                max_model_len=schedule.max_model_len or facts.max_positions,
                sizes=sizes,
                draws=draws,
                mixed=mixed,
                page=self._config.cache.page,
                overlap=self._capability >= (9, 0),
            )

    def _key(self) -> str:
        """Of all that decides which kernels there are and what they are compiled to."""
        schedule = self._config.schedule
        known = hashlib.sha256()
        for part in (
            self._config.model.facts,
            self._dtype,
            self._capability,
            (schedule.rows, schedule.max_num_seqs, schedule.max_model_len, self._config.cache.page),
            (sorted(self._table.linear.items()), sorted(self._table.decode.items())),
            (version("triton") if find_spec("triton") else None, torch.__version__, machine.python_version()),
            sorted(
                item for item in os.environ.items() if item[0].startswith("TRITON_") and item[0] != "TRITON_CACHE_DIR"
            ),
        ):
            known.update(repr(part).encode())
        for path in sorted(Path(__file__).parents[1].rglob("*.*")):
            if "__pycache__" not in path.parts:
                known.update(path.read_bytes())
        return known.hexdigest()[:32]


def _measured(capability: tuple[int, int]) -> tuned.Table:
    """What a start on such a GPU goes by; what was measured on the one here says nothing about another kind."""
    gpus = probe.gpus()
    return tuned.current() if not gpus or gpus[0].capability == capability else tuned.Table()


def cache() -> Path:
    """The folder of Triton's cache."""
    folder = os.environ.get("TRITON_CACHE_DIR")
    return Path(folder) if folder else Path(os.environ.get("TRITON_HOME") or Path.home()) / ".triton" / "cache"
