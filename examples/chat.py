"""A chat in this process: the model's own template turns messages into a prompt."""

from octavo import LLM, SamplingParams


def main() -> None:
    with LLM(max_model_len=1024) as llm:
        messages = [{"role": "user", "content": "What is the capital of France?"}]
        [output] = llm.chat(messages, SamplingParams(temperature=0, max_tokens=64))
        print(output.outputs[0].text)
        cached = output.num_cached_tokens
        print(f"{len(output.prompt_token_ids)} prompt tokens, {cached} of them from the prefix cache")


if __name__ == "__main__":
    main()
