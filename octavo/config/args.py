"""EngineArgs and ServeArgs: what was asked. Every flag is a field here, None means "not said".

The command line (``config.cli``), configuration files and the keyword arguments of ``LLM`` are made from these fields;
``config.resolve`` turns them into an ``EngineConfig``. Names are vLLM's, so that users can switch.
"""

# ruff: noqa: RUF009 (a flag is a field made by a function)

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, TypeVar

from octavo.common.words import nearest
from octavo.config import foreign
from octavo.errors import ConfigError

T = TypeVar("T", bound="EngineArgs")


def flag(
    help: str,
    *,
    group: str,
    default: Any = None,
    alias: tuple[str, ...] = (),
    choices: tuple[str, ...] = (),
    **more: Any,
) -> Any:
    """A field that is a flag. ``alias``: other names (with underscores). ``metavar`` names the value in the help,
    ``parse`` turns the text of the command line or a configuration file into the value."""
    return field(default=default, metadata={"help": help, "group": group, "alias": alias, "choices": choices, **more})


def count(text: str | int) -> int:
    """A whole number, where k, m, g mean powers of 1000 and K, M, G powers of 1024, also with "iB": "32k", "4GiB".

    Raises ``ValueError``.
    """
    if isinstance(text, int) and not isinstance(text, bool):
        return text
    word = str(text).strip()
    for suffix, unit in (
        ("iB", 0),
        ("B", 0),
        ("k", 10**3),
        ("m", 10**6),
        ("g", 10**9),
        ("K", 2**10),
        ("M", 2**20),
        ("G", 2**30),
    ):
        if not word.endswith(suffix):
            continue
        word = word.removesuffix(suffix)
        if unit:
            scaled = float(word) * unit
            if scaled != int(scaled):
                raise ValueError(f"{text!r} is not a whole number")
            return int(scaled)
    return int(word)


def length(text: str | int) -> int:
    """As ``count``; "auto" is -1, which means as long as fits."""
    return -1 if text == "auto" else count(text)


def mapping(value: Any) -> dict[str, Any]:
    """A JSON object, as text or as it is. Raises ``ValueError``."""
    parsed = json.loads(value) if isinstance(value, str) else value
    if not isinstance(parsed, Mapping):
        raise ValueError("not a JSON object")
    return dict(parsed)


