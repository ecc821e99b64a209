"""Arguments of other engines that octavo has none of: what asks for nothing is taken, the rest refused with a reason.

Start scripts and calls of ``LLM`` that were written for vLLM go on to work where they ask for what is done here anyway.
None of these is a field of ``EngineArgs``, and no help shows them. ``CALLED`` has the names that other engines give to
what octavo has under a name of its own.
"""

import json
import re
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

from octavo.common.log import logger
from octavo.errors import ConfigError

_log = logger(__name__)


class Foreign(NamedTuple):
    """``why`` there is none; ``harmless``: values that ask for nothing, as ``_plain`` writes them (* is any), ``told``:
    those of them that a warning tells of; ``switch``: on the command line it takes no value. ``secret``: its value is
    never shown."""

    why: str
    harmless: tuple[str, ...] = ()
    switch: bool = False
    secret: bool = False
    told: tuple[str, ...] = ()


_ONE = "one device runs a model: leave it out"
_LORA = "there are no LoRA adapters"
_TEXT = "models take text only: leave it out"
_ALWAYS = ("true", "false")
#: Most characters of a value that are shown.
_SHOWN = 60

#: Name -> what becomes of it. A value of None never asks for anything.
FOREIGN: dict[str, Foreign] = {
    **dict.fromkeys(
        ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "data_parallel_size_local",
         "decode_context_parallel_size", "prefill_context_parallel_size", "nnodes",
         "tp", "tp_size", "dp", "dp_size", "pp_size"),  # SGLang's
        Foreign(_ONE, ("1",)),
    ),
    **dict.fromkeys(("node_rank", "data_parallel_rank"), Foreign(_ONE, ("0",))),
    "enable_expert_parallel": Foreign(_ONE, ("false",), switch=True),
    "disable_custom_all_reduce": Foreign(_ONE, _ALWAYS, switch=True),
    "distributed_executor_backend": Foreign(_ONE, ("uni", "mp")),
    "disable_frontend_multiprocessing": Foreign(
        "the engine of a server is always a process of its own: leave it out", ("false",), switch=True
    ),
    "trust_remote_code": Foreign(
        "no code of a checkpoint is ever run; models that octavo knows need none: leave it out",
        _ALWAYS, switch=True, told=("true",),
    ),
    "middleware": Foreign("a server runs no code but its own: put a proxy before it"),
    "uds": Foreign("a server listens on --host and --port"),
    "hf_token": Foreign("it is read from HF_TOKEN in the environment", secret=True),
    "quantization": Foreign("as the checkpoint is: leave it out", ("none",)),
    "kv_cache_dtype": Foreign("the KV cache is of --dtype: leave it out", ("auto",)),
    "calculate_kv_scales": Foreign("the KV cache is of --dtype: leave it out", ("false",), switch=True),
    "enable_chunked_prefill": Foreign("it always is: leave it out", ("true",), switch=True),
    "disable_sliding_window": Foreign("layers see what the checkpoint says", ("false",), switch=True),
    "swap_space": Foreign("what has to make room is computed anew", ("*",)),
    "cpu_offload_gb": Foreign("weights are on the device as a whole: leave it out", ("0",)),
    "num_gpu_blocks_override": Foreign("--kv-cache-memory-bytes says how large the KV cache is"),
    "max_seq_len_to_capture": Foreign("device graphs reach as far as they have to", ("*",)),
    "compilation_config": Foreign(
        "nothing is compiled to order: leave it out, or give --enforce-eager", ("0", "1", "2", "3")
    ),
    "optimization_level": Foreign("nothing is compiled to order: leave it out", ("0", "1", "2", "3")),
    "num_scheduler_steps": Foreign("a step makes one token a request, and drafts: leave it out", ("1",)),
    "use_v2_block_manager": Foreign("there is one block manager: leave it out", _ALWAYS, switch=True),
    "speculative_model": Foreign("--speculative-config says what guesses"),
    "kv_transfer_config": Foreign("KV caches are not sent elsewhere"),
    "disable_log_requests": Foreign(
        "requests are logged with --enable-log-requests only: leave it out", ("true",), switch=True
    ),
    "max_log_len": Foreign("no prompt is ever logged: leave it out", ("*",)),
    "enable_log_outputs": Foreign("no answer is ever logged: leave it out", ("false",), switch=True),
    "enable_prompt_tokens_details": Foreign("usage always has them: leave it out", _ALWAYS, switch=True),
    "enable_server_load_tracking": Foreign("/load always tells: leave it out", _ALWAYS, switch=True),
    "enable_sleep_mode": Foreign("every engine can sleep: leave it out", _ALWAYS, switch=True),
    "enable_reasoning": Foreign("--reasoning-parser says how reasoning is read", _ALWAYS, switch=True),
    "use_tqdm_on_load": Foreign("no bar is shown while a model is loaded: leave it out", _ALWAYS, switch=True),
    "enable_lora": Foreign(_LORA, ("false",), switch=True),
    **dict.fromkeys(("lora_modules", "max_loras", "max_lora_rank", "max_cpu_loras"), Foreign(_LORA)),
    **dict.fromkeys(("limit_mm_per_prompt", "mm_processor_kwargs", "allowed_local_media_path"), Foreign(_TEXT)),
    "skip_mm_profiling": Foreign(_TEXT, _ALWAYS, switch=True),
    "mm_processor_cache_gb": Foreign(_TEXT, ("*",)),
    "tokenizer_mode": Foreign("tokenizers are run as the checkpoint has them", ("auto", "hf")),
    "chat_template_content_format": Foreign("the template is asked what it takes: leave it out", ("auto",)),
    "runner": Foreign("models generate text: leave it out", ("auto", "generate")),
    "task": Foreign("models generate text: leave it out", ("auto", "generate")),
    "convert": Foreign("models generate text: leave it out", ("auto", "none")),
    "model_impl": Foreign("models are octavo's own: leave it out", ("auto", "vllm")),
    "config_format": Foreign("a checkpoint has a config.json, or is a GGUF file: leave it out", ("auto", "hf")),
    # llama.cpp's
    **dict.fromkeys(
        ("n_gpu_layers", "gpu_layers"),
        Foreign("a model is on one device as a whole, which --device names", ("all", "auto", "99", "999")),
    ),
    "jinja": Foreign("chat templates always are: leave it out", ("true",), switch=True),
    "metrics": Foreign("/metrics is always there: leave it out", ("true",), switch=True),
}  # fmt: skip
_SHORT = {
    "-tp": "tensor_parallel_size",
    "-pp": "pipeline_parallel_size",
    "-dp": "data_parallel_size",
    "-dcp": "decode_context_parallel_size",
    "-q": "quantization",
    "-cc": "compilation_config",
    "-O": "optimization_level",
    "-ngl": "n_gpu_layers",
}

