"""The page ledger: conservation, order of eviction, hashes, windows, hybrid matches, layouts."""

import random
import subprocess
import sys
from dataclasses import replace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.config.engine import CacheSection, ScheduleSection
from octavo.core.kv.hashing import extend, model_root, request_root
from octavo.core.kv.manager import KVManager
from octavo.core.kv.planner import group_layers, plan_layout
from octavo.core.kv.policies import Full, Sliding
from octavo.core.kv.pool import BlockPool
from octavo.errors import ConfigError, OutOfMemory
from octavo.wire.arrays import pack_tokens
from octavo.wire.hello import Hello
from octavo.wire.kv import KVGroup, KVLayout, KVSpec
from octavo.wire.request import AdapterRef, MediaRef

PAGE = 4


def spec(window: int | None = None, heads: int = 1) -> KVSpec:
    return KVSpec(heads, 8, 8, 2, window)


def manager(windows, pages: int = 64, step: int = 8) -> KVManager:
    groups = tuple(KVGroup(spec(window), (f"layer.{index}",)) for index, window in enumerate(windows))
    return KVManager(KVLayout(PAGE, pages, 128, groups), "model", "float32", step)


def chain(tokens, root=b"root", media=()) -> list[bytes]:
    hashes: list[bytes] = []
    extend(hashes, root, pack_tokens(tokens), PAGE, media)
    return hashes


# The pool.


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(0, 9), st.integers(0, 9)), max_size=60))
def test_pool_conserves_pages(moves):
    pool = BlockPool(10, 2)
    tables: list[list[int]] = []
    for kind, a, b in moves:
        if kind == 0 and a <= pool.free:
            tables.append(pool.take(a))
        elif kind == 1 and tables:
            pool.drop(reversed(tables.pop(a % len(tables))))
        elif kind == 2 and tables:
            for page in tables[a % len(tables)]:
                pool.publish(page, b % 2, bytes([b]) + bytes([page % 3]))
        elif kind == 3 and (page := pool.find(b % 2, bytes([b, a % 3]))):
            pool.hold([page])
            tables.append([page])
        pool.check(tables)
        assert pool.free == 9 - len({page for table in tables for page in table})


def test_pages_without_content_go_first_then_the_least_recently_used_and_tails_before_heads():
    pool = BlockPool(10, 1)
    old, new, plain = pool.take(3), pool.take(3), pool.take(1)
    for index, page in enumerate(old + new):
        pool.publish(page, 0, bytes([index]))
    pool.drop(reversed(old))
    pool.drop(reversed(new))
    pool.drop(plain)
    assert pool.take(9) == [*plain, 8, 9, *reversed(old), *reversed(new)]
    assert pool.cached == 0


def test_a_hit_makes_a_page_recent():
    pool = BlockPool(4, 1)
    pages = pool.take(3)
    for page in pages:
        pool.publish(page, 0, bytes([page]))
    pool.drop(pages)
    pool.hold([pages[0]])
    pool.drop([pages[0]])
    assert pool.take(3) == [pages[1], pages[2], pages[0]]


def test_the_first_page_of_a_content_keeps_its_name():
    pool = BlockPool(4, 1)
    first, second = pool.take(2)
    pool.publish(first, 0, b"x")
    pool.publish(second, 0, b"x")
    assert pool.find(0, b"x") == first
    pool.drop([second, first])
    assert pool.take(3) == [second, 3, first]
    assert pool.find(0, b"x") == 0


def test_reset_forgets_content_and_keeps_owners():
    pool = BlockPool(4, 1)
    pages = pool.take(2)
    pool.publish(pages[0], 0, b"x")
    assert pool.reset() == 1
    assert pool.find(0, b"x") == 0
    pool.check([pages])


# Hashes.


def test_hash_chain_feels_everything_that_content_depends_on():
    tokens = list(range(12))
    base = chain(tokens, model_root("m", 0, "bf16", PAGE))
    assert len(base) == 3
    for other in (
        chain(tokens, model_root("n", 0, "bf16", PAGE)),
        chain(tokens, model_root("m", 1, "bf16", PAGE)),
        chain(tokens, model_root("m", 0, "fp8", PAGE)),
        chain(tokens, request_root(model_root("m", 0, "bf16", PAGE), None, b"salt")),
        chain(tokens, request_root(model_root("m", 0, "bf16", PAGE), AdapterRef("a", b"1"), b"")),
        chain([1, *tokens[1:]], model_root("m", 0, "bf16", PAGE)),
    ):
        assert not set(base) & set(other)
    changed = chain([*tokens[:5], 99, *tokens[6:]], model_root("m", 0, "bf16", PAGE))
    assert changed[0] == base[0]
    assert not set(base[1:]) & set(changed[1:])


