"""AsyncLLM, with the engine in a process of its own and in a thread here."""

import asyncio
import logging
import os
import signal
import time

import pytest

from octavo import AsyncLLM, SamplingParams
from octavo.config.args import EngineArgs
from octavo.config.engine import EngineConfig
from octavo.config.resolve import resolve
from octavo.errors import BadRequest, ConfigError, EngineDead, Unsupported
from octavo.params import RequestOutputKind
from octavo.testing.fakes import expected
from octavo.testing.served import ENDLESS, FAKE, PATIENCE, fake_model

VOCAB = 320
WAIT = PATIENCE


@pytest.fixture(params=[True, False], ids=["thread", "process"])
def inline(request):
    return request.param


def config(folder, **fake) -> EngineConfig:
    return resolve(EngineArgs.of({"model": str(fake_model(folder, length=ENDLESS, **fake))}), worker=FAKE)


def run(coroutine):
    asyncio.run(asyncio.wait_for(coroutine, WAIT))


def test_many_requests_an_early_end_and_an_abort(tmp_path, inline):
    async def main():
        async with AsyncLLM.from_config(config(tmp_path), inline=inline) as llm:

            async def one(i):
                params = SamplingParams(max_tokens=8, seed=i, output_kind=RequestOutputKind.DELTA, ignore_eos=True)
                return [token async for output in llm.generate([5, i], params) for token in output.outputs[0].token_ids]

            answers = await asyncio.gather(*(one(5 + i) for i in range(40)))
            assert answers == [expected([5, 5 + i], 5 + i, 10, VOCAB) for i in range(40)]

            params = SamplingParams(max_tokens=100_000, ignore_eos=True)
            async for _ in llm.generate("the", params):
                break

            async def aborted():
                return [output async for output in llm.generate("the", params, "mine")][-1]

            task = asyncio.create_task(aborted())
            while "mine" not in llm._streams:
                await asyncio.sleep(0)
            with pytest.raises(BadRequest, match="already"):
                async for _ in llm.generate("the", params, "mine"):
                    pass
            await llm.abort("mine")
            await llm.abort("nobody's")
            assert (await task).outputs[0].finish_reason == "abort"

            conversation = [{"role": "user", "content": "hi"}]
            outputs = [output async for output in llm.chat(conversation, SamplingParams(max_tokens=2, seed=1))]
            assert outputs[-1].prompt_token_ids == llm.engine.render_chat(conversation)
            assert await llm.reset_prefix_cache()
            until = time.monotonic() + WAIT
            while (stats := await llm.engine.call("stats"))["running"]:
                assert time.monotonic() < until
                await asyncio.sleep(0.005)
            assert stats["pages_free"] == stats["pages"]

    run(main())


def test_refusals(tmp_path, inline):
    async def main():
        with AsyncLLM.from_config(config(tmp_path), inline=inline) as llm:
            for prompt in ("", [VOCAB], "a\ud800"):
                with pytest.raises(BadRequest):
                    async for _ in llm.generate(prompt):
                        pass
            assert not llm.errored
        with pytest.raises(EngineDead, match="closed"):
            async for _ in llm.generate("a"):
                pass

    run(main())


def test_a_model_that_cannot_be_loaded(tmp_path, inline):
    with pytest.raises(ConfigError, match="no such luck"):
        AsyncLLM.from_config(config(tmp_path, boot_error="no such luck"), inline=inline)


def test_an_engine_that_is_killed(tmp_path):
    async def main():
        async with AsyncLLM.from_config(config(tmp_path, latency=0.005)) as llm:
            os.kill(llm.engine._core.pid, signal.SIGKILL)
            with pytest.raises(EngineDead, match="SIGKILL"):
                async for _ in llm.generate("the", SamplingParams(max_tokens=100_000, ignore_eos=True)):
                    pass
            assert llm.errored

    run(main())


def test_one_loop_after_another_but_not_two_at_once(tmp_path, inline):
    async def one(llm):
        return [output async for output in llm.generate([5], SamplingParams(max_tokens=2, seed=1))][-1].finished

    async def nested(llm):
        assert await one(llm)
        with pytest.raises(RuntimeError, match="another event loop"):
            await asyncio.to_thread(asyncio.run, one(llm))

    with AsyncLLM.from_config(config(tmp_path), inline=inline) as llm:
        assert asyncio.run(one(llm))
        run(nested(llm))


def test_the_engine_says_no_more_than_its_program(tmp_path, capfd, monkeypatch):
    monkeypatch.delenv("OCTAVO_LOG_LEVEL", raising=False)
    monkeypatch.setattr(logging.getLogger("octavo"), "level", logging.WARNING)
    AsyncLLM.from_config(config(tmp_path)).close()
    assert "octavo" not in capfd.readouterr().err
    monkeypatch.setenv("OCTAVO_LOG_LEVEL", "info")
    AsyncLLM.from_config(config(tmp_path / "other")).close()
    assert " I octavo." in capfd.readouterr().err


def test_a_call_written_for_vllm(tmp_path):
    async def main():
        async with AsyncLLM.from_config(config(tmp_path), inline=True) as llm:
            with pytest.raises(Unsupported, match="LoRA"):
                await anext(llm.generate([5], lora_request="an adapter"))
            assert [one async for one in llm.generate([5], lora_request=None)][-1].finished

    run(main())