@dataclass(kw_only=True)
class EngineArgs:
    """What a user may ask of an engine, offline or served."""

    model: str | None = flag(
        "directory, GGUF file or hub name; without one the embedded SmolLM2-135M-Instruct",
        group="model",
        metavar="MODEL",
    )
    tokenizer: str | None = flag(
        "directory or GGUF file of the tokenizer, where it is not the model's", group="model", metavar="PATH"
    )
    skip_tokenizer_init: bool | None = flag("take and give token ids only", group="model")
    revision: str | None = flag("branch, tag or commit of a hub model", group="model", metavar="NAME")
    download_dir: str | None = flag("where hub models are kept", group="model", metavar="PATH")
    hf_overrides: dict | None = flag(
        "JSON object laid over the model's config.json", group="model", metavar="JSON", parse=mapping
    )
    dtype: str | None = flag(
        "of weights and activations; auto: the checkpoint's where this device is good at it",
        group="model",
        choices=("auto", "float32", "bfloat16", "float16", "float", "half"),
    )
    load_format: str | None = flag(
        "auto: what the path holds; dummy: random weights from a config.json alone",
        group="model",
        choices=("auto", "safetensors", "gguf", "dummy"),
    )
    seed: int | None = flag("of dummy weights and of requests without one of their own", group="model", metavar="N")
    chat_template: str | None = flag(
        "file with a Jinja chat template, or the template itself", group="model", metavar="FILE"
    )
    generation_config: str | None = flag(
        "where the sampling defaults come from: auto (the model), vllm (none) or a directory",
        group="model",
        metavar="WHERE",
    )
    override_generation_config: dict | None = flag(
        "JSON object laid over the sampling defaults", group="model", metavar="JSON", parse=mapping
    )
    max_logprobs: int | None = flag(
        "most log-probabilities a request may ask for; -1: no limit", group="limits", metavar="N"
    )
    logprobs_mode: str | None = flag(
        "log-probabilities of the model's own logits (raw), or of what is drawn from (processed)",
        group="limits",
        choices=("raw_logprobs", "processed_logprobs", "raw_logits", "processed_logits"),
    )
    max_n: int | None = flag("most answers a request may ask for", group="limits", metavar="N")
    max_model_len: int | None = flag(
        "longest prompt and output together; auto: the model's, cut to what fits in memory",
        group="limits",
        metavar="TOKENS",
        parse=length,
    )
    max_stop: int | None = flag("most stop strings a request may give (64)", group="limits", metavar="N")
    max_waiting: int | None = flag(
        "requests that may queue before new ones get 429; 0: no limit", group="limits", metavar="N"
    )
    max_waiting_tokens: int | None = flag(
        "prompt tokens that may wait to be computed before new requests get 429; 0: no limit",
        group="limits",
        metavar="TOKENS",
        parse=count,
    )
    max_waiting_time: float | None = flag(
        "seconds after which a request that still queues gets 429; 0: no limit", group="limits", metavar="SECONDS"
    )
    block_size: int | None = flag(
        "tokens a page of the KV cache", group="cache", alias=("page_size",), metavar="TOKENS"
    )
    kv_cache_memory_bytes: int | None = flag(
        "memory for the KV cache, as 4GiB or 512M",
        group="cache",
        alias=("kv_cache_memory",),
        metavar="BYTES",
        parse=count,
    )
    gpu_memory_utilization: float | None = flag(
        "share of a GPU's memory for weights, steps and KV cache together (0.9); no effect on a CPU",
        group="cache",
        metavar="SHARE",
    )
    enable_prefix_caching: bool | None = flag("reuse the KV cache of prompts that begin alike", group="cache")
    max_num_seqs: int | None = flag("requests that run at once", group="schedule", metavar="N")
    max_num_batched_tokens: int | None = flag("tokens a step", group="schedule", metavar="TOKENS", parse=count)
    long_prefill_token_threshold: int | None = flag(
        "most tokens of one prompt a step; 0: all that fit in the step", group="schedule", metavar="TOKENS", parse=count
    )
    scheduling_policy: str | None = flag(
        "who runs first: first come, or lowest priority number", group="schedule", choices=("fcfs", "priority")
    )
    async_scheduling: bool | None = flag("plan a step while the one before it runs", group="schedule")
    burst_ms: float | None = flag(
        "milliseconds of decode steps that are launched at once while nobody waits; 0: one step at a time",
        group="schedule",
        metavar="MS",
    )
    speculative_config: dict | None = flag(
        'guess tokens and verify several in one step: {"method": "ngram", "num_speculative_tokens": 4, '
        '"prompt_lookup_min": 2, "prompt_lookup_max": 4}; method grammar guesses only what a grammar forces',
        group="schedule",
        metavar="JSON",
        parse=mapping,
    )
    structured_outputs_config: dict | None = flag(
        'structured outputs: {"backend": "auto", "disable_any_whitespace": false, "disable_additional_properties": '
        'false, "whitespace_pattern": "..."}',
        group="limits",
        metavar="JSON",
        parse=mapping,
    )
    structured_outputs_backend: str | None = flag(
        "library that compiles grammars (auto: guidance)",
        group="limits",
        alias=("guided_decoding_backend",),
        choices=("auto", "guidance", "xgrammar"),
    )
    step_timeout: float | None = flag(
        "seconds after which a step that makes no progress is reported as stuck", group="schedule", metavar="SECONDS"
    )
    device: str | None = flag(
        "platform that runs the model; auto: the best that is here", group="device", metavar="NAME"
    )
    threads: int | None = flag(
        "compute threads on a CPU; without it the cores this process may use", group="device", metavar="N"
    )
    attention_backend: str | None = flag(
        "attention backend, instead of the first that fits", group="device", metavar="NAME"
    )
    enforce_eager: bool | None = flag("no device graphs: every step is launched kernel by kernel", group="device")
    deterministic: bool | None = flag(
        "no result depends, to the bit, on what runs beside it or how it is cut into steps; slower", group="device"
    )
    disable_log_stats: bool | None = flag("no periodic line with throughput and queue", group="log", negatable=False)

    @classmethod
    def of(cls: type[T], values: Mapping[str, Any], source: str = "argument") -> T:
        """From names (dashes or underscores, or an alias) and values. Raises ``ConfigError`` for a name or value that
        is none, naming the nearest known name. ``source`` is what the names are, for messages. Names of vLLM's that
        ask for nothing are passed over (``config.foreign``)."""
        known = cls.names()
        found: dict[str, Any] = {}
        for name, value in values.items():
            plain = str(name).replace("-", "_")
            target = known.get(plain)
            if target is None:
                if foreign.takes(str(name), value, source):
                    continue
                raise ConfigError(f"unknown {source} {name!r}{foreign.called(plain) or nearest(plain, known)}")
            if target in found:
                raise ConfigError(f"{source} {name!r} is given twice (it is the same as {target!r})")
            found[target] = convert(cls, target, value, source)
        return cls(**found)

    @classmethod
    def names(cls) -> dict[str, str]:
        """Every accepted name -> the field it stands for."""
        return {name: f.name for f in fields(cls) for name in (f.name, *f.metadata["alias"])}


