"""Worker: a rank as the core sees it (a WorkerPort in this process)."""

import gc
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from octavo.common.log import logger
from octavo.common.words import nearest, size
from octavo.config.engine import EngineConfig
from octavo.device.attention.base import AttentionBackend, AttentionNeed
from octavo.device.attention.select import select
from octavo.device.layers.step import Bound
from octavo.device.models.base import CausalLM
from octavo.device.runner.later import AsyncRunner, make_runner
from octavo.device.runner.runner import ModelRunner
from octavo.device.weights.loader import load
from octavo.device.worker.ahead import Ahead, ahead_of, first_sizes, other_sizes
from octavo.device.worker.budget import measure
from octavo.device.worker.fit import common_pages, fit
from octavo.device.worker.memory import activation_bytes, gpu_rule, kv_bytes, weight_bytes
from octavo.device.worker.profile import Profiler
from octavo.device.worker.rest import Away
from octavo.errors import BadRequest, ConfigError, OutOfMemory
from octavo.wire.hello import Hello, Limits
from octavo.wire.kv import KVLayout
from octavo.wire.plan import REPEAT, GrammarMasks, StepPlan
from octavo.wire.ports import Ticket

_log = logger(__name__)

#: Seconds between two looks at whether kernels that are compiled ahead are there.
SOON = 0.2


