"""Real chat templates write what they write under Transformers; where one refuses, the error is the caller's.

``OCTAVO_TEMPLATES`` names a folder of ``*.jinja`` files, or the sdist of llama-cpp-python that ships some 70 of them
(``scripts/templates`` brings it); without it there is nothing to test.
"""

import json
import os
import tarfile
from pathlib import Path

import pytest

from octavo.errors import BadRequest
from octavo.front.chat.template import ChatTemplate
from octavo.front.parsers.base import Tool, choose
from octavo.front.parsers.events import Kind
from octavo.front.tokenizers.base import Specials, Tokenizer
from octavo.testing.tokenizer import byte_level_tokenizer

SPECIALS = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>", "unk_token": "<unk>"}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather of a city.",
            "parameters": {
                "type": "object",
                "properties": {"city": {"type": "string", "description": "Where."}, "days": {"type": "integer"}},
                "required": ["city"],
            },
        },
    }
]
CALL = {
    "id": "abcdef123",
    "type": "function",
    "function": {"name": "get_weather", "arguments": {"city": "Paris", "days": 3}},
}
TALK = [
    {"role": "user", "content": "Hello."},
    {"role": "assistant", "content": "Hi!"},
    {"role": "user", "content": "Well?"},
]
USED = [
    {"role": "user", "content": "Is it warm in Paris?"},
    {"role": "assistant", "content": "", "tool_calls": [CALL]},
    {"role": "tool", "tool_call_id": "abcdef123", "name": "get_weather", "content": "20 degrees"},
]
CASES = {
    "talk": (TALK, {}),
    "system": ([{"role": "system", "content": "Be brief."}, *TALK], {}),
    "tools": (TALK, {"tools": TOOLS}),
    "used": (USED, {"tools": TOOLS}),
    "answered": ([*USED, {"role": "assistant", "content": "Yes."}, TALK[0]], {"tools": TOOLS}),
}


def _templates() -> dict[str, str]:
    place = os.environ.get("OCTAVO_TEMPLATES")
    if not place:
        return {}
    path = Path(place)
    if path.is_dir():
        return {file.stem: file.read_text() for file in sorted(path.glob("*.jinja"))}
    found = {}
    with tarfile.open(path) as archive:
        for member in archive:
            if member.name.endswith(".jinja") and "/models/templates/" in member.name:
                file = archive.extractfile(member)
                assert file is not None
                found[Path(member.name).stem] = file.read().decode()
    return dict(sorted(found.items()))


TEMPLATES = _templates()
if not TEMPLATES:
    pytest.skip("OCTAVO_TEMPLATES names no templates", allow_module_level=True)


def reference(source, messages, tools=None):
    """What Transformers writes; None where it raises."""
    from transformers.utils.chat_template_utils import render_jinja_template

    try:
        found, _ = render_jinja_template(
            [messages], tools=tools, chat_template=source, add_generation_prompt=True, **SPECIALS
        )
    except Exception:
        return None
    return found[0]


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("case", CASES)
def test_as_transformers_writes_it(name, case):
    messages, options = CASES[case]
    source = TEMPLATES[name]
    sent = json.loads(json.dumps(messages))
    for message in sent:
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = json.dumps(call["function"]["arguments"])
    wanted = reference(source, messages, options.get("tools"))
    template = ChatTemplate({"default": source}, SPECIALS)
    if wanted is not None:
        text = template.render(sent, **options)
        assert text == wanted or "strftime_now" in source
        return
    try:  # what Transformers cannot write, we may
        template.render(sent, **options)
    except BadRequest:
        pass


@pytest.mark.parametrize("name", TEMPLATES)
def test_a_last_message_is_continued(name):
    messages = [TALK[0], {"role": "assistant", "content": "The answer is "}]
    template = ChatTemplate({"default": TEMPLATES[name]}, SPECIALS)
    try:
        text = template.render(messages, add_generation_prompt=False, continue_final_message=True)
    except BadRequest:
        return
    assert text.endswith("The answer is ")


