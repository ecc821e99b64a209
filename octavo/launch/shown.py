"""`octavo serve --show-config`: every effective value and why, checked as far as no weight has to be read."""

from dataclasses import fields
from typing import TYPE_CHECKING, Any

from octavo.common import log
from octavo.config import env
from octavo.config.args import ServeArgs
from octavo.config.engine import EngineConfig
from octavo.config.resolve import ASKED, resolve
from octavo.config.show import AT_START, Row, rows, table
from octavo.launch.asked import (
    DEFAULT_PORT,
    KEEP_ALIVE,
    OPTIONS,
    InUse,
    api_servers,
    bind,
    check_doors,
    check_grpc,
    server_options,
)

if TYPE_CHECKING:
    from octavo.device.worker.fit import Preview
    from octavo.front.parsers.base import Format
    from octavo.front.server.options import Options

#: Why a value is what it is where nobody asked for another, if "default" says too little.
_WHY = {
    "revision": "the hub's main branch",
    "download_dir": "the hub's own cache",
    "hf_overrides": "the model's config.json as it is",
    "host": "every address of this machine",
    "grpc_port": "no gRPC",
    "api_key": "everybody may ask",
    "request_timeout": "no limit",
    "ssl_certfile": "plain HTTP",
    "ssl_ca_certs": "certificates of clients are not asked for",
    "enable_auto_tool_choice": "always",
    "profiler_config": "no profiler",
    "otlp_traces_endpoint": "no traces",
}


def show(args: ServeArgs) -> str:
    """The table. Raises ``ConfigError`` for what `octavo serve` could not be, but for a port that is taken now."""
    from octavo.device.worker.fit import preview
    from octavo.launch.text import format_of, front_of

    log.setup(args.log_level)
    options = server_options(args)
    check_doors(args, options)
    busy = _busy(args, options)
    config = resolve(args)
    tokenizer, chat = front_of(config)
    found = format_of(tokenizer, chat, options)
    return table(_engine(config, preview(config)) + _server(args, options, config, found, busy))


def _busy(args: ServeArgs, options: "Options") -> dict[str, str]:
    """Flag -> a word on its port where another program has that now: a running server does not hinder this."""
    busy = {}
    try:
        bind(args.host, DEFAULT_PORT if args.port is None else args.port).close()
    except InUse:
        busy["port"] = "in use by another program now"
    if args.grpc_port:
        try:
            check_grpc(args, options)
        except InUse:
            busy["grpc_port"] = "in use by another program now"
    return busy


def _engine(config: EngineConfig, found: "Preview") -> list[Row]:
    """The engine's rows, with what its device will choose as far as that is known without its weights."""
    name, _, reason = found.attention.partition(" ")
    shown = []
    for row in rows(config):
        if row.name == "device.attention_backend":
            row = row._replace(value=name, why=reason.strip("()") or row.why)
        elif row.name == "cache.page" and row.value == AT_START:
            row = row._replace(value=found.page)
        elif row.name == "cache.memory" and row.value == AT_START:
            row = row._replace(why=found.memory)
        shown.append(row)
    return shown


def _server(
    args: ServeArgs, options: "Options", config: EngineConfig, found: "Format | None", busy: dict[str, str]
) -> list[Row]:
    """What the engine's own rows do not tell."""
    told = {flag for row in rows(config) for flag in row.flags}
    shown = []
    for spec in fields(ServeArgs):
        name = spec.name
        if name in told:
            continue
        why = ASKED if getattr(args, name) is not None else _WHY.get(name, "default")
        value, why = _value(name, args, options, config, found, why)
        if name in busy:
            why += f"; {busy[name]}"
        shown.append(Row(f"{spec.metadata['group']}.{name}", value, (name,), why))
    return shown


def _value(
    name: str, args: ServeArgs, options: "Options", config: EngineConfig, found: "Format | None", why: str
) -> tuple[Any, str]:
    """(what is in effect, why). No secret is shown: of keys their count, of a passphrase that there is one."""
    asked = getattr(args, name)
    match name:
        case "api_server_count":
            return api_servers(args, config)
        case "reasoning_parser" | "tool_call_parser":
            value = getattr(options, name)
            if value == "auto":
                has = found is not None and (found.has_reasoning if name == "reasoning_parser" else found.has_calls)
                why += f"; the model's template shows {found.name if found is not None and has else 'none'}"
            return value, why
        case "api_key":
            count = len(options.api_keys)
            if asked is None and args.api_key_file is None and count:
                why = f"from {'OCTAVO_API_KEY' if env.read('OCTAVO_API_KEY') else 'VLLM_API_KEY'}"
            elif args.api_key_file is not None:
                why = "with those of --api-key-file"
            return f"{count} key{'' if count == 1 else 's'}", why
        case "ssl_keyfile_password":
            secret = options.tls is not None and options.tls.password is not None
            return "(hidden)" if secret else None, why if asked is not None or not secret else "from a file or variable"
        case "ssl_cert_reqs":
            return 0 if options.tls is None else int(options.tls.cert_reqs), why
        case "allowed_origins":
            return options.allowed_origins, why
        case "disable_fastapi_docs":
            return not options.docs, why
        case "disable_web_ui":
            return not options.web_ui, why
        case "log_level" | "log_format":
            variable = f"OCTAVO_{name.upper()}"
            if asked is None and (read := env.read(variable)) is not None:
                return read, f"from {variable}"
            return asked or _DEFAULTS[name], why
        case "otlp_traces_endpoint":
            return None if asked is None else env.without_user(asked), why
    if name in OPTIONS:
        return getattr(options, OPTIONS[name]), why
    return _DEFAULTS.get(name) if asked is None else asked, why


#: Values in effect where nobody asked, of flags that are read where they are used.
_DEFAULTS: dict[str, Any] = {
    "port": DEFAULT_PORT,
    "grpc_port": 0,
    "shutdown_timeout": 0.0,
    "timeout_keep_alive": KEEP_ALIVE,
    "enable_ssl_refresh": False,
    "enable_auto_tool_choice": True,
    "disable_access_log": False,
    "disable_log_stats": False,
    "log_level": "info",
    "log_format": "text",
}