def test_adapters_are_told_apart_by_content_not_by_name():
    root = model_root("m", 0, "bf16", PAGE)
    assert request_root(root, AdapterRef("a", b"1"), b"") == request_root(root, AdapterRef("b", b"1"), b"")
    assert request_root(root, AdapterRef("a", b"1"), b"") != request_root(root, AdapterRef("a", b"2"), b"")
    assert request_root(root, None, b"adapter1") != request_root(root, AdapterRef("a", b"1"), b"")


def test_media_enter_the_pages_that_they_overlap():
    tokens = [7] * 12
    base = chain(tokens)
    one = chain(tokens, media=[MediaRef(b"cat", 5, 7)])
    assert one[0] == base[0]
    assert one[1] != base[1]
    assert chain(tokens, media=[MediaRef(b"dog", 5, 7)])[1] != one[1]
    assert chain(tokens, media=[MediaRef(b"cat", 4, 6)])[1] != one[1]


def test_a_chain_grows_as_it_would_have_been_made_at_once():
    tokens = list(range(23))
    hashes: list[bytes] = []
    for end in (3, 9, 10, 23):
        extend(hashes, b"root", pack_tokens(tokens[:end]), PAGE)
    assert hashes == chain(tokens)


def test_hashes_are_the_same_in_every_process():
    code = "from octavo.core.kv.hashing import *; h = []; extend(h, model_root('m', 0, 'x', 4), bytes(32), 4); print(h)"
    seen = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(seen) == 1


# Matches.


@given(st.data())
def test_a_match_is_the_longest_that_every_group_can_continue(data):
    windows = data.draw(st.sampled_from([(None,), (None, 6), (5, None, 11), (3,), (9, 4)]))
    kv = manager(windows, pages=200)
    length = data.draw(st.integers(1, 12))
    hashes = chain(range(length * PAGE))
    present = [[data.draw(st.booleans()) for _ in range(length)] for _ in windows]
    for group, row in enumerate(present):
        for index, there in enumerate(row):
            if there:
                kv.pool.publish(kv.pool.take(1)[0], group, hashes[index])
    most = data.draw(st.integers(0, length))

    def serves(pages: int) -> bool:
        # The next token, at position pages * PAGE, must find what it looks at in every group.
        for window, row in zip(windows, present, strict=True):
            first = 0 if window is None else max(0, pages * PAGE - window + 1) // PAGE
            if not all(row[first:pages]):
                return False
        return True

    match = kv.match(hashes, most)
    assert match.pages == max(pages for pages in range(most + 1) if serves(pages))
    for group, table in enumerate(match.tables):
        assert len(table) == match.pages
        for index, page in enumerate(table):
            assert page == 0 or page == kv.pool.find(group, hashes[index])


def test_a_match_is_held_before_anything_is_taken():
    kv = manager((None, None), pages=4)
    hashes = chain(range(PAGE))
    pages = kv.pool.take(2)
    for group, page in enumerate(pages):
        kv.pool.publish(page, group, hashes[0])
    kv.pool.drop(pages)
    match = kv.match(hashes, 1)
    assert kv.idle_pages(match) == 2
    tables = kv.new_tables()
    kv.claim(tables, match)
    assert kv.pool.free == 1
    assert kv.pool.take(1)[0] not in pages


