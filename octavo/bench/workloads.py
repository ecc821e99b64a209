"""Workloads: fixed lengths and seeds, so that a figure means the same on every machine and in every year.

Prompts are random token ids; answers run to their full length (end-of-sequence is ignored).
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from octavo.common.words import nearest
from octavo.errors import ConfigError

#: Random prompts draw from these ids (cut to the vocabulary): ordinary text tokens in every tokenizer known here.
FIRST_ID, LAST_ID = 100, 20_000


@dataclass(frozen=True, kw_only=True)
class Workload:
    """``requests`` prompts of ``inputs`` tokens (low, high), answers of ``outputs``; ``running``: rows at most.
    ``times``: how often a prompt says the same. ``structured``: prompts end with a task, and answers are JSON that
    never ends: "json", laid out as the model likes, or "compact", without a space, so that more of it is forced."""

    name: str
    about: str
    requests: int
    inputs: tuple[int, int]
    outputs: tuple[int, int]
    running: int
    temperature: float = 0.0
    seed: int = 0
    times: int = 1
    structured: str = ""

    def make(self, vocab: int) -> list[tuple[list[int], int]]:
        """(prompt ids, tokens to make) a request; the same for the same seed and vocabulary."""
        draw = random.Random(self.seed)
        high = min(LAST_ID, vocab - 1)
        low = min(FIRST_ID, high)
        lengths = [(draw.randint(*self.inputs), draw.randint(*self.outputs)) for _ in range(self.requests)]
        return [
            ([draw.randint(low, high) for _ in range(length // self.times)] * self.times, out)
            for length, out in lengths
        ]

    @property
    def longest(self) -> int:
        return self.inputs[1] + self.outputs[1]


def _decode(rows: int, name: str, length: int, out: int, temperature: float) -> Workload:
    about = f"{rows} at once, {length} in, {out} out"
    return Workload(
        name=name,
        about=about,
        requests=rows,
        inputs=(length, length),
        outputs=(out, out),
        running=rows,
        temperature=temperature,
    )


#: What a laptop or a small server does.
CPU = [
    *(_decode(rows, f"c{rows}", 128, 128, 0.0) for rows in (1, 8, 32)),
    Workload(
        name="mixed32",
        about="32 requests, 32 to 512 in, 32 to 256 out, 16 running",
        requests=32,
        inputs=(32, 512),
        outputs=(32, 256),
        running=16,
    ),
    Workload(name="prefill2000", about="2,000 in, 1 out", requests=1, inputs=(2000, 2000), outputs=(1, 1), running=1),
]

#: What one data-centre GPU does.
GPU = [
    *(_decode(rows, f"d{rows}", 128, 256, 0.6) for rows in (1, 8, 32, 64, 128, 256)),
    Workload(
        name="mixed256",
        about="256 requests, 100 to 1,024 in, 100 to 1,024 out",
        requests=256,
        inputs=(100, 1024),
        outputs=(100, 1024),
        running=256,
        temperature=0.6,
    ),
    Workload(
        name="prefill",
        about="64 x 1,024 in, 1 out",
        requests=64,
        inputs=(1024, 1024),
        outputs=(1, 1),
        running=64,
        temperature=0.6,
    ),
]

#: Prompts that say the same over and over: what --speculative-config is for. Named one by one.
REPEAT = [
    Workload(
        name=f"repeat{rows}",
        about=f"{rows} at once, 32 tokens 8 times in, 128 out",
        requests=rows,
        inputs=(256, 256),
        outputs=(128, 128),
        running=rows,
        times=8,
    )
    for rows in (1, 8)
]


class Served(NamedTuple):
    """``requests`` prompts of ``inputs`` tokens, answers of ``outputs``, streamed to ``concurrency`` clients."""

    name: str
    concurrency: int
    requests: int
    inputs: int = 512
    outputs: int = 128

    @property
    def about(self) -> str:
        return f"{self.requests} requests, {self.concurrency} at once, {self.inputs} in, {self.outputs} out"


#: What clients of a server on one data-centre GPU see.
SERVED = [
    Served(f"s{many}", many, requests) for many, requests in ((1, 16), (8, 64), (32, 256), (64, 512), (256, 1024))
]


def pick_served(names: Sequence[str]) -> list[Served]:
    """The named workloads of a server; ``served`` stands for all of them. Raises ConfigError."""
    known = {work.name: work for work in SERVED}
    found: list[Served] = []
    for name in names:
        if name != "served" and name not in known:
            raise ConfigError(f"unknown workload {name!r}{nearest(name, known)}; known: {', '.join(known)}, served")
        found += SERVED if name == "served" else [known[name]]
    return found


#: Requests that run at once where nobody says how many.
_RUNNING = 256


def fixed(requests: int, length: int, out: int) -> Workload:
    """Prompts of one length, answers of one length; ``--max-num-seqs`` says how many run at once."""
    return Workload(
        name=f"{requests}x{length}+{out}",
        about=f"{requests} requests, {length} in, {out} out",
        requests=requests,
        inputs=(length, length),
        outputs=(out, out),
        running=min(requests, _RUNNING),
    )


WORKLOADS = {work.name: work for work in (*CPU, *GPU, *REPEAT)}


def pick(names: list[str]) -> list[Workload]:
    """The named workloads; ``cpu`` and ``gpu`` stand for their lists, ``all`` for the CPU's. Raises ConfigError."""
    found: list[Workload] = []
    for name in names:
        if name in ("all", "cpu", "gpu"):
            found += GPU if name == "gpu" else CPU
        elif name in WORKLOADS:
            found.append(WORKLOADS[name])
        else:
            known = ", ".join([*WORKLOADS, "cpu", "gpu", "all"])
            raise ConfigError(f"unknown workload {name!r}{nearest(name, WORKLOADS)}; known: {known}")
    return found
