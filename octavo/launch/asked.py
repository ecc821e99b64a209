"""What `octavo serve` was asked, checked before anything is loaded: options of the server, and its doors."""

import errno
import importlib.util
import ipaddress
import os
import socket
from typing import TYPE_CHECKING, Any

from octavo.common import probe
from octavo.common.words import nearest
from octavo.config import env
from octavo.config.args import ServeArgs
from octavo.config.engine import EngineConfig
from octavo.config.resolve import ASKED
from octavo.errors import ConfigError

if TYPE_CHECKING:
    from octavo.front.server.options import Options, Profiling

DEFAULT_PORT = 8000
#: Most API processes; where nobody says how many: as one carries so many streams, and no more than a part of the cores.
MOST_APIS, ENOUGH_APIS, CORES_AN_API = 64, 4, 4
#: Seconds that an idle connection stays open.
KEEP_ALIVE = 5
#: Flags whose values the server's options take as they are -> what those are called there.
OPTIONS = {
    "isolate_keys": "isolate_keys",
    "write_timeout": "write_timeout",
    "max_prompts": "max_prompts",
    "max_body_size": "max_body_size",
    "root_path": "root_path",
    "allow_credentials": "allow_credentials",
    "request_timeout": "request_timeout",
    "response_role": "response_role",
    "trust_request_chat_template": "trust_request_chat_template",
    "default_chat_template_kwargs": "chat_template_kwargs",
    "reasoning_parser": "reasoning_parser",
    "tool_call_parser": "tool_call_parser",
    "reasoning_content_alias": "reasoning_alias",
    "exclude_tools_when_tool_choice_none": "hide_unused_tools",
    "return_tokens_as_token_ids": "tokens_as_ids",
    "enable_force_include_usage": "force_usage",
    "enable_request_id_headers": "request_id_headers",
    "enable_log_requests": "log_requests",
    "enable_control_routes": "control",
    "response_store_count": "response_store_count",
    "response_store_size": "response_store_size",
    "response_store_age": "response_store_age",
}


class InUse(ConfigError):
    """Another program listens there now, which another time it may not."""


def server_options(args: ServeArgs) -> "Options":
    """What was asked of the server. Raises ``ConfigError``."""
    from octavo.front.server import tls
    from octavo.front.server.keys import read_keys
    from octavo.front.server.options import MAX_PROMPTS, Options

    keys = read_keys(args.api_key, args.api_key_file, env.read("OCTAVO_API_KEY") or env.read("VLLM_API_KEY"))
    stores = ("response_store_count", "response_store_size", "response_store_age")
    for name in ("shutdown_timeout", "request_timeout", "timeout_keep_alive", "max_body_size", *stores):
        value = getattr(args, name)
        if value is not None and value < 0:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least 0, got {value}")
    for name, least in (("write_timeout", 0.1), ("max_prompts", 1)):
        value = getattr(args, name)
        if value is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')} must be at least {least}, got {value}")
    if (args.max_prompts or 0) > MAX_PROMPTS:
        raise ConfigError(f"--max-prompts must be at most {MAX_PROMPTS}, got {args.max_prompts}")
    if args.reasoning_parser is not None or args.tool_call_parser is not None:
        from octavo.front.parsers.registry import REASONING_PARSERS, TOOL_PARSERS, check_name

        check_name(args.reasoning_parser or "auto", REASONING_PARSERS, "--reasoning-parser")
        check_name(args.tool_call_parser or "auto", TOOL_PARSERS, "--tool-call-parser")
    if args.isolate_keys and not keys:
        raise ConfigError("--isolate-keys needs keys: --api-key, --api-key-file or OCTAVO_API_KEY")
    if args.enable_ssl_refresh and args.ssl_certfile is None:
        raise ConfigError("--enable-ssl-refresh needs --ssl-certfile")
    certificates = tls.checked(
        certfile=args.ssl_certfile,
        keyfile=args.ssl_keyfile,
        password=args.ssl_keyfile_password,
        password_file=args.ssl_keyfile_password_file,
        password_otherwise=env.read("OCTAVO_SSL_KEYFILE_PASSWORD"),
        ca_certs=args.ssl_ca_certs,
        cert_reqs=args.ssl_cert_reqs,
        ciphers=args.ssl_ciphers,
    )
    said = {option: getattr(args, name) for name, option in OPTIONS.items()}
    said |= {
        "tls": certificates,
        "allowed_origins": None if args.allowed_origins is None else tuple(args.allowed_origins),
        "docs": None if args.disable_fastapi_docs is None else not args.disable_fastapi_docs,
        "web_ui": not args.disable_web_ui,
        "profiler": None if args.profiler_config is None else profiling(args.profiler_config),
    }
    return Options(api_keys=keys, **{name: value for name, value in said.items() if value is not None})