#: Template -> the format that reads its model's calls, and the marker that begins reasoning ("": it has none).
FORMATS = {
    "Apertus-8B-Instruct": ("apertus", "<|inner_prefix|>"),
    "Apriel-1.6-15b-Thinker-fixed": ("jamba", ""),
    "Bielik-11B-v3.0-Instruct": ("hermes", "<think>"),
    "ByteDance-Seed-OSS": ("seed_oss", "<seed:think>"),
    "Cohere2MoE": ("cohere_command", "<|START_THINKING|>"),
    "CohereForAI-c4ai-command-r7b-12-2024-tool_use": ("cohere_command", "<|START_THINKING|>"),
    "GLM-4.6": ("glm", "<think>"),
    "GLM-4.7-Flash": ("glm", "<think>"),
    "GigaChat3-10B-A1.8B": ("gigachat3", ""),
    "GigaChat3.1-10B-A1.8B": ("gigachat3", ""),
    "Kimi-K2-Instruct": ("kimi_k2", ""),
    "Kimi-K2-Thinking": ("kimi_k2", "<think>"),
    "LFM2.5-8B-A1B": ("lfm2", "<think>"),
    "MiMo-VL": ("hermes", ""),
    "MiniMax-M1": ("jamba", ""),
    "MiniMax-M2": ("minimax_m2", "<think>"),
    "MiniMax-M3": ("minimax_m3", "<mm:think>"),
    "Mistral-Small-3.2-24B-Instruct-2506": ("mistral", ""),
    "NVIDIA-Nemotron-3-Nano-30B-A3B-BF16": ("nemotron_v3", "<think>"),
    "NVIDIA-Nemotron-Nano-v2": ("nemotron_json", "<think>"),
    "NousResearch-Hermes-3-Llama-3.1-8B-tool_use": ("hermes", ""),
    "Qwen-QwQ-32B": ("hermes", "<think>"),
    "Qwen-Qwen2.5-7B-Instruct": ("hermes", ""),
    "Qwen-Qwen3-0.6B": ("hermes", "<think>"),
    "Qwen3-Coder": ("qwen3_coder", ""),
    "Qwen3.5-4B": ("qwen3_coder", "<think>"),
    "Spark2.5": ("glm", "<think>"),
    "StepFun3.5-Flash": ("qwen3_coder", "<think>"),
    "deepseek-ai-DeepSeek-R1-Distill-Llama-8B": ("deepseek_v3", "<think>"),
    "deepseek-ai-DeepSeek-R1-Distill-Qwen-32B": ("deepseek_v3", "<think>"),
    "deepseek-ai-DeepSeek-V3.1": ("deepseek_v31", "<think>"),
    "deepseek-ai-DeepSeek-V3.2": ("deepseek_v32", "<think>"),
    "deepseek-ai-DeepSeek-V4": ("deepseek_v4", "<think>"),
    "deepseek-ai-DeepSeek-V4-Flash-0731": ("deepseek_v4", "<think>"),
    "fireworks-ai-llama-3-firefunction-v2": ("phi4_mini_json", ""),
    "google-gemma-4-31B-it": ("gemma4", "<|channel>"),
    "google-gemma-4-31B-it-interleaved": ("gemma4", "<|channel>"),
    "ibm-granite-granite-3.3-2B-Instruct": ("granite", "<think>"),
    "ibm-granite-granite-4.0": ("hermes", ""),
    "ibm-granite-granite-4.1": ("hermes", ""),
    "inclusionai-ling-3.0-flash": ("glm", "<think>"),
    "llama-cpp-deepseek-r1": ("deepseek_v3", "<think>"),
    "meta-llama-Llama-3.1-8B-Instruct": ("llama3_json", ""),
    "meta-llama-Llama-3.2-3B-Instruct": ("llama3_json", ""),
    "meta-llama-Llama-3.3-70B-Instruct": ("llama3_json", ""),
    "mistralai-Ministral-3-14B-Reasoning-2512": ("mistral", "[THINK]"),
    "mistralai-Mistral-Nemo-Instruct-2407": ("mistral", ""),
    "moonshotai-Kimi-K2": ("kimi_k2", ""),
    "openai-gpt-oss-120b": ("openai", "<|channel|>analysis<|message|>"),
    "openbmb-MiniCPM5-1B": ("minicpm5", "<think>"),
    "poolside-Laguna-S-2.1": ("poolside_v1", "<think>"),
    "poolside-Laguna-XS-2.1": ("poolside_v1", "<think>"),
    "poolside-Laguna-XS.2": ("poolside_v1", "<think>"),
    "tencent-Hy3": ("hy_v3", "<think>"),
    "unsloth-Apriel-1.5": ("jamba", ""),
    "unsloth-mistral-Devstral-Small-2507": ("mistral", ""),
}


@pytest.mark.parametrize("name", FORMATS)
def test_the_format_is_chosen_by_the_template(name):
    if name not in TEMPLATES:
        pytest.skip("not among these templates")
    form = choose(Tokenizer(byte_level_tokenizer(), Specials()), TEMPLATES[name])
    assert form is not None
    assert (form.name, form.spec.think.start if form.spec.think else "") == FORMATS[name]
    assert form.has_calls


@pytest.mark.parametrize("name", FORMATS)
def test_the_parser_reads_calls_as_the_template_writes_them(name):
    """What a template makes of calls is what its model has learned to write."""
    if name not in TEMPLATES:
        pytest.skip("not among these templates")
    form = choose(Tokenizer(byte_level_tokenizer(), Specials()), TEMPLATES[name])
    assert form is not None
    template = ChatTemplate({"default": TEMPLATES[name]}, SPECIALS)
    arguments = CALL["function"]["arguments"]
    sent = json.loads(json.dumps(USED[:2]))
    sent[1]["tool_calls"][0]["function"]["arguments"] = json.dumps(arguments)
    try:
        before = template.render(sent[:1], tools=TOOLS, add_generation_prompt=False)
        whole = template.render(sent, tools=TOOLS, add_generation_prompt=False)
    except BadRequest:
        pytest.skip("wants another conversation")
    size = next((i for i, (one, other) in enumerate(zip(before, whole, strict=False)) if one != other), len(before))
    written = whole[size:].removeprefix("<|start|>assistant")
    if "get_weather" not in written or ":opensource" in written:
        pytest.skip("writes no calls, or tells its markers by the vocabulary alone")
    if form.spec.think is not None and not form.spec.fused:
        written = written.partition(form.spec.think.end)[2] or written
    tools = [Tool("get_weather", TOOLS[0]["function"]["parameters"])]
    off = dict.fromkeys(("enable_thinking", "thinking"), False)
    stream = form.open(tools=tools, template_kwargs=off)
    events = [*stream.feed(written), *stream.finish(True)]
    assert [event.text for event in events if event.kind is Kind.CALL] == ["get_weather"], written
    assert json.loads("".join(event.text for event in events if event.kind is Kind.ARGUMENTS)) == arguments
