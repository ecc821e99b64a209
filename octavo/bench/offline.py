"""`octavo bench throughput` and `latency`: the engine in this process, without HTTP.

Each built-in workload runs in a process of its own, so that its peak memory is its own and nothing is warm that a
user's first run would find cold.
"""

import multiprocessing
import os
import sys
import time
from collections.abc import Sequence
from typing import Any

from octavo.bench import report
from octavo.bench.workloads import Workload
from octavo.errors import EngineDead
from octavo.params import RequestOutputKind, SamplingParams, StructuredOutputsParams

#: Counters of the engine that tell where a run's seconds went.
COUNTS = ("steps", "busy_seconds", "plan_seconds", "launch_seconds")

#: What structured answers look like: records as they are drawn from texts, and more of them than any answer holds.
ENDLESS = {
    "type": "array",
    "minItems": 100_000,
    "items": {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 24},
            "count": {"type": "integer", "minimum": 0, "maximum": 999},
            "kind": {"enum": ["fruit", "vegetable", "other"]},
        },
        "required": ["name", "count", "kind"],
        "additionalProperties": False,
    },
}
#: What their prompts end with: behind random ids alone a model cuts even the names of properties at random.
TASK = '\nWhat a shop has, as JSON such as [{"name":"apple","count":12,"kind":"fruit"}]:\n'


def throughput(workloads: Sequence[Workload], engine: dict[str, Any], repeats: int, label: str) -> list[dict[str, Any]]:
    """Run each workload ``repeats`` times, all in one engine that is large enough for each: one start, one peak of
    memory. A record each, of the best run and the median.

    ``engine``: keyword arguments of ``LLM``. Raises what building the engine raises.
    """
    return _apart(_throughput, workloads, engine, repeats, label)


def latency(work: Workload, engine: dict[str, Any], warmups: int, repeats: int, label: str) -> dict[str, Any]:
    """Seconds that a whole batch takes, over ``repeats`` runs, as percentiles."""
    return _apart(_latency, work, engine, warmups, repeats, label)


def _apart(function: Any, *args: Any) -> Any:
    """``function(*args)`` in a fresh process, its answer back; its error is raised here."""
    context = multiprocessing.get_context("spawn")
    receive, send = context.Pipe(duplex=False)
    child = context.Process(target=_child, args=(send, sys.argv, function, args))
    child.start()
    send.close()
    try:
        kind, value = receive.recv()
    except EOFError:
        child.join()
        raise EngineDead(f"the benchmark's process ended with exit code {child.exitcode}") from None
    child.join()
    if kind == "error":
        raise value
    return value


def _child(send: Any, argv: list[str], function: Any, args: tuple) -> None:
    sys.argv = argv
    try:
        send.send(("record", function(*args)))
    except Exception as error:
        send.send(("error", error))


def build(works: Sequence[Workload], engine: dict[str, Any]) -> tuple[Any, float]:
    """An ``LLM`` for all of these, and the seconds that it took. ``engine``: its keyword arguments."""
    from octavo.llm import LLM

    begin = time.perf_counter()
    wanted = {
        "max_num_seqs": max(work.running for work in works),
        "max_model_len": max(*(work.longest + 16 for work in works), 64),
        "enable_prefix_caching": False,
        "skip_tokenizer_init": not any(work.structured for work in works),
    }
    llm = LLM(**(wanted | engine))
    return llm, time.perf_counter() - begin


def _constraint(structured: str) -> StructuredOutputsParams | None:
    if not structured:
        return None
    return StructuredOutputsParams(json=ENDLESS, disable_any_whitespace=structured == "compact")


def batch(work: Workload, llm: Any) -> tuple[list[dict[str, Any]], list[SamplingParams]]:
    """Prompts and parameters of a workload's requests."""
    pairs = work.make(llm.ready.vocab)
    if work.structured:
        task = list(llm.get_tokenizer().encode(TASK))
        pairs = [((ids + task)[len(task) :], out) for ids, out in pairs]
    params = [
        SamplingParams(
            temperature=work.temperature,
            max_tokens=out,
            ignore_eos=True,
            detokenize=False,
            structured_outputs=_constraint(work.structured),
            seed=index,
            output_kind=RequestOutputKind.FINAL_ONLY,
        )
        for index, (_, out) in enumerate(pairs)
    ]
    return [{"prompt_token_ids": ids} for ids, _ in pairs], params