def api_servers(args: ServeArgs, config: EngineConfig, cores: int | None = None) -> tuple[int, str]:
    """(how many processes serve HTTP, why). ``cores`` None: those of this machine. Raises ``ConfigError``."""
    asked = args.api_server_count
    if asked is not None:
        if not 1 <= asked <= MOST_APIS:
            raise ConfigError(f"--api-server-count must be from 1 to {MOST_APIS}, got {asked}")
        return asked, ASKED
    if config.device.platform == "cpu":
        return 1, "the model runs on the cores that more would take"
    cores = probe.cores() if cores is None else cores
    found = max(1, min(ENOUGH_APIS, cores // CORES_AN_API))
    return found, f"one for {CORES_AN_API} of {cores} cores, at most {ENOUGH_APIS}"


def profiling(asked: dict[str, Any]) -> "Profiling":
    """What --profiler-config says. Raises ``ConfigError``."""
    from octavo.front.server.options import Profiling

    known = ("profiler", "torch_profiler_dir", "torch_profiler_with_stack", "torch_profiler_record_shapes")
    for name in asked:
        if name not in known:
            raise ConfigError(f"--profiler-config has no {name!r}{nearest(name, known)}; known: {', '.join(known)}")
    if asked.get("profiler", "torch") != "torch":
        raise ConfigError(f"--profiler-config: the only profiler is torch, not {asked['profiler']!r}")
    folder = asked.get("torch_profiler_dir")
    if not isinstance(folder, str) or not folder:
        raise ConfigError("--profiler-config needs torch_profiler_dir: the directory for traces")
    flags = {name: asked.get(f"torch_profiler_{name}", False) for name in ("with_stack", "record_shapes")}
    if any(not isinstance(value, bool) for value in flags.values()):
        raise ConfigError("--profiler-config: with_stack and record_shapes are true or false")
    try:
        os.makedirs(folder, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--profiler-config: {folder} cannot be made: {error.strerror}") from None
    return Profiling(folder=os.path.abspath(folder), **flags)


def check_doors(args: ServeArgs, options: "Options") -> None:
    """Raises ``ConfigError`` where what stands beside HTTP cannot be: traces, control of the engine."""
    if args.otlp_traces_endpoint is not None:
        from octavo.front.metrics import tracing

        tracing.check(args.otlp_traces_endpoint)
    asked = "--enable-control-routes" if options.control else "--profiler-config"
    if (options.control or options.profiler) and not options.api_keys and not _loopback(args.host):
        raise ConfigError(f"{asked} needs a key (--api-key-file), or --host 127.0.0.1: others could control the engine")


def _loopback(host: str | None) -> bool:
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


def check_grpc(args: ServeArgs, options: "Options") -> None:
    """Raises ``ConfigError`` where gRPC cannot be served."""
    if any(importlib.util.find_spec(name) is None for name in ("grpc", "grpc_health", "grpc_reflection")):
        raise ConfigError("--grpc-port needs packages that are not installed: pip install 'octavo[grpc]'")
    assert args.grpc_port is not None
    if options.tls is not None:
        from octavo.front.grpc.server import credentials

        credentials(options.tls, refresh=False)
    bind(args.host, args.grpc_port, "--grpc-port").close()


def bind(host: str | None, port: int, flag: str = "--port") -> socket.socket:
    """A socket with the address, not listening yet: the port opens when the model is ready.

    ``host`` None: every address of the machine. Raises ``ConfigError`` where the address is used or is none.
    """
    if not 0 <= port < 1 << 16:
        raise ConfigError(f"{flag} must be from 0 to 65535, got {port}")
    if host is None:
        host, dual = ("::", True) if socket.has_dualstack_ipv6() else ("0.0.0.0", False)
    else:
        dual = False
    where = f"port {port}" if host in ("::", "0.0.0.0") else f"{host}, port {port}"
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (socket.gaierror, UnicodeError) as error:
        raise ConfigError(f"--host {host!r} is no address of this machine: {error}") from None
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0 if dual else 1)
        listener.bind(address)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise InUse(f"{where} is in use by another program; choose another with {flag}") from None
        raise ConfigError(f"cannot listen on {where}: {error.strerror}") from None
    return listener
