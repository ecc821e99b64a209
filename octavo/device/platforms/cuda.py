"""NVIDIA GPUs: one stream for all work of a process, graphs of it, pinned memory, and what memory there is."""

import gc
from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

from octavo.errors import ConfigError, EngineDead

#: What this code was built for: compute capability 8.0 has bfloat16 and asynchronous copies.
LEAST = (8, 0)


class CUDA:
    """Platform: the first GPU that this process sees (``CUDA_VISIBLE_DEVICES`` says which that is)."""

    name = "cuda"
    can_store_to_host = True
    graphs = True
    asynchronous = True
    attention = ("triton",)

    def __init__(self) -> None:
        if not torch.cuda.is_available():
            why = "this torch is built without CUDA" if torch.version.cuda is None else "no GPU with a driver is here"
            raise ConfigError(f"--device cuda: {why}; --device cpu would do")
        self.device = torch.device("cuda", 0)
        self._stream: torch.cuda.Stream | None = None
        self._pool: Any = None
        self._graphs: WeakSet[torch.cuda.CUDAGraph] = WeakSet()

    def describe(self) -> str:
        facts = torch.cuda.get_device_properties(self.device)
        return f"{facts.name}, {facts.total_memory / 2**30:.0f} GiB, compute capability {facts.major}.{facts.minor}"

    def start(self, threads: int | None) -> None:
        if threads is not None:
            torch.set_num_threads(threads)
        torch.cuda.set_device(self.device)
        self._stream = torch.cuda.Stream(self.device)
        self.enter()

    def enter(self) -> None:
        """Make the one stream this thread's own: a step may be launched by another thread than the last."""
        assert self._stream is not None, "a platform that was not started"
        torch.cuda.set_stream(self._stream)

    def settle(self) -> None:
        gc.collect()
        torch.cuda.synchronize(self.device)

    def supports(self, dtype: torch.dtype) -> str | None:
        major, minor = torch.cuda.get_device_capability(self.device)
        if (major, minor) < LEAST:
            return f"the GPU has compute capability {major}.{minor}, and octavo needs {LEAST[0]}.{LEAST[1]}"
        if dtype in (torch.float32, torch.bfloat16, torch.float16):
            return None
        return f"a GPU computes in bfloat16, float16 or float32, not in {str(dtype).removeprefix('torch.')}"

    def free_memory(self) -> int:
        return torch.cuda.mem_get_info(self.device)[0]

    def total_memory(self) -> int:
        return torch.cuda.mem_get_info(self.device)[1]

    def used_memory(self) -> int:
        return torch.cuda.memory_reserved(self.device)

    def reset_peak(self) -> None:
        """Also gives back what is cached, so that a peak is what steps need and not what loading left."""
        torch.cuda.synchronize(self.device)
        gc.collect()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)

    def peak_memory(self) -> int:
        """Reserved, not allocated: what lies between blocks cannot be used for anything else."""
        return torch.cuda.max_memory_reserved(self.device)

    def allocate(self, size: int) -> Tensor:
        return torch.zeros(size, dtype=torch.uint8, device=self.device)

    def pinned(self, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
        return torch.zeros(tuple(shape), dtype=dtype, device="cpu", pin_memory=True)

    def stream(self) -> torch.cuda.Stream:
        assert self._stream is not None, "a platform that was not started"
        return self._stream

    def event(self) -> torch.cuda.Event:
        return torch.cuda.Event()

    def capture(self, run: Callable[[], None]) -> Callable[[], None]:
        """Record what ``run`` launches, without doing it; the answer does it. All graphs share one pool of memory:
        what a graph leaves is good until another one runs."""
        if not self._graphs:  # a pool ends with the last of its graphs
            self._pool = torch.cuda.graph_pool_handle()
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")
        try:
            run()
        except BaseException:
            try:
                graph.capture_end()
            except RuntimeError:
                pass  # the capture is broken, as was to be expected: the first error tells why
            raise
        graph.capture_end()
        self._graphs.add(graph)
        return graph.replay

    def idle(self) -> bool:
        """Whether all launched work is done. Raises ``EngineDead`` where it ended in an error: the context is lost."""
        try:
            return self.stream().query()
        except RuntimeError as error:
            raise EngineDead(f"the GPU failed: {error}") from error
