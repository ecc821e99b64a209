"""EngineArgs + what the checkpoint and the machine are -> EngineConfig.

A list of small pure functions, each of which decides one value and says why. ``--show-config`` prints the reasons.
What only the device can say (pages, the length that fits) is settled at boot by the core.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from octavo.common import probe
from octavo.common.log import logger
from octavo.config import env, generation, structured
from octavo.config.args import EngineArgs, ServeArgs
from octavo.config.checkpoint import Checkpoint, locate
from octavo.config.engine import (
    WORKER,
    CacheSection,
    DeviceSection,
    EngineConfig,
    GrammarSection,
    ModelSection,
    ScheduleSection,
    Speculation,
    TextSection,
)
from octavo.config.facts import ModelFacts
from octavo.config.speculation import FORCED, speculation_of
from octavo.errors import ConfigError
from octavo.params import MAX_STOP_STRINGS

_log = logger(__name__)

ASKED = "as asked"
#: Of a value that is taken for the sake of calls and scripts that run on a GPU too.
NO_GPU = "no effect on a CPU: kv_cache_memory_bytes (--kv-cache-memory) says how large the KV cache is"
#: Most requests that run at once: each keeps a row of every table of the device.
MAX_ROWS = 16384
#: Milliseconds for which an arrival may wait behind decode steps that are launched already: unless asked, at most.
BURST_MS, MAX_BURST_MS = 4.0, 1000
#: Compute threads: the libraries crash where the system gives them fewer than they ask for.
MAX_THREADS = 512
_DTYPES = {"float": "float32", "half": "float16"}


@dataclass(frozen=True)
class Machine:
    """What the decisions may know of this machine. ``cpu_flags`` are the kernel's names of the CPU's abilities;
    ``gpus`` are those that this process and the installed torch can use."""

    cores: int
    cpu_flags: frozenset[str] = frozenset()
    gpus: tuple[probe.GPU, ...] = ()

    @classmethod
    def here(cls) -> "Machine":
        """This machine; files of /proc are read and the GPU's driver is asked."""
        return cls(probe.cores(), probe.cpu().flags, probe.gpus())


@dataclass(frozen=True)
class Facts:
    """All that a decision may look at; ``decided`` holds what was decided before it."""

    args: EngineArgs
    checkpoint: Checkpoint
    machine: Machine
    decided: dict[str, Any] = field(default_factory=dict)


Decision = Callable[[Facts], tuple[Any, str]]
DECISIONS: dict[str, Decision] = {}


def decides(name: str) -> Callable[[Decision], Decision]:
    """Registers the function that decides ``section.field``; functions run in the order of this file."""

    def register(function: Decision) -> Decision:
        assert name not in DECISIONS
        DECISIONS[name] = function
        return function

    return register


def resolve(args: EngineArgs, machine: Machine | None = None, worker: str = WORKER) -> EngineConfig:
    """The configuration that ``args`` ask for. Raises ``ConfigError`` with one sentence that names flag and value."""
    checkpoint = _overridden(
        locate(
            args.model, revision=args.revision, download_dir=args.download_dir, load_format=args.load_format or "auto"
        ),
        args.hf_overrides,
    )
    facts = Facts(args, checkpoint, machine or Machine.here())
    why = {}
    for name, decide in DECISIONS.items():
        facts.decided[name], why[name] = decide(facts)
    if why["cache.utilization"] == NO_GPU:
        _log.warning("gpu_memory_utilization %s has %s", facts.decided["cache.utilization"], NO_GPU)
    sections: dict[str, dict[str, Any]] = {}
    for name, value in facts.decided.items():
        section, _, key = name.partition(".")
        sections.setdefault(section, {})[key] = value
    return EngineConfig(
        model=ModelSection(facts=checkpoint.facts, **sections["model"]),
        text=TextSection(**sections["text"]),
        cache=CacheSection(**sections["cache"]),
        schedule=ScheduleSection(**sections["schedule"]),
        device=DeviceSection(**sections["device"]),
        grammar=GrammarSection(**sections["grammar"]),
        worker=worker,
        why=why,
    )


def _overridden(checkpoint: Checkpoint, overrides: dict[str, Any] | None) -> Checkpoint:
    """The checkpoint with ``overrides`` laid over its config, objects in it key by key."""
    if not overrides:
        return checkpoint
    try:
        facts = ModelFacts.from_config(_laid_over(checkpoint.facts.raw, overrides), checkpoint.generation)
    except ConfigError as error:
        raise ConfigError(f"{checkpoint.path} with --hf-overrides: {error}") from None
    return replace(checkpoint, facts=facts)


