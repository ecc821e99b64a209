"""One worker in this process, found by name: floors never import one another."""

from importlib import import_module

from octavo.config.engine import EngineConfig
from octavo.errors import ConfigError
from octavo.wire.ports import WorkerPort


def make_worker(config: EngineConfig) -> WorkerPort:
    """The worker that ``config.worker`` ("module:class") names, built. Raises ``ConfigError`` if there is none."""
    module, _, name = config.worker.partition(":")
    try:
        kind = getattr(import_module(module), name)
    except (ModuleNotFoundError, AttributeError, ValueError) as error:
        raise ConfigError(f"the worker {config.worker!r} cannot be loaded: {error}") from error
    return kind(config)
