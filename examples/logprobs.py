"""How sure is the model? The most likely tokens at each position, and a prompt's own score."""

import math

from octavo import LLM, SamplingParams


def main() -> None:
    with LLM(max_model_len=512) as llm:
        params = SamplingParams(temperature=0, max_tokens=5, logprobs=3, prompt_logprobs=0)
        [output] = llm.generate(["The capital of France is"], params)
        for position in output.outputs[0].logprobs:
            print("  ".join(f"{one.decoded_token!r} {math.exp(one.logprob):.1%}" for one in position.values()))
        score = sum(next(iter(one.values())).logprob for one in output.prompt_logprobs[1:])
        print(f"log-probability of the prompt: {score:.2f}")


if __name__ == "__main__":
    main()