#: A name that SGLang or llama.cpp has for something -> octavo's (no_: turned off).
CALLED: dict[str, str] = {
    "model_path": "model",
    "tokenizer_path": "tokenizer",
    "context_length": "max_model_len",
    "mem_fraction_static": "gpu_memory_utilization",
    "max_running_requests": "max_num_seqs",
    "chunked_prefill_size": "max_num_batched_tokens",
    "schedule_policy": "scheduling_policy",
    "random_seed": "seed",
    "disable_radix_cache": "no_enable_prefix_caching",
    "disable_cuda_graph": "enforce_eager",
    "json_model_override_args": "hf_overrides",
    "grammar_backend": "structured_outputs_backend",
    **dict.fromkeys(("ctx_size", "-c"), "max_model_len"),
    **dict.fromkeys(("hf_repo", "-hf", "-hfr", "-m"), "model"),
    **dict.fromkeys(("-t", "-tb", "threads_batch"), "threads"),
    **dict.fromkeys(("parallel", "-np"), "max_num_seqs"),
    **dict.fromkeys(("batch_size", "-b", "ubatch_size", "-ub"), "max_num_batched_tokens"),
    **dict.fromkeys(("alias", "-a"), "served_model_name"),
    "chat_template_file": "chat_template",
}


def called(name: str, known: Collection[str] = ()) -> str:
    """The end of a sentence that says what octavo calls a flag (or else an argument) of another engine; nothing for
    other names. ``known``: the flags that there are."""
    flag = name.startswith("-")
    ours = CALLED.get(name[2:].replace("-", "_") if name.startswith("--") else name)
    if ours is None:
        return ""
    if not flag:
        return f": octavo calls it {ours[3:]}=False" if ours.startswith("no_") else f": octavo calls it {ours}"
    if ours == "model" and "--model" not in known:
        return ": octavo takes it as MODEL, without a flag"
    return f": octavo calls it --{ours.replace('_', '-')}"