class Worker:
    """Loads the model when it is made; ``build`` makes the rest. Raises ``ConfigError`` for what cannot work here."""

    def __init__(self, config: EngineConfig):
        begun = time.monotonic()
        self._config = config
        self._platform, self._dtype = fit(config)
        self._platform.start(config.device.threads)
        started = time.monotonic()
        self._ahead: Ahead | None = ahead_of(config, self._platform, self._dtype)
        # two at least: a trial step draws a token behind its prompt
        self._positions = max(2, config.schedule.max_model_len or config.model.facts.max_positions)
        try:
            self._model = self._load()
            self._platform.settle()
            self._phases = {"platform": started - begun, "load": time.monotonic() - started}
            if self._ahead is not None:
                self._phases["compile"] = self._ahead.ready()
            self._choose_backends()
        except BaseException:  # nobody has this worker, to close it
            self._stop_compiling()
            raise
        self._runner: ModelRunner | None = None
        self._steps = self._tokens = 0
        self._profiler = Profiler()
        self._away: Away | None = None
        self._commands: dict[str, Callable[..., Any]] = {
            "stats": self._stats,
            "memory": self._memory,
            "profile": self._profiler.call,
            "sleep": self._sleep,
            "wake": self._wake,
        }

    def hello(self) -> Hello:
        """Needs, sizes and limits. Runs a trial step to see what activations take."""
        begun = time.monotonic()
        self._platform.enter()
        weights = weight_bytes(self._model)
        cache, schedule = self._config.cache, self._config.schedule
        if self._platform.asynchronous:
            graphs = self._platform.graphs and not self._config.device.enforce_eager
            budget = measure(
                self._model, self._platform, self._backends, cache, schedule, self._dtype, graphs, self._positions
            )
            activations, memory = budget.activations, budget.kv
            why = "as asked" if cache.memory is not None else gpu_rule(cache.utilization)
            more: dict[str, Any] = {
                "total": budget.total,
                "others": max(budget.held - weights, 0),
                "graphs": budget.graphs,
                "margin": budget.margin,
            }
        else:
            activations = activation_bytes(
                self._model, self._platform, self._backends, schedule, self._dtype, self._positions
            )
            memory, why = kv_bytes(self._platform, cache, activations)
            more = {}
        self._phases["trial"] = time.monotonic() - begun
        item = self._dtype.itemsize
        layers = tuple((layer.name, layer.spec(item)) for layer in self._model.attentions if layer.shares is None)
        _log.info("%s: weights %s, activations %s, KV cache %s", why, size(weights), size(activations), size(memory))
        return Hello(
            platform=self._platform.name,
            device=self._platform.describe(),
            dtype=self._config.model.dtype,
            vocab=self._model.facts.vocab,
            layers=layers,
            page_sizes=common_pages(self._backends, layers),
            memory=memory,
            weights=weights,
            activations=activations,
            limits=Limits(drafts=(AsyncRunner if self._platform.asynchronous else ModelRunner).drafts),
            backends=self._reasons,
            phases=dict(self._phases),
            **more,
        )

    def build(self, layout: KVLayout, max_model_len: int) -> None:
        """Allocate the cache, bind every layer to its part of it, and make the rows."""
        self._built = layout, max_model_len
        self._platform.enter()
        bound: dict[str, Bound] = {}
        try:
            raw = [self._platform.allocate(layout.pages * layout.page_bytes) for _ in range(layout.slots)]
        except torch.OutOfMemoryError as error:
            raise OutOfMemory(
                f"the KV cache of {size(layout.total_bytes)} does not fit on {self._platform.describe()}, though it"
                f" should have: somebody else took memory since the start; --kv-cache-memory"
                f" {max(self._platform.free_memory() - (1 << 30), 0)} would fit now"
            ) from error
        for number, group in enumerate(layout.groups):
            for slot, name in enumerate(group.layers):
                backend = self._backends[name]
                cache = backend.view(group.spec, raw[slot], layout.pages, layout.page, self._dtype)
                bound[name] = Bound(backend, cache, number)
        for layer in self._model.attentions:
            if layer.shares is not None:
                bound[layer.name] = bound[layer.shares]
        self._runner = make_runner(
            self._model,
            self._model.facts.vocab,
            layout.groups,
            bound,
            rows=self._config.schedule.rows,
            max_model_len=max_model_len,
            page=layout.page,
            device=self._platform.device,
            logprobs_mode=self._config.device.logprobs_mode,
            fixed=self._config.device.deterministic,
            platform=self._platform,
            lead=self._config.schedule.depth + (REPEAT if self._config.schedule.burst_ms else 1),
            eager=self._config.device.enforce_eager,
        )
        most = self._config.schedule.max_num_seqs
        self._cold: list[int] = []
        if isinstance(self._runner, AsyncRunner):
            self._runner.warm(first_sizes(most))
            self._cold = other_sizes(most)

    def forward(self, plan: StepPlan) -> None:
        assert self._runner is not None, "forward before build"
        self._steps += 1
        self._tokens += plan.tokens * plan.repeat
        self._runner.forward(plan)

    def sample(self, masks: GrammarMasks | None) -> list[Ticket]:
        assert self._runner is not None, "sample before build"
        return self._runner.sample(masks)

    def idle(self) -> float | None:
        """Graphs of one more size of decode step, the sizes that are most often met first."""
        if self._ahead is not None:
            if not self._ahead.poll():
                return SOON
            self._ahead = None
        if not self._cold or not isinstance(self._runner, AsyncRunner):
            return None
        size = self._cold.pop(0)
        try:
            self._runner.warm([size])
        except Exception as error:  # want of memory, say: what cannot be made ready early is no reason to end
            self._cold.clear()
            _log.warning("decode steps of %d rows and others were not made ready while nothing ran: %s", size, error)
        return 0.0

    def call(self, command: str, *args: Any) -> Any:
        """``stats``: counts so far. ``memory``: bytes held now. ``profile``, ``sleep``, ``wake``: see there. Raises
        ``ValueError`` for another name."""
        found = self._commands.get(command)
        if found is None:
            hint = nearest(command, self._commands)
            raise ValueError(f"the worker knows no command {command!r}{hint}; known: {', '.join(self._commands)}")
        return found(*args)

    def close(self) -> None:
        self._stop_compiling()
        self._runner = None
        self._commands = {}

    def _stop_compiling(self) -> None:
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _load(self) -> CausalLM:
        config = self._config
        with torch.inference_mode():
            return load(config.model, self._platform.device, self._dtype, self._positions, config.device.deterministic)

    def _choose_backends(self) -> None:
        """A backend for every layer: one instance of each kind, since instances hold buffers that all layers use."""
        wanted = self._config.device.attention_backend
        self._backends: dict[str, AttentionBackend] = {}
        chosen: dict[AttentionNeed, tuple[AttentionBackend, str]] = {}
        made: dict[str, AttentionBackend] = {}
        for layer in self._model.attentions:
            need = AttentionNeed.of(layer, self._dtype, self._dtype)
            if need not in chosen:
                chosen[need] = select(need, self._platform.attention, wanted, made)
            self._backends[layer.name] = chosen[need][0]
        if self._config.device.deterministic:
            for name, backend in made.items():
                if not hasattr(backend, "fixed"):
                    raise ConfigError(f"--deterministic: the attention backend {name!r} cannot be")
                backend.fixed = True
        self._reasons = {"attention": ", ".join(dict.fromkeys(reason for _, reason in chosen.values()))}

    def _sleep(self, level: int) -> dict[str, int]:
        """Give memory back, with no row in use: the cache, and the weights' on the device. Level 1 keeps the weights in
        host memory, level 2 nowhere: they are loaded again. Gives the bytes held before and after."""
        before = self._platform.used_memory()
        self._runner = None
        if level == 1:
            self._away = self._away or Away(self._model)
        else:
            self._away = None
            self._backends = {}
            del self._model
        self._frozen = gc.get_freeze_count() > 0
        gc.unfreeze()
        self._platform.reset_peak()
        gc.collect()
        return {"before": before, "after": self._platform.used_memory()}

    def _wake(self, tags: Sequence[str]) -> bool:
        """What is named comes back: "weights", "kv_cache". Whether all is there. Raises ``BadRequest`` where the cache
        is asked for before the weights."""
        self._platform.enter()
        if "weights" in tags:
            if not hasattr(self, "_model"):
                self._model = self._load()
                self._choose_backends()
            if self._away is not None:
                self._away.back()
                self._away = None
        if "kv_cache" in tags and self._runner is None:
            if not hasattr(self, "_model") or self._away is not None:
                raise BadRequest("the weights wake first", "tags")
            self.build(*self._built)
            if self._frozen:
                gc.collect()
                gc.freeze()
        return self._runner is not None

    def _stats(self) -> dict[str, int]:
        return {"steps": self._steps, "tokens": self._tokens}

    def _memory(self) -> dict[str, int]:
        return {"used": self._platform.used_memory(), "free": self._platform.free_memory()}
