"""LLM: an engine in this process, for batches of prompts."""

import numbers
import time
from collections.abc import Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from octavo.common.log import logger
from octavo.config.args import EngineArgs
from octavo.config.engine import EngineConfig
from octavo.config.resolve import resolve
from octavo.errors import BadRequest, RequestError, Unsupported
from octavo.front.beam import Search, next_of
from octavo.front.fanout import Group
from octavo.front.intake import Prompt, PromptType
from octavo.front.tokenizers.base import Tokenizer
from octavo.launch.offline import Offline
from octavo.outputs import BeamSearchOutput, BeamSearchSequence, RequestOutput
from octavo.params import BeamSearchParams, RequestOutputKind, SamplingParams
from octavo.wire.hello import Ready
from octavo.wire.ports import CorePort

_log = logger(__name__)

Message = Mapping[str, Any]
#: Seconds before a progress bar appears: a short run needs none.
_BAR_DELAY = 1.0


class LLM:
    """``LLM(model)``, then ``generate`` or ``chat``. Without a model the embedded SmolLM2-135M-Instruct is loaded.

    ``options`` are the engine's, with vLLM's names: ``tokenizer``, ``dtype``, ``load_format``, ``seed``,
    ``max_model_len``, ``max_num_seqs``, ``max_num_batched_tokens``, ``enable_prefix_caching``, ``chat_template``, ...:
    all fields of ``octavo.config.args.EngineArgs``, which ``octavo serve --help`` describes. An unknown one is a
    ``ConfigError`` that names the nearest known. Used from one thread; close it, or use it as a context manager.
    """

    def __init__(self, model: str | None = None, **options: Any):
        self._start(resolve(EngineArgs.of({"model": model, **options})))

    @classmethod
    def from_config(cls, config: EngineConfig, core: CorePort | None = None) -> "LLM":
        """From a resolved configuration; ``core`` instead of one built from it."""
        llm = cls.__new__(cls)
        llm._start(config, core)
        return llm

    def _start(self, config: EngineConfig, core: CorePort | None = None) -> None:
        self.config = config
        self._engine = Offline(config, core)
        self._ids = count()
        self._asleep = False

    def generate(
        self,
        prompts: PromptType | Sequence[PromptType],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: None = None,
        priority: int | Sequence[int] | None = None,
    ) -> list[RequestOutput]:
        """One output a prompt, in the order of the prompts.

        A prompt is text, token ids, or a dict with "prompt" or "prompt_token_ids" (and "cache_salt"). Parameters and
        priorities are one for all or one each; None are the model's defaults. An answer that would pass the model's
        length ends there, with reason "length"; one that the engine could not finish has reason "error". Raises
        ``BadRequest`` before anything runs, ``EngineDead`` where the engine failed. Ctrl-C ends the run, not the
        engine.
        """
        _no_adapter(lora_request)
        return self._run(self._engine.intake.prompts(_many(prompts)), sampling_params, use_tqdm, priority)

    def chat(
        self,
        messages: Sequence[Message] | Sequence[Sequence[Message]],
        sampling_params: SamplingParams | Sequence[SamplingParams] | None = None,
        *,
        use_tqdm: bool = True,
        lora_request: None = None,
        priority: int | Sequence[int] | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        chat_template: str | None = None,
        chat_template_kwargs: Mapping[str, Any] | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
    ) -> list[RequestOutput]:
        """As ``generate``, for one conversation or a list of them, written by the model's chat template.

        With ``continue_final_message`` (and ``add_generation_prompt=False``) the model goes on with the last message.
        """
        _no_adapter(lora_request)
        tokenizer, template = self._engine.tokenizer, self._engine.chat
        if tokenizer is None or template is None:
            raise BadRequest("chat needs a tokenizer, and this engine runs without one", "messages")
        if not isinstance(messages, (list, tuple)):
            raise BadRequest(f"messages must be a list of messages, got {type(messages).__name__}", "messages")
        conversations = [messages] if messages and isinstance(messages[0], Mapping) else messages
        texts = [
            template.render(
                conversation,
                tools=tools,
                documents=documents,
                chat_template=chat_template,
                chat_template_kwargs=chat_template_kwargs,
                add_generation_prompt=add_generation_prompt,
                continue_final_message=continue_final_message,
                max_chars=self._engine.intake.max_chars,
            )
            for conversation in conversations
        ]
        encoded = zip(texts, tokenizer.encode_batch(texts, add_special_tokens=False), strict=True)
        prompts: list[PromptType] = [{"prompt": text, "prompt_token_ids": ids} for text, ids in encoded]
        return self._run(self._engine.intake.prompts(prompts, "messages"), sampling_params, use_tqdm, priority)

    def beam_search(
        self, prompts: PromptType | Sequence[PromptType], params: BeamSearchParams, *, use_tqdm: bool = False
    ) -> list[BeamSearchOutput]:
        """The ``params.beam_width`` best continuations of each prompt, the best first, in the order of the prompts.

        The search ends at the model's length at the latest. Raises as ``generate`` does.
        """
        engine = self._engine
        if self.config.device.logprobs_mode.endswith("logits"):
            raise BadRequest("beam search needs log-probabilities, not logits", "logprobs_mode")
        each = engine.intake.prompts(_many(prompts))
        searches = []
        for prompt in each:
            room = engine.ready.max_model_len - len(prompt.ids)
            searches.append(Search(params, engine.intake.eos, room, engine.ready.vocab, shown=0))
            engine.intake.admit(prompt, searches[-1].step, range(1))
        bar = _Bar(len(each)) if use_tqdm and each else None
        try:
            while left := [place for place, search in enumerate(searches) if not search.done]:
                asked = [searches[place].prompts(each[place]) for place in left]
                step = searches[left[0]].step
                outputs = iter(self._run([one for many in asked for one in many], step, False, None))
                for place, many in zip(left, asked, strict=True):
                    searches[place].feed([next_of(next(outputs)) for _ in many])
                if bar:
                    bar.searched(len(each) - sum(not search.done for search in searches))
        finally:
            if bar:
                bar.close()
        return [self._beams(prompt, search, params) for prompt, search in zip(each, searches, strict=True)]

    def _beams(self, prompt: Prompt, search: Search, params: BeamSearchParams) -> BeamSearchOutput:
        tokenizer = self._engine.tokenizer
        found = []
        for beam in search.best(params.beam_width):
            told = search.told(beam)
            tokens = prompt.ids + beam.tokens
            silent = beam.ended and not params.include_stop_str_in_output
            text = None if tokenizer is None else tokenizer.decode(tokens[:-1] if silent else tokens, True)
            found.append(
                BeamSearchSequence(
                    tokens=tokens,
                    logprobs=beam.positions,
                    cum_logprob=beam.total,
                    score=search.score(beam),
                    text=text,
                    finish_reason=told.finish.word,  # type: ignore[arg-type]
                    stop_reason=told.stop,
                )
            )
        return BeamSearchOutput(found)

    def get_tokenizer(self) -> Tokenizer:
        """Raises ``BadRequest`` for an engine that takes and gives ids only."""
        if self._engine.tokenizer is None:
            raise BadRequest("this engine runs without a tokenizer (skip_tokenizer_init)")
        return self._engine.tokenizer

    def get_default_sampling_params(self) -> SamplingParams:
        """What ``generate`` uses where it is given none: the model's own defaults."""
        return self._engine.intake.default_params()

    @property
    def ready(self) -> Ready:
        """What the engine said when it could serve: lengths, pages, backends, seconds of each phase of the start."""
        return self._engine.ready

    def stats(self) -> dict[str, Any]:
        """The engine's gauges and its counters since the start (``core.engine.commands.stats``)."""
        return self._engine.call("stats")

    def reset_prefix_cache(self) -> bool:
        """Forget all cached prefixes."""
        self._engine.call("reset_prefix_cache")
        return True

    def sleep(self, level: int = 1) -> None:
        """Give the device's memory back until ``wake_up``: the KV cache, and the weights, which level 1 keeps in host
        memory and level 2 loads again. Raises ``Unsupported`` where the device cannot."""
        try:
            self._engine.call("sleep", level)
        except RequestError:
            raise
        except ValueError as error:
            raise Unsupported(str(error)) from None
        self._asleep = True

    def wake_up(self, tags: Sequence[str] | None = None) -> None:
        """Bring back what ``tags`` name, "weights" before "kv_cache"; None is both. Then ``generate`` works again."""
        known = ("weights", "kv_cache")
        wanted = list(known if tags is None else tags)
        if not all(tag in known for tag in wanted):
            raise BadRequest(f"tags are {str(wanted)[:80]}; possible: {', '.join(known)}", "tags")
        if self._asleep and self._engine.call("wake", wanted):
            self._engine.call("resume")
            self._asleep = False

    def close(self) -> None:
        """Give memory and threads back. May be called twice."""
        self._engine.close()

    def __enter__(self) -> "LLM":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- one run --

    def _run(
        self,
        prompts: Sequence[Prompt],
        params: SamplingParams | Sequence[SamplingParams] | None,
        use_tqdm: bool,
        priority: int | Sequence[int] | None,
    ) -> list[RequestOutput]:
        if self._asleep:
            raise BadRequest("the engine sleeps: call wake_up() first")
        each = self._params(params, len(prompts))
        priorities = [priority or 0] * len(prompts) if priority is None or isinstance(priority, int) else list(priority)
        if len(priorities) != len(prompts):
            raise BadRequest(f"there are {len(prompts)} prompts, but {len(priorities)} priorities", "priority")
        groups: list[Group] = []
        bar = _Bar(len(prompts)) if use_tqdm and prompts else None
        try:
            for prompt, wanted, rank in zip(prompts, each, priorities, strict=True):
                groups.append(self._engine.add(str(next(self._ids)), prompt, wanted, priority=rank))
            self._engine.run(groups, bar.finished if bar else None)
        except BaseException:
            self._engine.abandon(groups)
            raise
        finally:
            if bar:
                bar.close()
        return [self._output(group) for group in groups]

    def _params(self, params: SamplingParams | Sequence[SamplingParams] | None, prompts: int) -> list[SamplingParams]:
        if params is None:
            params = self.get_default_sampling_params()
        if isinstance(params, SamplingParams):
            return [params.clone(output_kind=RequestOutputKind.FINAL_ONLY)] * prompts
        if not isinstance(params, (list, tuple)) or not all(isinstance(one, SamplingParams) for one in params):
            raise BadRequest(
                "sampling_params must be SamplingParams, one for all prompts or a list of them", "sampling_params"
            )
        if len(params) != prompts:
            raise BadRequest(f"there are {prompts} prompts, but {len(params)} sampling_params", "sampling_params")
        return [one.clone(output_kind=RequestOutputKind.FINAL_ONLY) for one in params]

    @staticmethod
    def _output(group: Group) -> RequestOutput:
        if group.error is not None:
            _log.error("request %s was not finished: %s", group.request_id, group.error)
        output = group.take()
        assert output is not None, "a finished group has an output"
        return output


