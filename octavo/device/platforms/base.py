"""Platform: what the rest of the device floor must not ask torch itself. PLATFORMS is the table of them."""

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch

from octavo.common.registry import Registry


class Event(Protocol):
    """A point in a stream's work."""

    def record(self, stream: "Stream | None" = None) -> None: ...

    def query(self) -> bool:
        """Whether the work before it is done."""

    def synchronize(self) -> None: ...


class Stream(Protocol):
    """An ordered queue of device work."""

    def wait_event(self, event: Event) -> None: ...

    def synchronize(self) -> None: ...


class Platform(Protocol):
    """One kind of device."""

    name: str
    device: torch.device
    can_store_to_host: bool
    graphs: bool
    #: Whether work goes on when the call that launched it has returned.
    asynchronous: bool
    attention: tuple[str, ...]

    def describe(self) -> str:
        """The device's own name, for people."""

    def start(self, threads: int | None) -> None:
        """Once a process, before any tensor is made. ``threads``: compute threads, None for the platform's choice."""

    def enter(self) -> None:
        """Before a thread launches work: the platform's stream is the current one."""

    def settle(self) -> None:
        """Once, when the weights are loaded: what helps steps and would have hurt loading.

        The process may be the user's own: their objects are left alone.
        """

    def supports(self, dtype: torch.dtype) -> str | None:
        """None, or why this device cannot compute in ``dtype``."""

    def free_memory(self) -> int:
        """Bytes that could be allocated now."""

    def total_memory(self) -> int:
        """Bytes that the device has."""

    def used_memory(self) -> int:
        """Bytes that this process holds on the device now."""

    def reset_peak(self) -> None: ...

    def peak_memory(self) -> int:
        """Most bytes held since ``reset_peak``."""

    def allocate(self, size: int) -> torch.Tensor:
        """``size`` bytes (uint8), zero, which take memory only where they are touched if the device can do that."""

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        """Host memory, zero, that the device can copy to and from while the host goes on."""

    def stream(self) -> Any:
        """The ``Stream`` of all steps."""

    def event(self) -> Any:
        """A new ``Event``."""

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """What ``run`` launches, as a graph: calling the answer does it again, on the same tensors. ``run`` itself does
        nothing but leave its tensors behind."""

    def idle(self) -> bool:
        """Whether all launched work is done. Raises ``EngineDead`` where it failed."""


PLATFORMS: Registry[type[Platform]] = Registry(
    "platform",
    package="octavo.device.platforms",
    table={"cpu": "cpu:CPU", "cuda": "cuda:CUDA"},
    plugins="octavo.platforms",
)