@dataclass(kw_only=True)
class ServeArgs(EngineArgs):
    """What a user may ask of ``octavo serve``: an engine, and the server before it."""

    served_model_name: list[str] | None = flag(
        "names that the API gives the model; the first is the one it answers with", group="server", metavar="NAME"
    )
    host: str | None = flag("address to listen on; without it all of them", group="server", metavar="ADDRESS")
    port: int | None = flag("port to listen on (8000); 0: any that is free", group="server", metavar="PORT")
    grpc_port: int | None = flag(
        "port for gRPC, beside HTTP's (0: none; needs octavo[grpc])", group="server", metavar="PORT"
    )
    api_server_count: int | None = flag(
        "processes that serve HTTP before the one engine (on a GPU one for four cores, at most 4; else 1)",
        group="server",
        metavar="N",
        short="-asc",
    )
    api_key: list[str] | None = flag(
        "keys, one of which a request must carry as a bearer token", group="server", metavar="KEY", secret=True
    )
    api_key_file: str | None = flag("file with a key a line, beside those of --api-key", group="server", metavar="FILE")
    isolate_keys: bool | None = flag(
        "each API key reuses only its own prompts in the KV cache: no caller can time what another has asked",
        group="server",
    )
    shutdown_timeout: float | None = flag(
        "seconds that running requests get to finish after SIGTERM (0: none)", group="server", metavar="SECONDS"
    )
    request_timeout: float | None = flag(
        "seconds after which a request is aborted (none)", group="server", metavar="SECONDS"
    )
    timeout_keep_alive: float | None = flag(
        "seconds that an idle connection stays open (5)", group="server", metavar="SECONDS"
    )
    write_timeout: float | None = flag(
        "seconds after which a client that takes nothing of its answer is cut off (60)",
        group="server",
        metavar="SECONDS",
    )
    max_body_size: int | None = flag("largest request body, as 64MiB", group="server", metavar="BYTES", parse=count)
    response_store_count: int | None = flag(
        "responses of /v1/responses that are kept in memory (1024); 0: none", group="limits", metavar="N"
    )
    response_store_size: int | None = flag(
        "bytes that they may take in all (256MiB)", group="limits", metavar="BYTES", parse=count
    )
    response_store_age: float | None = flag(
        "seconds after which they are forgotten (86400)", group="limits", metavar="SECONDS"
    )
    max_prompts: int | None = flag(
        "most prompts, and answers to them, of one request (1024)", group="limits", metavar="N"
    )
    ssl_certfile: str | None = flag(
        "PEM file with the server's certificate and what is above it: HTTPS instead of HTTP",
        group="tls",
        metavar="FILE",
    )
    ssl_keyfile: str | None = flag(
        "PEM file with its private key, where that is not in the certificate's", group="tls", metavar="FILE"
    )
    ssl_keyfile_password: str | None = flag(
        "passphrase of the private key; others on this machine can read it here",
        group="tls",
        metavar="TEXT",
        secret=True,
    )
    ssl_keyfile_password_file: str | None = flag(
        "file with the passphrase of the private key", group="tls", metavar="FILE"
    )
    ssl_ca_certs: str | None = flag(
        "PEM file with the authorities whose client certificates are good", group="tls", metavar="FILE"
    )
    ssl_cert_reqs: int | None = flag(
        "certificates of clients: 0 not asked for, 1 checked where there is one, 2 required", group="tls", metavar="N"
    )
    ssl_ciphers: str | None = flag("TLS 1.2 ciphers, as OpenSSL writes them", group="tls", metavar="LIST")
    enable_ssl_refresh: bool | None = flag("take new certificates when their files change", group="tls")
    root_path: str | None = flag("path that a proxy before this server cuts off", group="server", metavar="PATH")
    allowed_origins: list[str] | None = flag(
        "CORS: origins that may call from a browser", group="server", metavar="ORIGIN"
    )
    allow_credentials: bool | None = flag("CORS: allow cookies and keys", group="server")
    response_role: str | None = flag("role of chat answers (assistant)", group="server", metavar="ROLE")
    trust_request_chat_template: bool | None = flag("let requests bring their own chat template", group="server")
    default_chat_template_kwargs: dict | None = flag(
        "JSON object given to the chat template of every request", group="server", metavar="JSON", parse=mapping
    )
    reasoning_parser: str | None = flag(
        "how the model marks its reasoning, by vLLM's names; none: not at all (auto: as its template shows)",
        group="server",
        metavar="NAME",
    )
    tool_call_parser: str | None = flag(
        "how the model writes tool calls, by vLLM's names; none: not at all (auto: as its template shows)",
        group="server",
        metavar="NAME",
    )
    enable_auto_tool_choice: bool | None = flag("let the model call tools as it likes (it may)", group="server")
    exclude_tools_when_tool_choice_none: bool | None = flag(
        "do not show the model tools that it may not call", group="server"
    )
    reasoning_content_alias: bool | None = flag(
        "chat answers hold their reasoning as reasoning_content too", group="server"
    )
    return_tokens_as_token_ids: bool | None = flag("write tokens in log-probabilities as token_id:N", group="server")
    enable_force_include_usage: bool | None = flag("send usage at the end of every stream", group="server")
    enable_request_id_headers: bool | None = flag("answer with X-Request-Id (it does)", group="server")
    enable_log_requests: bool | None = flag("log a line a request (never its text)", group="log")
    disable_access_log: bool | None = flag(
        "no log line for each HTTP request", group="log", alias=("disable_uvicorn_access_log",), negatable=False
    )
    disable_fastapi_docs: bool | None = flag("no /docs and /openapi.json", group="server", negatable=False)
    enable_control_routes: bool | None = flag(
        "serve /pause, /resume, /sleep, /wake_up, /reset_prefix_cache and /server_info too (/start_profile needs "
        "--profiler-config); needs a key, or a --host that only this machine reaches",
        group="server",
    )
    profiler_config: dict | None = flag(
        'serve /start_profile and /stop_profile: {"profiler": "torch", "torch_profiler_dir": "DIR"}, and '
        "torch_profiler_with_stack or torch_profiler_record_shapes; needs what --enable-control-routes needs",
        group="server",
        metavar="JSON",
        parse=mapping,
    )
    disable_web_ui: bool | None = flag("no web page at /", group="server", negatable=False)
    log_level: str | None = flag(
        "least important lines to show",
        group="log",
        alias=("uvicorn_log_level",),
        choices=("debug", "info", "warning", "error"),
    )
    log_format: str | None = flag(
        "of the log: lines for people, or a JSON object a line", group="log", choices=("text", "json")
    )
    otlp_traces_endpoint: str | None = flag(
        "URL that takes OpenTelemetry traces over HTTP, as http://host:4318/v1/traces (needs octavo[trace])",
        group="log",
        metavar="URL",
    )


