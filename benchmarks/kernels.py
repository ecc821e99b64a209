"""Times of single kernels on a GPU, in graphs of many launches over memory that does not fit the cache: a JSON line
each, with the bandwidth or the rate they reach.

    python3 benchmarks/kernels.py [attention,linear,sample] > kernels.jsonl
"""

# ruff: noqa: B023 (what is timed is called in the same turn of its loop)
import json
import sys
from collections.abc import Callable

import torch

from octavo.common.math import cdiv
from octavo.device.attention.base import LayerAttention
from octavo.device.attention.triton import TritonAttention, TritonMeta
from octavo.device.kernels import draw, joined, truncate

GPU, BF16 = torch.device("cuda"), torch.bfloat16


def time_us(run: Callable[[int], object], each: int, rounds: int = 5) -> float:
    """Microseconds of one of ``each`` calls captured together, the best of ``rounds``."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        run(0)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for nth in range(each):
                run(nth)
        best = 1e9
        for _ in range(rounds + 1):
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record(stream)
            graph.replay()
            end.record(stream)
            end.synchronize()
            best = min(best, begin.elapsed_time(end) * 1e3 / each)
    return best


def tell(what: str, us: float, *, size: float = 0, flops: float = 0, **more: object) -> None:
    line = {"kernel": what, **more, "us": round(us, 2)}
    if size:
        line["tb_s"] = round(size / us / 1e6, 3)
    if flops:
        line["tflop_s"] = round(flops / us / 1e6, 1)
    print(json.dumps(line), flush=True)


@torch.inference_mode()
def attention() -> None:
    for rows, context, take in (
        (1, 256, 1), (1, 4096, 1), (1, 32768, 1), (8, 256, 1), (8, 4096, 1), (32, 256, 1), (64, 256, 1), (64, 1024, 1),
        (256, 256, 1), (256, 1024, 1), (8, 1024, 1024), (1, 8192, 8192), (4, 8192, 512),
    ):  # fmt: skip
        heads, kv, dim, page = 16, 8, 128, 64
        table = torch.from_numpy(_pages(rows, cdiv(context, page))).to(GPU)
        pages = int(table.max()) + 1
        token_bytes = 2 * kv * dim * 2
        layers = 1 if take > 1 else max(1, min(28, (12 << 30) // (pages * page * token_bytes)))
        layer = LayerAttention(
            name="a", q_heads=heads, kv_heads=kv, head_dim=dim, v_dim=dim, scale=dim**-0.5,
            q_norm=torch.ones(dim, device=GPU, dtype=BF16), k_norm=torch.ones(dim, device=GPU, dtype=BF16),
            rope=(torch.ones(context + 1, dim // 2, device=GPU), torch.zeros(context + 1, dim // 2, device=GPU)),
        )  # fmt: skip
        backend, spec = TritonAttention(), layer.spec(2)
        raws = [torch.zeros(pages * page * spec.token_bytes, dtype=torch.uint8, device=GPU) for _ in range(layers)]
        caches = [backend.view(spec, raw, pages, page, BF16) for raw in raws]
        starts = torch.arange(rows + 1, device=GPU) * take
        positions = (context - take + torch.arange(take, device=GPU)).repeat(rows)
        index = torch.arange(rows, device=GPU).repeat_interleave(take)
        slots = table[index, positions // page].long() * page + positions % page
        lens = torch.full((rows,), context, device=GPU)
        meta = TritonMeta(rows, take == 1, take > 1, positions, starts, lens, slots, table)
        qkv = torch.randn(rows * take, (heads + 2 * kv) * dim, device=GPU, dtype=BF16)
        us = time_us(lambda nth: backend.attend(layer, qkv, caches[nth % layers], meta), max(layers, 4))
        size = rows * context * token_bytes if take == 1 else 0
        pairs = rows * (take * (context - take) + take * (take + 1) / 2)
        flops = 4 * heads * dim * pairs if take > 1 else 0
        tell("attend", us, size=size, flops=flops, rows=rows, context=context, take=take)


def _pages(rows: int, each: int):
    import numpy as np

    return np.random.default_rng(0).permutation(np.arange(1, rows * each + 1)).reshape(rows, each).astype(np.int32)


@torch.inference_mode()
def linear() -> None:
    shapes = {
        "qkv": (4096, 1024), "o": (1024, 2048), "up": (6144, 1024), "down": (1024, 3072),
        "qkv 8b": (6144, 4096), "o 8b": (4096, 4096), "up 8b": (24576, 4096), "down 8b": (4096, 12288),
    }  # fmt: skip
    for name, (out, inner) in shapes.items():
        copies = max(2, (256 << 20) // (out * inner * 2))
        weights = [torch.randn(out, inner, device=GPU, dtype=BF16) for _ in range(copies)]
        for rows in (1, 8, 16, 32, 64):
            x = joined.with_squares(torch.randn(rows, inner, device=GPU, dtype=BF16), torch.ones(rows, 32, device=GPU))
            add = torch.randn(rows, out, device=GPU, dtype=BF16)
            given: dict = {"add": add} if name[:2] in ("o", "o ", "do") else {"eps": 1e-6}
            if name.startswith("up"):
                given["act"] = "silu"
            us = time_us(lambda nth, given=given, x=x: joined.joined(x, weights[nth % copies], **given), 2 * copies)
            plain = time_us(lambda nth, x=x: torch.mm(x, weights[nth % copies].t()), 2 * copies)
            tell("linear", us, size=out * inner * 2, shape=name, rows=rows, cublas_us=round(plain, 2))


@torch.inference_mode()
def sample() -> None:
    vocab = 151936
    for rows in (1, 8, 64, 256):
        logits = torch.randn(rows, vocab, device=GPU) * 3
        key = draw.keys(torch.arange(rows, device=GPU), torch.arange(rows, device=GPU))
        heat = torch.full((rows,), 0.6, device=GPU)
        size = rows * vocab * 4
        tell("pick", time_us(lambda _: draw.pick(logits), 10), size=size, rows=rows)
        tell("draw", time_us(lambda _: draw.draw_rows(logits, key, heat), 10), size=size, rows=rows)
        for k, p in ((20, 0.95), (0, 0.95), (50, 1.0)):
            ks = torch.full((rows,), k, dtype=torch.int32, device=GPU)
            ps = torch.full((rows,), p, device=GPU)
            fresh = logits.clone()

            def cut(_: int, fresh=fresh, ks=ks, ps=ps) -> None:
                fresh.copy_(logits)
                truncate.top_k_p(fresh, ks, ps)

            copy = time_us(lambda _, fresh=fresh: fresh.copy_(logits), 10)
            tell("top_k_p", time_us(cut, 4) - copy, rows=rows, k=k, p=p)


if __name__ == "__main__":
    for name in (sys.argv[1] if len(sys.argv) > 1 else "attention,linear,sample").split(","):
        {"attention": attention, "linear": linear, "sample": sample}[name]()
