"""Complete a few prompts in this process, without a server."""

from octavo import LLM, SamplingParams

PROMPTS = ["The capital of France is", "def fibonacci(n):", "Water boils at"]


def main() -> None:
    with LLM(max_model_len=512) as llm:
        for output in llm.generate(PROMPTS, SamplingParams(temperature=0, max_tokens=24)):
            print(f"{output.prompt!r} -> {output.outputs[0].text!r}")


if __name__ == "__main__":
    main()
