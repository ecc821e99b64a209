"""From what the layers need and the memory there is to a KVLayout, or to a sentence that says what would fit."""

from collections.abc import Sequence
from math import ceil

from octavo.common.math import cdiv
from octavo.common.words import size
from octavo.config.engine import CacheSection, ScheduleSection
from octavo.core.kv.policies import policy
from octavo.errors import ConfigError, OutOfMemory
from octavo.wire.hello import Hello
from octavo.wire.kv import KVGroup, KVLayout, KVSpec
from octavo.wire.plan import REPEAT

#: Without ``--kv-cache-memory``, pages beyond so many times what all rows together could hold are not allocated.
SPARE = 2


def group_layers(layers: Sequence[tuple[str, KVSpec]]) -> tuple[KVGroup, ...]:
    """Layers of one spec share page tables. Where there are several specs their groups are cut to about one length,
    since every group has as many memory slots as the longest: the least common number of layers, unless the counts
    differ by less than half (then the larger one, and a few slots of the shorter group stay empty)."""
    by_spec: dict[KVSpec, list[str]] = {}
    for name, spec in layers:
        by_spec.setdefault(spec, []).append(name)
    counts = [len(names) for names in by_spec.values()]
    slots = max(counts) if max(counts) < 1.5 * min(counts) else min(counts)
    groups = []
    for spec, names in by_spec.items():
        parts = cdiv(len(names), slots)
        groups += [KVGroup(spec, tuple(names[part::parts])) for part in range(parts)]
    return tuple(groups)


def step_tokens(schedule: ScheduleSection) -> int:
    """Tokens of one request that may be in flight: windowed groups hold so many beyond their window."""
    most = schedule.max_num_batched_tokens
    if schedule.long_prefill_token_threshold:
        most = min(most, schedule.long_prefill_token_threshold)
    if schedule.speculation is not None:
        most = max(most, 1 + schedule.speculation.tokens)
    return most * (schedule.depth - 1) + (max(most, REPEAT) if schedule.burst_ms else most)


def choose_page(cache: CacheSection, hello: Hello) -> int:
    """Tokens a page. Raises ``ConfigError`` where the device cannot walk what was asked."""
    if cache.page is None:
        return hello.page_sizes[0]
    if cache.page not in hello.page_sizes:
        known = ", ".join(map(str, hello.page_sizes))
        raise ConfigError(f"--block-size {cache.page} is not possible on {hello.device}; possible: {known}")
    return cache.page


def plan_layout(
    hello: Hello, cache: CacheSection, schedule: ScheduleSection, positions: int, asked: bool
) -> tuple[KVLayout, int]:
    """The layout and the length that fits it.

    ``positions``: the longest request wanted. ``asked``: the user said so; then it must fit, else it is cut to what
    does. Raises ``OutOfMemory`` with the table and the flag values that would fit.
    """
    page = choose_page(cache, hello)
    groups = group_layers(hello.layers)
    page_bytes = page * max(group.spec.token_bytes for group in groups)
    slots = max(len(group.layers) for group in groups)
    rules = [policy(group.spec, page) for group in groups]
    step = step_tokens(schedule)

    def need(length: int) -> int:
        return sum(rule.most(length, step) for rule in rules)

    bytes_each = slots * page_bytes
    memory = hello.memory if cache.memory is None else cache.memory
    pages = max(memory, 0) // bytes_each
    fits = _longest(need, pages - 1, positions)
    if fits < positions and (asked or fits < min(page, positions)):
        raise OutOfMemory(_table(hello, cache, memory, positions, (need(positions) + 1) * bytes_each, fits))
    length = min(fits, positions)
    if cache.memory is None:
        pages = min(pages, 1 + SPARE * schedule.max_num_seqs * need(length))
    return KVLayout(page, pages, page_bytes, groups), length


def _longest(need, pages: int, most: int) -> int:
    """The largest length <= ``most`` that ``pages`` pages hold; ``need`` does not fall with the length."""
    low, high = 0, most
    while low < high:
        middle = (low + high + 1) // 2
        if need(middle) <= pages:
            low = middle
        else:
            high = middle - 1
    return low


def _table(hello: Hello, cache: CacheSection, memory: int, positions: int, wanted: int, fits: int) -> str:
    lines = [
        f"the KV cache of one request of {positions} tokens does not fit on {hello.device}:",
        f"  {'weights':<24} {size(hello.weights):>12}",
        f"  {'activations':<24} {size(hello.activations):>12}",
        *(
            f"  {name:<24} {size(amount):>12}"
            for name, amount in (("graphs", hello.graphs), ("margin", hello.margin), ("other processes", hello.others))
            if amount
        ),
        f"  {'KV cache, needed':<24} {size(wanted):>12}",
        f"  {'KV cache, there is':<24} {size(max(memory, 0)):>12}",
    ]
    ways = [f"--kv-cache-memory {wanted} (bytes), if the machine has it"]
    if hello.total and cache.memory is None:
        share = ceil((cache.utilization + (wanted - memory) / hello.total) * 100) / 100
        ways = [f"--gpu-memory-utilization {share:.2f}"] if share <= 1 else []
    if fits:
        ways.insert(0, f"--max-model-len {fits}")
    if not ways:
        return "\n".join([*lines, "nothing would fit: this model needs a larger device, or several"])
    return "\n".join([*lines, "what would fit: " + ", or ".join(ways)])
