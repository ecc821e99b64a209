"""Which backend serves a layer, and why. BACKENDS is the table of them."""

from collections.abc import Sequence

from octavo.common.registry import Registry
from octavo.device.attention.base import AttentionBackend, AttentionNeed
from octavo.errors import ConfigError

BACKENDS: Registry[type[AttentionBackend]] = Registry(
    "attention backend",
    package="octavo.device.attention",
    table={"cpu": "cpu:CPUAttention", "triton": "triton:TritonAttention"},
    plugins="octavo.attention",
)


def select(
    need: AttentionNeed,
    order: Sequence[str],
    wanted: str | None = None,
    made: dict[str, AttentionBackend] | None = None,
) -> tuple[AttentionBackend, str]:
    """The first backend of ``order`` that serves ``need`` (``wanted`` alone where one is named), and why it was chosen.

    ``made``: backends that are there already, by name; those that are made are added. Raises ``ConfigError`` with every
    backend's reason if none does.
    """
    made = {} if made is None else made
    reasons: list[str] = []
    for name in [wanted] if wanted else order:
        if name not in made:
            made[name] = BACKENDS.load(name)()
        backend = made[name]
        reason = backend.supports(need)
        if reason is None:
            return backend, f"{name} ({'asked for' if wanted else '; '.join(reasons) or 'the first choice here'})"
        reasons.append(f"{name} {reason}")
    raise ConfigError(f"no attention backend serves this model: {'; '.join(reasons)}")