def run(llm: Any, prompts: list, params: list[SamplingParams]) -> tuple[float, int, Any]:
    """Seconds, tokens made, and the engine's counts of the run."""
    before = llm.stats()
    begin = time.perf_counter()
    outputs = llm.generate(prompts, params, use_tqdm=False)
    seconds = time.perf_counter() - begin
    after = llm.stats()
    made = sum(len(one.outputs[0].token_ids) for one in outputs)
    assert made == sum(one.max_tokens or 0 for one in params), "an answer ended early"
    return seconds, made, {name: after[name] - before[name] for name in COUNTS}


def _throughput(works: Sequence[Workload], engine: dict[str, Any], repeats: int, label: str) -> list[dict[str, Any]]:
    llm, start = build(works, engine)
    records = [_measure(llm, start, work, repeats, label) for work in works]
    on_gpu = llm.config.device.platform == "cuda"
    step, token = _bytes(llm) if on_gpu else (0, 0)
    llm.close()
    if on_gpu:
        speed = _bandwidth()
        for work, record in zip(works, records, strict=True):
            record["read_tb_s"] = round(speed / 1e12, 3)
            if work.outputs[1] > 1:  # a decode step reads the weights once, and every context
                contexts = sum(out * (len(ids) + out / 2) for ids, out in work.make(llm.ready.vocab))
                floor = (record["steps"] * step + contexts * token) / speed
                record["percent_of_limit"] = round(100 * floor / record["seconds"], 1)
    return records


def _bytes(llm: Any) -> tuple[int, int]:
    """Bytes of weights that a decode step reads, and of keys and values that it reads for each token of a context."""
    import torch

    from octavo.device.weights.memory import weight_bytes

    facts, dtype = llm.config.model.facts, getattr(torch, llm.config.model.dtype)
    looked_up = 0 if facts.tied else facts.vocab * facts.hidden * dtype.itemsize
    token = 2 * facts.layers * facts.kv_heads * facts.head_dim * dtype.itemsize
    return weight_bytes(facts, dtype, 0) - looked_up, token


def _bandwidth() -> float:
    """Bytes a second that the GPU reads, of 2 GiB: the limit of what is bound by memory."""
    import torch

    data = torch.ones(1 << 29, dtype=torch.int32, device="cuda")
    best = float("inf")
    for _ in range(8):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        data.max()
        end.record()
        end.synchronize()
        best = min(best, begin.elapsed_time(end) / 1e3)
    return data.nbytes / best


def _measure(llm: Any, start: float, work: Workload, repeats: int, label: str) -> dict[str, Any]:
    prompts, params = batch(work, llm)
    # One short round first: thread pools, allocator and kernel choice belong to no run.
    run(llm, prompts[:1], [params[0].clone(max_tokens=2)])
    runs = [run(llm, prompts, params) for _ in range(repeats)]
    seconds, made, counts = min(runs, key=lambda run: run[0])
    middle = report.median([run[0] for run in runs])
    given = sum(len(one["prompt_token_ids"]) for one in prompts)
    steps = max(counts["steps"], 1)
    values = {
        "model": label,
        "impl": "octavo",
        "dtype": llm.config.model.dtype,
        "workload": work.name,
        "about": work.about,
        "seconds": round(seconds, 4),
        "out_tok_s": round(made / seconds, 1),
        "in_tok_s": round(given / seconds, 1),
        "out_tok_s_median": round(made / middle, 1),
        "in_tok_s_median": round(given / middle, 1),
        "all_seconds": [round(run[0], 4) for run in runs],
        "step_ms": round(counts["busy_seconds"] / steps * 1e3, 4),
        "plan_us_per_step": round(counts["plan_seconds"] / steps * 1e6, 1),
        "steps": counts["steps"],
        "peak_rss_mb": report.peak_rss_mb(),
        "start_s": round(start, 3),
        "load": round(os.getloadavg()[0], 2),
    }
    if llm.config.device.platform != "cpu":  # where launching is not the computing
        values["host_us_per_step"] = round((counts["plan_seconds"] + counts["launch_seconds"]) / steps * 1e6, 1)
    return report.record(**values)


def _latency(work: Workload, engine: dict[str, Any], warmups: int, repeats: int, label: str) -> dict[str, Any]:
    llm, _ = build([work], engine)
    prompts, params = batch(work, llm)
    for _ in range(warmups):
        run(llm, prompts, params)
    seconds = [run(llm, prompts, params)[0] for _ in range(repeats)]
    llm.close()
    return report.record(
        model=label,
        impl="octavo",
        workload=work.name,
        about=work.about,
        avg_latency=sum(seconds) / len(seconds),
        latencies=seconds,
        percentiles={str(q): report.percentile(seconds, q) for q in (10, 25, 50, 75, 90, 99)},
    )