@given(st.integers(1, 20), st.integers(1, 60), st.integers(1, 16))
def test_a_window_never_holds_more_than_its_cap(window, length, step):
    kv = manager((window,), pages=200, step=step)
    tables, most = kv.new_tables(), 0
    done = 0
    while done < length:
        take = min(step, length - done)
        missing = kv.missing(tables, done + take)
        kv.grow(tables, missing)
        most = max(most, kv.held(tables))
        done += take
        kv.leave(tables, done)
        seen = range(max(0, done - window + 1), done)
        assert all(tables[0][position // PAGE] for position in seen), "a page inside the window was given back"
    assert most <= kv.need(length)
    kv.release(tables)
    assert kv.pool.free == 199


def test_policies_agree_on_an_empty_cache():
    for rule in (Full(PAGE), Sliding(PAGE, 5)):
        assert rule.longest([], 0) == 0
        assert rule.longest([0, 0], 2) == 0
        assert rule.first(0) == 0


def test_new_weights_make_old_pages_unfindable():
    kv = manager((None,))
    before = kv.root(None, b"")
    kv.new_weights()
    assert kv.root(None, b"") != before


def test_prompts_that_arrive_together_are_hashed_once():
    kv = manager((None,))
    tokens = pack_tokens(range(16))
    first, second, other = [], [], []
    assert kv.prompt_hashes(first, b"root", tokens, (), 99) == 16 // PAGE
    assert kv.prompt_hashes(second, b"root", tokens, (), 0) == 0
    assert first == second == chain(range(16))
    assert first is not second
    assert kv.prompt_hashes(other, b"other", tokens, (), 99) == 16 // PAGE
    assert other != first


@given(st.integers(0, 50), st.lists(st.integers(0, 5), min_size=1))
def test_a_chain_made_in_parts_is_the_chain(length, parts):
    kv = manager((None,))
    tokens, hashes = pack_tokens(range(length)), []
    for most in parts:
        before = len(hashes)
        assert kv.prompt_hashes(hashes, b"root", tokens, (), most) == len(hashes) - before <= most
    kv.prompt_hashes(hashes, b"root", tokens, (), length)
    assert hashes == chain(range(length))


# Layouts.

HELLO = Hello("cpu", "a CPU", "float32", 100, (("a", spec()),), (16, 8), 1 << 20, 1 << 20, 1 << 18)
SCHEDULE = ScheduleSection(max_num_seqs=4, max_num_batched_tokens=64)


def layers(full: int, sliding: int):
    return tuple((f"full.{i}", spec()) for i in range(full)) + tuple((f"near.{i}", spec(32)) for i in range(sliding))


@pytest.mark.parametrize(
    ("full", "sliding", "shape"),
    [(6, 0, [6]), (4, 22, [4, 4, 4, 4, 4, 3, 3]), (5, 6, [5, 6]), (1, 1, [1, 1]), (2, 10, [2, 2, 2, 2, 2, 2])],
)
def test_layers_are_grouped_so_that_slots_are_shared(full, sliding, shape):
    groups = group_layers(layers(full, sliding))
    assert [len(group.layers) for group in groups] == shape
    assert sorted(name for group in groups for name in group.layers) == sorted(n for n, _ in layers(full, sliding))


@given(st.integers(1, 6), st.integers(0, 12), st.integers(0, 1 << 16), st.integers(1, 4000), st.booleans())
def test_a_layout_fits_its_memory_and_its_longest_request(full, sliding, memory, positions, asked):
    hello = replace_hello(layers=layers(full, sliding), memory=memory)
    try:
        layout, length = plan_layout(hello, CacheSection(), SCHEDULE, positions, asked)
    except OutOfMemory as error:
        check_advice(hello, positions, str(error))
        return
    assert layout.total_bytes <= memory
    assert length == positions if asked else length <= positions
    kv = KVManager(layout, step=64)
    assert kv.need(length) <= layout.pages - 1


def check_advice(hello: Hello, positions: int, text: str) -> None:
    """What the message says would fit does fit."""
    assert "KV cache, needed" in text
    if "--max-model-len" in text:
        fits = int(text.split("--max-model-len ")[1].split(",")[0])
        assert plan_layout(hello, CacheSection(), SCHEDULE, fits, True)[1] == fits
    needed = int(text.split("--kv-cache-memory ")[1].split(" ")[0])
    assert plan_layout(hello, CacheSection(memory=needed), SCHEDULE, positions, True)[1] == positions


def replace_hello(**changes) -> Hello:
    return msgspec.structs.replace(HELLO, **changes)


def test_a_page_size_that_the_device_cannot_walk_is_refused():
    with pytest.raises(ConfigError, match=r"--block-size 5 .* possible: 16, 8"):
        plan_layout(HELLO, CacheSection(page=5), SCHEDULE, 64, True)
    assert plan_layout(HELLO, CacheSection(page=8), SCHEDULE, 64, True)[0].page == 8
    assert plan_layout(HELLO, CacheSection(), SCHEDULE, 64, True)[0].page == 16


def test_small_models_do_not_take_all_the_memory():
    layout, _ = plan_layout(replace_hello(memory=1 << 40), CacheSection(), SCHEDULE, 64, True)
    assert layout.pages == 1 + 2 * 4 * 4
    given_memory, _ = plan_layout(HELLO, replace(CacheSection(), memory=1 << 20), SCHEDULE, 64, True)
    assert given_memory.pages == (1 << 20) // given_memory.page_bytes


def test_random_tables_return_everything():
    kv = manager((None, 6), pages=100)
    rng = random.Random(0)
    owners = []
    for _ in range(200):
        if owners and rng.random() < 0.5:
            kv.release(owners.pop(rng.randrange(len(owners))))
        else:
            tables = kv.new_tables()
            count = rng.randrange(1, 6)
            if count * 2 <= kv.pool.free:
                kv.grow(tables, count)
                owners.append(tables)
        kv.pool.check(table for tables in owners for table in tables)


def test_on_a_device_with_memory_of_its_own_the_advice_is_its_share():
    """What is needed more than there is, as a share of all; where even all would not do, nothing is promised."""
    hello = replace_hello(memory=1 << 12, total=1 << 22, graphs=1 << 10, others=1 << 11, margin=1 << 9)
    with pytest.raises(OutOfMemory, match=r"graphs .* 1\.0 KiB") as found:
        plan_layout(hello, CacheSection(utilization=0.5), SCHEDULE, 4000, True)
    assert "--gpu-memory-utilization 0." in str(found.value)
    with pytest.raises(OutOfMemory, match=r"what would fit: --max-model-len \d+$"):
        plan_layout(replace_hello(memory=1 << 14, total=1 << 16), CacheSection(), SCHEDULE, 4000, True)