def convert(cls: type[EngineArgs], name: str, value: Any, source: str = "argument") -> Any:
    """``value`` as the field's type. Raises ``ConfigError`` that names the field and what is possible."""
    if value is None:
        return None
    spec = next(f for f in fields(cls) if f.name == name)
    kind = str(spec.type).removesuffix(" | None") if isinstance(spec.type, str) else _kind(spec.type)
    parse, choices = spec.metadata.get("parse"), spec.metadata["choices"]
    try:
        value = parse(value) if parse else _CONVERT[kind](value)
    except (TypeError, ValueError, OverflowError, RecursionError):
        shown = "something else" if spec.metadata.get("secret") else repr(str(value)[:60])
        raise ConfigError(f"{source} {name!r} takes {_WORDS[kind]}, got {shown}") from None
    if choices and value not in choices:
        raise ConfigError(f"{source} {name!r} is {value!r}{nearest(value, choices)}; possible: {', '.join(choices)}")
    return value


def _kind(annotation: Any) -> str:
    for kind, word in ((bool, "bool"), (int, "int"), (float, "float"), (dict, "dict"), (str, "str")):
        if annotation == kind | None:
            return word
    return "list[str]"


def _bool(value: Any) -> bool:
    known = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
    try:
        return known[str(value).lower()]
    except KeyError:
        raise ValueError(value) from None


def _number(kind: type) -> Any:
    def convert_number(value: Any) -> Any:
        if isinstance(value, bool) or (kind is int and isinstance(value, float)):
            raise ValueError(value)
        number = kind(value)
        if not math.isfinite(number):
            raise ValueError(value)
        return number

    return convert_number


def _text(value: Any) -> str:
    if isinstance(value, Path):
        return str(value)
    if not isinstance(value, str):
        raise ValueError(value)
    return value


def _texts(value: Any) -> list[str]:
    if isinstance(value, (str, Path)):
        return [_text(value)]
    if not isinstance(value, (list, tuple)):
        raise ValueError(value)
    return [_text(item) for item in value]


_CONVERT = {
    "bool": _bool,
    "int": _number(int),
    "float": _number(float),
    "dict": mapping,
    "str": _text,
    "list[str]": _texts,
}
_WORDS = {
    "bool": "true or false",
    "int": "a whole number",
    "float": "a number",
    "dict": "a JSON object",
    "str": "text",
    "list[str]": "one or more texts",
}
