"""AsyncLLM: stream two answers at once in an event loop, each token as it comes."""

import asyncio

from octavo import AsyncLLM, SamplingParams
from octavo.params import RequestOutputKind


async def tell(llm: AsyncLLM, name: str, prompt: str) -> None:
    params = SamplingParams(temperature=0, max_tokens=16, output_kind=RequestOutputKind.DELTA)
    async for output in llm.generate(prompt, params, request_id=name):
        print(f"{name}: {output.outputs[0].text!r}")


async def main() -> None:
    async with AsyncLLM(max_model_len=512) as llm:
        await asyncio.gather(tell(llm, "one", "The sun is"), tell(llm, "two", "The moon is"))


if __name__ == "__main__":
    asyncio.run(main())