class _Bar:
    """Requests done, and tokens a second so far."""

    def __init__(self, total: int):
        from tqdm.auto import tqdm

        self._bar = tqdm(total=total, desc="Processed prompts", dynamic_ncols=True, delay=_BAR_DELAY, unit="req")
        self._begin = time.monotonic()
        self._in = self._out = 0

    def finished(self, group: Group) -> None:
        self._in += len(group.prompt_ids)
        self._out += sum(answer.count for answer in group.answers)
        seconds = max(time.monotonic() - self._begin, 1e-9)
        self._bar.set_postfix_str(
            f"input {self._in / seconds:.1f} tok/s, output {self._out / seconds:.1f} tok/s", refresh=False
        )
        self._bar.update()

    def searched(self, count: int) -> None:
        self._bar.update(count - self._bar.n)

    def close(self) -> None:
        self._bar.close()


def _no_adapter(lora_request: Any) -> None:
    if lora_request is not None:
        raise Unsupported("there are no LoRA adapters: lora_request must be None", "lora_request")


def _many(prompts: PromptType | Sequence[PromptType]) -> list[PromptType]:
    """One prompt or many: text, a dict and a list or an array of ids are one; an array of two dimensions is many."""
    if isinstance(prompts, (str, Mapping)):
        return [prompts]
    if isinstance(prompts, np.ndarray) and prompts.ndim in (1, 2):
        return [prompts] if prompts.ndim == 1 and len(prompts) else list(prompts)
    if not isinstance(prompts, Sequence):
        raise BadRequest(
            f"prompts must be text, token ids or a list of prompts, got {type(prompts).__name__}", "prompts"
        )
    if prompts and isinstance(prompts[0], numbers.Integral):
        return [prompts]  # type: ignore[list-item]
    return list(prompts)  # type: ignore[arg-type]
