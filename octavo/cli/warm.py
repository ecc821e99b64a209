"""`octavo warm`: compile a model's kernels for a GPU, here or elsewhere, into a folder that may go into an image.

No GPU is needed, but Triton (which torch brings along only where it is made for GPUs) and a C compiler. A start with
the same flags then finds them all, if TRITON_CACHE_DIR names the folder.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from octavo.common import log, probe
from octavo.config.args import EngineArgs
from octavo.config.cli import Parser, add_flags, add_model, ask, one_model
from octavo.config.resolve import resolve
from octavo.errors import ConfigError


def parser() -> Parser:
    found = Parser(prog="octavo warm", usage="octavo warm [MODEL] [flags]", description=__doc__)
    add_model(found)
    found.add_argument("--cache-dir", metavar="DIR", help="the folder to fill (Triton's: TRITON_CACHE_DIR)")
    found.add_argument(
        "--capability", metavar="X.Y", help="compute capability to compile for, as 9.0 (that of the GPU which is here)"
    )
    found.add_argument("--processes", type=int, metavar="N", help="processes that compile (one a core, 16 at most)")
    add_flags(found, EngineArgs, skip=("model", "disable_log_stats", "device"))
    return found


def main(argv: Sequence[str]) -> int:
    """Compile what is missing and say so; the exit status, 1 where a kernel failed. Raises ``ConfigError``."""
    found = parser()
    parsed = found.parse_args(argv)
    one_model(found, parsed)
    if parsed.cache_dir is not None:
        os.environ["TRITON_CACHE_DIR"] = str(Path(parsed.cache_dir).absolute())
    args = ask(EngineArgs, parsed)
    args.device = "cuda"
    log.setup("warning")
    return _warm(args, _capability(parsed.capability), parsed.processes)


def _capability(asked: str | None) -> tuple[int, int]:
    if asked is None:
        gpus = probe.gpus()
        if not gpus:
            raise ConfigError("no GPU is here to compile for; --capability says which is meant, as 9.0")
        return gpus[0].capability
    major, _, minor = asked.partition(".")
    if not (major.isdigit() and minor.isdigit() and len(minor) == 1):
        raise ConfigError(f"--capability {asked!r} is not a number like 9.0")
    return int(major), int(minor)


def _warm(args: EngineArgs, capability: tuple[int, int], processes: int | None) -> int:
    if processes is not None and processes < 1:
        raise ConfigError(f"--processes must be at least 1, got {processes}")
    config = resolve(args)
    try:
        import torch
        import triton  # noqa: F401

        from octavo.device.platforms.cuda import LEAST
        from octavo.device.worker.ahead import Ahead, cache
    except ImportError as error:
        raise ConfigError(f"kernels cannot be compiled here: {error} (pip install triton)") from None
    if capability < LEAST:
        told = ".".join(map(str, capability))
        raise ConfigError(f"octavo needs a GPU of compute capability {'.'.join(map(str, LEAST))} or more, not {told}")
    if probe.compiler() is None:
        raise ConfigError(
            "kernels cannot be compiled here: Triton needs a C compiler, and neither gcc nor clang is here"
        )
    ahead = Ahead(config, getattr(torch, config.model.dtype), capability, processes)
    try:
        told = ahead.finish()
    finally:
        ahead.close()
    print(f"{cache()}: {told or 'all kernels are there'}")
    if ahead.failed:
        print("\n".join(ahead.failed), file=sys.stderr)
    return 1 if ahead.failed else 0
