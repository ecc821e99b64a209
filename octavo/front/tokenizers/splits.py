"""How byte-level tokenizers cut a text into words before merging: the kinds that GGUF files name.

A GGUF file says only a name (``tokenizer.ggml.pre``). What it stands for is known from the tokenizer.json of the models
and from llama.cpp (``src/llama-vocab.cpp``), which is where the names come from.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Split:
    """``patterns``: each cuts the pieces that those before it left, matches and gaps alike. ``ignore_merges``: a word
    that is a token is one, however merges would go. ``nfc``: compose characters first. ``add_bos``: where the file does
    not say."""

    patterns: tuple[str, ...]
    ignore_merges: bool = False
    nfc: bool = False
    add_bos: bool = False


_CONTRACTIONS = "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"


def _gpt4(digits: str, letters: str = r"\p{L}", head: str = _CONTRACTIONS + "|") -> str:
    """The pattern that cl100k began: words with one sign before them, signs with the line ends behind them."""
    return (
        rf"{head}[^\r\n\p{{L}}\p{{N}}]?{letters}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*"
        r"|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


def _gpt4o(digits: str, contractions: str) -> str:
    """The pattern of o200k: a word is capitals, then small letters."""
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    sign = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{sign}{upper}*{lower}+{contractions}|{sign}{upper}+{lower}*{contractions}|{digits}"
        r"| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    )


#: Cased letters as DeepSeek's first tokenizers list them; by number, since editors and NFC change some of them.
_CASED = (
    "A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba\u01bc-\u01bf\u01c4-\u0293\u0295-\u02af\u0370-\u0373"
    "\u0376\u0377\u037b-\u037d\u037f\u0386\u0388-\u038a\u038c\u038e-\u03a1\u03a3-\u03f5\u03f7-\u0481\u048a-\u052f"
    "\u0531-\u0556\u10a0-\u10c5\u13a0-\u13f5\u13f8-\u13fd\u1c90-\u1cba\u1cbd-\u1cbf\u1d00-\u1d2b\u1d6b-\u1d77"
    "\u1d79-\u1d9a\u1e00-\u1f15\u1f18-\u1f1d\u1f20-\u1f45\u1f48-\u1f4d\u1f50-\u1f57\u1f59\u1f5b\u1f5d"
    "\u1f5f-\u1f7d\u1f80-\u1fb4\u1fb6-\u1fbc\u1fbe\u1fc2-\u1fc4\u1fc6-\u1fcc\u1fd0-\u1fd3\u1fd6-\u1fdb"
    "\u1fe0-\u1fec\u1ff2-\u1ff4\u1ff6-\u1ffc\u2102\u2107\u210a-\u2113\u2115\u2119-\u211d\u2124\u2126\u2128"
    "\u212a-\u212d\u212f-\u2134\u2139\u213c-\u213f\u2145-\u2149\u214e\u2183\u2184\u2c00-\u2c7b\u2c7e-\u2ce4"
    "\u2ceb-\u2cee\u2cf2\u2cf3\ua640-\ua66d\ua680-\ua69b\ua722-\ua76f\ua771-\ua787\ua78b-\ua78e\uab70-\uabbf"
    "\ufb00-\ufb06\ufb13-\ufb17\uff21-\uff3a\uff41-\uff5a\U00010400-\U0001044f\U000104b0-\U000104d3"
    "\U000104d8-\U000104fb\U00010c80-\U00010cb2\U00010cc0-\U00010cf2\U000118a0-\U000118df\U0001e900-\U0001e943"
)
_DEEPSEEK3 = (
    r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"""
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)

_gpt2 = Split((_GPT2,))
_digits = Split((r"\p{N}", _GPT2))
_llama3 = Split((_gpt4(r"\p{N}{1,3}"),), ignore_merges=True, add_bos=True)
_qwen2 = Split((_gpt4(r"\p{N}"),), nfc=True)
_o200k = Split((_gpt4o(r"\p{N}{1,3}", _CONTRACTIONS + "?"),))
_deepseek3 = Split((r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3))

KINDS: dict[str, Split] = {
    "default": Split((r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    "gpt-2": _gpt2,
    "phi-2": _gpt2,
    "mpt": _gpt2,
    "olmo": _gpt2,
    "jais": _gpt2,
    "trillion": _gpt2,
    "granite-docling": _gpt2,
    "smollm": _digits,
    "starcoder": _digits,
    "refact": _digits,
    "command-r": _digits,
    "codeshell": _digits,
    "exaone": _digits,
    "minerva-7b": _digits,
    "llama3": _llama3,
    "llama-v3": _llama3,
    "llama-bpe": _llama3,
    "falcon3": _llama3,
    "falcon-h1": _llama3,
    "lfm2": _llama3,
    "dbrx": Split(_llama3.patterns),
    "smaug-bpe": Split(_llama3.patterns),
    "glm4": Split(_llama3.patterns, ignore_merges=True),
    "chatglm-bpe": Split(_llama3.patterns),
    "qwen2": _qwen2,
    "deepseek-r1-qwen": _qwen2,
    "qwen35": Split((_gpt4(r"\p{N}", r"[\p{L}\p{M}]").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]"),)),
    "stablelm2": Split(_qwen2.patterns),
    "hunyuan": Split(_qwen2.patterns),
    "solar-open": Split(_qwen2.patterns),
    "megrez": Split(_qwen2.patterns),
    "grok-2": Split(_qwen2.patterns),
    "falcon": Split((r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    "deepseek-llm": Split(
        ("[\r\n]", rf"\s?[{_CASED}]+", r"\s?[!-/:-~！-／：-～‘-‟　-。]+", r"\s+$", "[一-龥ࠀ-一가-퟿]+", r"\p{N}+")
    ),
    "deepseek-coder": Split(("[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-퟿]+", r"\p{N}")),
    "deepseek-v3": _deepseek3,
    "hunyuan-dense": _deepseek3,
    "tekken": Split((_gpt4o(r"\p{N}", ""),), ignore_merges=True, add_bos=True),
    "gpt-4o": _o200k,
    "llama4": _o200k,
    "minimax-m2": _o200k,
    "seed-coder": Split(
        (_gpt4(r"\p{N}").replace(r" ?[^\s\p{L}\p{N}]+[\r\n]*", r" ?[^\s\p{L}\p{N}\r\n]+"),),
    ),
    "bloom": Split((" ?[^(\\s|.,!?…。，、।۔،)]+",)),
    "viking": Split((" ?[^(\\s|.,!?…。，、।۔،)]+", r"\p{N}")),
}