def takes(name: str, value: Any, source: str = "argument") -> bool:
    """Whether ``name`` is here, and ``value`` of it asks for nothing.

    Raises ``ConfigError`` with the reason where it asks for something. ``source`` is what the name is, for messages.
    """
    foreign = FOREIGN.get(name.replace("-", "_"))
    if foreign is None:
        return False
    shown = repr(value)[:_SHOWN]
    _take(foreign, value, name if foreign.secret else f"{name}={shown}" if source == "argument" else f"{name}: {shown}")
    return True


def without(words: Sequence[str], known: Collection[str]) -> list[str]:
    """``words`` of a command line less the flags that ask for nothing; ``known``: flags that are the parser's own.

    Raises ``ConfigError`` with the reason for a flag that asks for something, and with octavo's name of what has one.
    """
    kept: list[str] = []
    at = 0
    while at < len(words):
        word = words[at]
        at += 1
        flag, equals, value = word.partition("=")
        if re.fullmatch(r"-O\d", flag):
            flag, equals, value = "-O", "=", flag[2:]
        name = _SHORT.get(flag) or (flag[2:].replace("-", "_") if flag.startswith("--") else "")
        off = name.startswith("no_") and FOREIGN.get(name[3:], Foreign("")).switch
        foreign = FOREIGN.get(name[3:] if off else name)
        if word.startswith("-") and flag not in known and (ours := called(flag, known)):
            raise ConfigError(f"unknown flag {flag}{ours}")
        if word == "--" or foreign is None or flag in known:
            kept.append(word)
            if word == "--":
                return kept + list(words[at:])
            continue
        if foreign.switch:
            value = value if equals else "false" if off else "true"
        elif not equals:
            if at == len(words) or words[at].startswith("-"):
                raise ConfigError(f"flag {flag} expects a value ({foreign.why})")
            value = words[at]
            at += 1
        shown = value[:_SHOWN] if value.isprintable() else repr(value[:_SHOWN])
        _take(foreign, value, flag if foreign.secret or foreign.switch else f"{flag} {shown}")
    return kept


def _take(foreign: Foreign, value: Any, said: str) -> None:
    """Raises ``ConfigError`` where ``value`` asks for something. ``said``: name and value, as they were given."""
    plain = _plain(value)
    if plain in foreign.told:
        _log.warning("%s has no effect: %s", said, foreign.why)
    elif plain and "*" not in foreign.harmless and plain not in foreign.harmless:
        possible = "" if foreign.switch or not foreign.harmless else f"; possible: {', '.join(foreign.harmless)}"
        raise ConfigError(f"not supported: {said} ({foreign.why}{possible})")


def _plain(value: Any) -> str:
    """A value of a call, a configuration file or a command line as one text; "" for what is empty, or all zeros."""
    if isinstance(value, str) and value[:1] in ("{", "["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return value
    if value is None or (isinstance(value, (dict, list, tuple)) and not value):
        return ""
    if isinstance(value, dict) and all(isinstance(one, (int, float)) and not one for one in value.values()):
        return ""  # such as a limit of no images
    text = str(value).strip().lower()
    return f"{float(text):g}" if re.fullmatch(r"\d{1,15}(\.\d{1,15})?", text) else text
