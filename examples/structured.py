"""An answer that obeys a JSON schema."""

import json

from octavo import LLM, SamplingParams, StructuredOutputsParams

SCHEMA = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 40},
        "country": {"type": "string", "maxLength": 40},
        "capital": {"type": "boolean"},
    },
    "required": ["city", "country", "capital"],
    "additionalProperties": False,
}


def main() -> None:
    params = SamplingParams(temperature=0, max_tokens=100, structured_outputs=StructuredOutputsParams(json=SCHEMA))
    with LLM(max_model_len=512) as llm:
        [output] = llm.chat([{"role": "user", "content": "Describe Paris as JSON."}], params)
        print(json.loads(output.outputs[0].text))


if __name__ == "__main__":
    main()
