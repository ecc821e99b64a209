"""A model that says what a test gave it: behind the real engine and server, token by token, with a real tokenizer.

``model`` makes its directory, ``Scripted`` is a server over it:

    with Scripted(model(folder, specials=("<think>", "</think>"), chat_template=...)) as server:
        server.say("weather", "<think>\\nHm.\\n</think>\\n\\nSunny.")
        server.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "weather?"}]})

A request gets the answer whose key stands last in its prompt; the key "" answers prompts that hold none. A key with
several answers gives them in turn, so that n choices, or one request after another, may differ.
"""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from octavo.config.engine import EngineConfig
from octavo.core.grammar.base import allows
from octavo.testing import tokenizer
from octavo.testing.fakes import FakeOptions, FakeWorker, Row, cut
from octavo.testing.served import CONFIG, Served
from octavo.wire.arrays import Ints
from octavo.wire.plan import NewRow, StepPlan
from octavo.wire.result import PromptLogprobs

WORKER = "octavo.testing.scripted:ScriptedWorker"
VOCAB = 384
MAX_LENGTH = 8192
_SCRIPT = "script.json"
_UNKNOWN = "There is no script for this prompt."

#: A whole text, or pieces of it that are tokenised each for itself (ids stand for themselves): pieces "<tool", "_call>"
#: are ordinary text where "<tool_call>" would be the special token.
Answer = str | Sequence[str | int]


def model(
    folder: Path,
    chat_template: str | None = tokenizer.CHAT_TEMPLATE,
    specials: Sequence[str] = (),
    added: Sequence[str] = (),
    vocab: int = VOCAB,
    config: dict[str, Any] | None = None,
    **fake: Any,
) -> Path:
    """A model's directory for ``ScriptedWorker``. ``specials`` and ``added`` are tokens of the tokenizer, ``config``
    more keys of config.json, ``fake`` options of ``FakeOptions``."""
    tokenizer.write(folder, vocab, chat_template, specials, added)
    options = {"vocab": vocab, "memory": 4 << 20, "page_sizes": (16,), **fake}
    whole = CONFIG | {"vocab_size": vocab, "max_position_embeddings": MAX_LENGTH, "fake": options} | (config or {})
    whole["scripted"] = str(folder / _SCRIPT)
    (folder / "config.json").write_text(json.dumps(whole))
    Script(folder).say("", _UNKNOWN)
    return folder


class Script:
    """The answers of a model's directory; a running worker sees changes with its next request."""

    def __init__(self, folder: Path):
        self._path = folder / _SCRIPT
        self._answers: dict[str, list[Answer]] = json.loads(self._path.read_text()) if self._path.exists() else {}

    def say(self, key: str, *answers: Answer) -> None:
        """Answer prompts that hold ``key``, with each of ``answers`` in turn."""
        self.say_all({key: answers})

    def say_all(self, answers: dict[str, Iterable[Answer]]) -> None:
        """``say`` for many keys."""
        self._answers |= {key: list(some) for key, some in answers.items()}
        fresh = self._path.with_suffix(".new")
        fresh.write_text(json.dumps(self._answers))
        os.replace(fresh, self._path)


class Scripted(Served):
    """A server over a scripted model; ``flags`` follow `octavo serve MODEL`."""

    def __init__(self, folder: Path, flags: Sequence[str] = ()):
        super().__init__([str(folder), "--served-model-name", "scripted", *flags], WORKER)
        self._script = Script(folder)
        self.say, self.say_all = self._script.say, self._script.say_all

    def __enter__(self) -> "Scripted":
        try:
            self.ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


@dataclass
class Saying:
    """What a row is saying, and how far it is."""

    tokens: list[int]
    at: int = 0


class ScriptedWorker(FakeWorker):
    """A mask that forbids the token whose turn it is makes the model say the first one allowed; if that is a special
    token which the script has further on (the end of reasoning, say), the script goes on behind it, else where it was.
    """

    def __init__(self, config: EngineConfig, options: FakeOptions | None = None):
        super().__init__(config, options)
        self._path = Path(config.model.facts.raw["scripted"])
        self._tokenizer = Tokenizer.from_file(os.path.join(config.text.tokenizer, "tokenizer.json"))
        self._marks = set(self._tokenizer.get_added_tokens_decoder())
        self._end = config.model.facts.eos[0]
        self._seen = (-1, -1)
        self._answers: dict[str, list[Answer]] = {}
        self._turns: dict[str, int] = {}
        # By seed, which stays a request's own when it leaves its row and comes back.
        self._sayings: dict[int, Saying] = {}
        self._known: np.ndarray = np.zeros(0, np.int32)

    def _compute(self, plan: StepPlan, part: int = 0) -> list[PromptLogprobs]:
        """Beside the numbers of ``FakeWorker``, keep the tokens themselves in the pages: prompts are read from them,
        whether they came with the request or from the prefix cache."""
        if len(self._known) < self._values.shape[1]:
            self._known = np.zeros(self._values.shape[1], np.int32)
        for index, (number, chunk, drafts) in enumerate(zip(plan.rows.tolist(), *cut(plan), strict=True)):
            row = self.rows.get(number)
            if row is not None and not row.broken and row.alive:
                start = int(plan.computed[index]) + part
                for offset, token in enumerate(chunk or [row.last, *drafts]):
                    self._known[self._slot(row, 0, start + offset)] = token
        return super()._compute(plan, part)

    def _next(self, row: Row, bits: Ints | None) -> int:
        new = row.new
        saying = self._sayings.get(new.sampling.seed)
        if saying is None or row.length == new.prompt:
            saying = self._sayings[new.sampling.seed] = Saying(self._script(row, new))
        token = saying.tokens[saying.at] if saying.at < len(saying.tokens) else self._end
        if token in new.stops and row.length < new.min_length:
            token = self._encode(".")[0]
        if bits is None or allows(bits, token):
            saying.at += 1
            return token
        token = next(token for token in range(self.options.vocab) if allows(bits, token))
        if token in self._marks and token in saying.tokens[saying.at :]:
            saying.at = saying.tokens.index(token, saying.at) + 1
        return token

    def _script(self, row: Row, new: NewRow) -> list[int]:
        self._reread()
        prompt = [int(self._known[self._slot(row, 0, position)]) for position in range(new.prompt)]
        text = self._tokenizer.decode(prompt, skip_special_tokens=False)
        key = max(self._answers, key=lambda key: (text.rfind(key) if key else -0.5, len(key)))
        turn = self._turns.get(key, 0)
        self._turns[key] = turn + 1
        answers = self._answers[key]
        answer = answers[turn % len(answers)]
        pieces = [answer] if isinstance(answer, str) else answer
        return [token for piece in pieces for token in ([piece] if isinstance(piece, int) else self._encode(piece))]

    def _reread(self) -> None:
        found = self._path.stat()
        seen = (found.st_mtime_ns, found.st_ino)  # two changes may come within one tick of the clock
        if seen != self._seen:
            fresh = json.loads(self._path.read_text())
            for key in fresh:
                if fresh[key] != self._answers.get(key):
                    self._turns.pop(key, None)
            self._answers, self._seen = fresh, seen

    def _encode(self, text: str) -> list[int]:
        return self._tokenizer.encode(text, add_special_tokens=False).ids