def _laid_over(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    both = {
        name: _laid_over(below[name], value)
        for name, value in above.items()
        if isinstance(value, Mapping) and isinstance(below.get(name), Mapping)
    }
    return {**below, **above, **both}


def _said(value: Any, default: Any, why: str) -> tuple[Any, str]:
    return (value, ASKED) if value is not None else (default, why)


def _at_least(flag: str, value: Any, low: float) -> None:
    if value is not None and value < low:
        raise ConfigError(f"--{flag} must be at least {low}, got {value}")


# -- device --


@decides("device.platform")
def platform(facts: Facts) -> tuple[str, str]:
    asked = facts.args.device
    if asked not in (None, "auto"):
        return asked, ASKED
    if facts.machine.gpus:
        return "cuda", f"{facts.machine.gpus[0].name} is here"
    return "cpu", "the platform that is always here"


@decides("device.threads")
def threads(facts: Facts) -> tuple[int | None, str]:
    _at_least("threads", facts.args.threads, 1)
    if (facts.args.threads or 1) > MAX_THREADS:
        raise ConfigError(f"--threads must be at most {MAX_THREADS}, got {facts.args.threads}")
    if facts.decided["device.platform"] != "cpu":
        return _said(facts.args.threads, None, "torch's own number: the GPU computes")
    return _said(facts.args.threads, facts.machine.cores, "the cores this process may use")


@decides("device.attention_backend")
def attention_backend(facts: Facts) -> tuple[str | None, str]:
    return _said(facts.args.attention_backend, None, "the first of the platform's list that fits the model")


@decides("device.logprobs_mode")
def logprobs_mode(facts: Facts) -> tuple[str, str]:
    return _said(facts.args.logprobs_mode, "raw_logprobs", "default")


@decides("device.enforce_eager")
def enforce_eager(facts: Facts) -> tuple[bool, str]:
    return _said(facts.args.enforce_eager, False, "decode steps are graphs where the device has them")


@decides("device.deterministic")
def deterministic(facts: Facts) -> tuple[bool, str]:
    asked = facts.args.deterministic
    if asked is None and (said := env.read("VLLM_BATCH_INVARIANT")) is not None:
        if said not in ("0", "1"):
            raise ConfigError(f"VLLM_BATCH_INVARIANT is {said!r}; it must be 0 or 1")
        return said == "1", "from VLLM_BATCH_INVARIANT"
    why = "one way to add for any number of rows and any cut of a prompt" if asked else "as fast as each step can be"
    return bool(asked), f"{ASKED}: {why}" if asked else why


# -- grammar --


@decides("grammar.backend")
def grammar_backend(facts: Facts) -> tuple[str, str]:
    asked = structured.backend(facts.args.structured_outputs_config or {}, facts.args.structured_outputs_backend)
    return _said(asked, "auto", "guidance, which needs nothing more")


@decides("grammar.whitespace")
def grammar_whitespace(facts: Facts) -> tuple[str | None, str]:
    return _said(structured.whitespace(facts.args.structured_outputs_config or {}), None, "what JSON allows")


@decides("grammar.closed")
def grammar_closed(facts: Facts) -> tuple[bool, str]:
    return _said(structured.closed(facts.args.structured_outputs_config or {}), False, "as a schema says")


# -- model --


@decides("model.path")
def path(facts: Facts) -> tuple[str, str]:
    asked = facts.args.model
    return str(facts.checkpoint.path), "the embedded default" if asked is None else f"where {asked!r} was found"


@decides("model.dtype")
def dtype(facts: Facts) -> tuple[str, str]:
    asked = facts.args.dtype
    if asked not in (None, "auto"):
        return _DTYPES.get(asked, asked), ASKED
    stored = facts.checkpoint.facts.dtype
    if facts.decided["device.platform"] != "cpu" or stored == "float32":
        return stored, "as the checkpoint"
    if facts.machine.cpu_flags & {"avx512_bf16", "amx_bf16", "bf16"}:
        return (
            "bfloat16",
            "as the checkpoint"
            if stored == "bfloat16"
            else "two bytes a weight; this CPU multiplies bfloat16 fast, float16 not",
        )
    return "float32", f"the checkpoint is {stored}, which this CPU has no fast instructions for"


@decides("model.load_format")
def load_format(facts: Facts) -> tuple[str, str]:
    return _said(facts.args.load_format, "auto", f"the path holds {facts.checkpoint.kind}")


@decides("model.seed")
def seed(facts: Facts) -> tuple[int, str]:
    return _said(facts.args.seed, 0, "default")


# -- text --


@decides("text.tokenizer")
def tokenizer(facts: Facts) -> tuple[str, str]:
    asked = facts.args.tokenizer
    if asked is None:
        return str(facts.checkpoint.path), "the model's own"
    if not os.path.exists(asked):
        raise ConfigError(f"--tokenizer {asked!r} is neither a directory nor a file")
    return asked, ASKED


@decides("text.served_names")
def served_names(facts: Facts) -> tuple[tuple[str, ...], str]:
    asked = facts.args.served_model_name if isinstance(facts.args, ServeArgs) else None
    if asked:
        return tuple(asked), ASKED
    if facts.args.model is None:
        return (facts.checkpoint.name,), "name of the embedded default"
    return (facts.args.model,), "as the model was asked for"


@decides("text.chat_template")
def chat_template(facts: Facts) -> tuple[str | None, str]:
    asked = facts.args.chat_template
    if asked is None:
        return None, "the checkpoint's own"
    if "\n" not in asked and os.path.isfile(asked):
        try:
            return Path(asked).read_text(encoding="utf-8"), f"read from {asked}"
        except (OSError, ValueError) as error:
            raise ConfigError(f"--chat-template {asked!r} cannot be read: {error}") from None
    if "{" in asked:
        return asked, ASKED
    raise ConfigError(f"--chat-template {asked[:80]!r} is neither a file nor a Jinja template")


@decides("text.skip_tokenizer")
def skip_tokenizer(facts: Facts) -> tuple[bool, str]:
    return _said(facts.args.skip_tokenizer_init, False, "default")


@decides("text.max_logprobs")
def max_logprobs(facts: Facts) -> tuple[int, str]:
    _at_least("max-logprobs", facts.args.max_logprobs, -1)
    return _said(facts.args.max_logprobs, 20, "default")


@decides("text.max_n")
def max_n(facts: Facts) -> tuple[int, str]:
    _at_least("max-n", facts.args.max_n, 1)
    return _said(facts.args.max_n, 128, "default")


@decides("text.max_stop")
def max_stop(facts: Facts) -> tuple[int, str]:
    _at_least("max-stop", facts.args.max_stop, 0)
    if (facts.args.max_stop or 0) > MAX_STOP_STRINGS:
        raise ConfigError(f"--max-stop must be at most {MAX_STOP_STRINGS}, got {facts.args.max_stop}")
    return _said(facts.args.max_stop, MAX_STOP_STRINGS, "default")


@decides("text.generation_defaults")
def generation_defaults(facts: Facts) -> tuple[dict[str, Any], str]:
    args, checkpoint = facts.args, facts.checkpoint
    return generation.defaults(args.generation_config or "auto", args.override_generation_config or {}, checkpoint)


# -- cache --


@decides("cache.page")
def page(facts: Facts) -> tuple[int | None, str]:
    _at_least("block-size", facts.args.block_size, 1)
    return _said(facts.args.block_size, None, "the attention backend's choice")


@decides("cache.memory")
def memory(facts: Facts) -> tuple[int | None, str]:
    _at_least("kv-cache-memory-bytes", facts.args.kv_cache_memory_bytes, 1)
    return _said(facts.args.kv_cache_memory_bytes, None, "what the device has left after weights and activations")


@decides("cache.utilization")
def utilization(facts: Facts) -> tuple[float, str]:
    asked = facts.args.gpu_memory_utilization
    if asked is not None and not 0 < asked <= 1:
        raise ConfigError(f"--gpu-memory-utilization must be over 0 and at most 1, got {asked}")
    if asked is not None and facts.decided["device.platform"] == "cpu":
        return asked, NO_GPU
    if asked is not None and facts.decided["cache.memory"] is not None:
        raise ConfigError("--gpu-memory-utilization and --kv-cache-memory say the same thing twice; give one of them")
    return _said(asked, 0.9, "of a GPU's memory")


@decides("cache.prefix_caching")
def prefix_caching(facts: Facts) -> tuple[bool, str]:
    return _said(facts.args.enable_prefix_caching, True, "default")


# -- schedule --


@decides("schedule.max_model_len")
def max_model_len(facts: Facts) -> tuple[int | None, str]:
    asked, own = facts.args.max_model_len, facts.checkpoint.facts.max_positions
    if asked is None or asked == -1:
        return None, "the model's own, cut at the start to what fits in memory"
    _at_least("max-model-len", asked, 1)
    if asked > own:
        raise ConfigError(f"--max-model-len {asked} is over the {own} positions that the model was made for")
    return asked, ASKED


@decides("schedule.max_num_seqs")
def max_num_seqs(facts: Facts) -> tuple[int, str]:
    _at_least("max-num-seqs", facts.args.max_num_seqs, 1)
    if (facts.args.max_num_seqs or 1) > MAX_ROWS:
        raise ConfigError(f"--max-num-seqs must be at most {MAX_ROWS}, got {facts.args.max_num_seqs}")
    if facts.decided["device.platform"] == "cpu":
        return _said(facts.args.max_num_seqs, 64, "default")
    return _said(facts.args.max_num_seqs, 256, "what a GPU reads its weights for at once")


@decides("schedule.max_num_batched_tokens")
def max_num_batched_tokens(facts: Facts) -> tuple[int, str]:
    rows = facts.decided["schedule.max_num_seqs"]
    asked = facts.args.max_num_batched_tokens
    if asked is not None and asked < rows:
        raise ConfigError(
            f"--max-num-batched-tokens {asked} must be at least --max-num-seqs ({rows}): each takes a token a step"
        )
    if facts.decided["device.platform"] == "cpu":
        return _said(asked, max(512, rows), "a long prompt then holds up the others for a fraction of a second")
    return _said(asked, max(8192, rows), "enough for a GPU's matrix units, and a fifth of a second of a large model")


@decides("schedule.long_prefill_token_threshold")
def long_prefill_token_threshold(facts: Facts) -> tuple[int, str]:
    _at_least("long-prefill-token-threshold", facts.args.long_prefill_token_threshold, 0)
    return _said(facts.args.long_prefill_token_threshold, 0, "one prompt may take what is left of a step")


@decides("schedule.policy")
def policy(facts: Facts) -> tuple[str, str]:
    return _said(facts.args.scheduling_policy, "fcfs", "default")


@decides("schedule.depth")
def depth(facts: Facts) -> tuple[int, str]:
    asked = facts.args.async_scheduling
    if asked is None and facts.args.speculative_config is not None:
        return 1, "who guesses what a request says next must know its last token"
    if asked is None:
        on_cpu = facts.decided["device.platform"] == "cpu"
        return (1, "the model runs on the cores that would plan") if on_cpu else (2, "plans while the device works")
    return (2 if asked else 1), ASKED


@decides("schedule.burst_ms")
def burst_ms(facts: Facts) -> tuple[float, str]:
    asked = facts.args.burst_ms
    if asked is not None and not 0 <= asked <= MAX_BURST_MS:
        raise ConfigError(f"--burst-ms must be from 0 to {MAX_BURST_MS}, got {asked:g}")
    if asked and facts.args.speculative_config and speculation_of(facts.args.speculative_config).method == "ngram":
        raise ConfigError(f"--burst-ms {asked:g}: ngram drafts look at every token before the next; give one of them")
    if asked is not None:
        return asked, ASKED
    if facts.decided["device.platform"] == "cpu":
        return 0.0, "planning a step takes a CPU a small part of computing it"
    if facts.decided["schedule.depth"] == 1:
        return 0.0, "each step is planned when the one before it is done"
    return BURST_MS, "while nobody waits one plan is for several decode steps; who comes waits no longer than this"


@decides("schedule.max_waiting")
def max_waiting(facts: Facts) -> tuple[int, str]:
    _at_least("max-waiting", facts.args.max_waiting, 0)
    return _said(facts.args.max_waiting, 0, "no limit")


@decides("schedule.max_waiting_tokens")
def max_waiting_tokens(facts: Facts) -> tuple[int, str]:
    _at_least("max-waiting-tokens", facts.args.max_waiting_tokens, 0)
    return _said(facts.args.max_waiting_tokens, 0, "no limit")


@decides("schedule.max_waiting_time")
def max_waiting_time(facts: Facts) -> tuple[float, str]:
    asked = facts.args.max_waiting_time
    if asked is not None and asked < 0:
        raise ConfigError(f"--max-waiting-time must be at least 0 seconds, got {asked}")
    return _said(asked, 0.0, "no limit")


@decides("schedule.step_timeout")
def step_timeout(facts: Facts) -> tuple[float, str]:
    if facts.args.step_timeout is not None and facts.args.step_timeout <= 0:
        raise ConfigError(f"--step-timeout must be over 0 seconds, got {facts.args.step_timeout}")
    return _said(facts.args.step_timeout, 120.0, "default")


@decides("schedule.speculation")
def speculation(facts: Facts) -> tuple[Speculation | None, str]:
    asked = facts.args.speculative_config
    if asked is None:
        if facts.decided["device.platform"] != "cpu" or facts.args.async_scheduling:
            return None, "steps in flight leave the host nothing to guess from"
        return FORCED, "a CPU verifies what a grammar leaves no choice about in one step"
    found = speculation_of(asked)
    if facts.args.async_scheduling:
        raise ConfigError(
            "--speculative-config needs --no-async-scheduling: who guesses must know the last token of a request, and"
            " an asynchronous step is planned before it is known"
        )
    return found, ASKED
