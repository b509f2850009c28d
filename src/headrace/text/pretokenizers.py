# SPDX-License-Identifier: Apache-2.0
"""How each kind of byte-level BPE cuts text into words before merging: a table, one row a kind, after the
public tokenizer files of the models it is named for. A new kind is a new row."""

from __future__ import annotations

from dataclasses import dataclass

# The contractions, words, numbers, signs and spaces that a pattern tells apart.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_SHORT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_WORD = r"[^\r\n\p{L}\p{N}]?\p{L}+"
_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n]*"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_SHORT}|{_WORD}|\p{{N}}{{1,3}}|{_SIGNS}|{_SPACES}"
_QWEN2 = rf"{_SHORT}|{_WORD}|\p{{N}}|{_SIGNS}|{_SPACES}"
_UPPER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]"
_LOWER = r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_LEAD = r"[^\r\n\p{L}\p{N}]?"
_CASED = rf"{_LEAD}{_UPPER}*{_LOWER}+{{0}}|{_LEAD}{_UPPER}+{_LOWER}*{{0}}"
_CASED_SIGNS = r" ?[^\s\p{L}\p{N}]+[\r\n/]*"
_TEKKEN = rf"{_CASED.replace('{0}', '')}|\p{{N}}|{_CASED_SIGNS}|{_SPACES}"
_GPT4O = rf"{_CASED.replace('{0}', _SHORT + '?')}|\p{{N}}{{1,3}}|{_CASED_SIGNS}|{_SPACES}"
_CJK = "[一-龥ࠀ-一가-\ud7ff]+"
# Escapes where the letter itself would not survive composition (NFC).
_DEEPSEEK_LETTERS = (
    "A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿǄ-ʓʕ-ʯͰ-ͳͶͷͻ-ͽͿΆΈ-ΊΌΎ-ΡΣ-ϵϷ-ҁҊ-ԯԱ-ՖႠ-ჅᎠ-Ᏽᏸ-ᏽᲐ-ᲺᲽ-Ჿᴀ-ᴫᵫ-ᵷᵹ-ᶚḀ-ἕἘ-Ἕἠ-ὅὈ-Ὅὐ-ὗὙὛὝὟ-\u1f7dᾀ-ᾴᾶ-ᾼ\u1fbeῂ-ῄῆ-ῌ"
    "ῐ-\u1fd3ῖ-\u1fdbῠ-Ῥῲ-ῴῶ-ῼℂℇℊ-ℓℕℙ-ℝℤ\u2126ℨ\u212a-ℭℯ-ℴℹℼ-ℿⅅ-ⅉⅎↃↄⰀ-ⱻⱾ-ⳤⳫ-ⳮⳲⳳꙀ-ꙭꚀ-ꚛꜢ-ꝯꝱ-ꞇꞋ-ꞎꭰ-ꮿﬀ-ﬆﬓ-ﬗＡ-Ｚａ-ｚ𐐀-𐑏𐒰-𐓓𐓘-𐓻𐲀-𐲲𐳀-𐳲𑢠-𑣟𞤀-𞥃"
)
_DEEPSEEK_SIGNS = "!-/:-~！-／：-～‘-‟　-。"
_ASCII_SIGN_WORD = r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"
_DEEPSEEK3 = (
    rf"{_ASCII_SIGN_WORD}|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+| ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}"
)
_BLOOM = r" ?[^(\s|.,!?…。，、।۔،)]+"


@dataclass(frozen=True, slots=True)
class PreTokenizer:
    """A kind of `tokenizer.ggml.pre`.

    Args:
        names: values of the key that mean this kind.
        patterns: applied one after the other, each cutting the pieces of the one before it so that
            every match and every text between matches is a piece.
        ignore_merges: a whole word that is a token stays one, whatever the merges would give.
        adds_bos: whether BOS is added when the file does not say.
        nfc: text is brought to Unicode's composed form first.
    """

    names: tuple[str, ...]
    patterns: tuple[str, ...]
    ignore_merges: bool = False
    adds_bos: bool = False
    nfc: bool = False


DEFAULT_NAME = "default"

PRE_TOKENIZERS: tuple[PreTokenizer, ...] = (
    PreTokenizer((DEFAULT_NAME,), (r"[\p{P}\$\+<=>\^~\|]+", _GPT2, r"\p{N}+", "[0-9][0-9][0-9]")),
    PreTokenizer(
        (
            *("gpt-2", "gpt2", "phi-2", "gigachat", "jais", "exaone4", "trillion", "granite-docling"),
            *("jina-es", "jina-de", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum", "modern-bert"),
        ),
        (_GPT2,),
    ),
    PreTokenizer(("mpt", "olmo"), (_GPT2,), nfc=True),
    PreTokenizer(
        ("smollm", "starcoder", "refact", "codeshell", "exaone", "minerva-7b", "mellum2"),
        (r"\p{N}", _GPT2),
    ),
    PreTokenizer(("command-r",), (r"\p{N}", _GPT2), nfc=True),
    PreTokenizer(
        ("llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"),
        (_LLAMA3,),
        ignore_merges=True,
        adds_bos=True,
    ),
    PreTokenizer(("dbrx", "smaug-bpe", "glm4", "chatglm-bpe"), (_LLAMA3,)),
    PreTokenizer(("qwen2", "megrez", "kormo", "f2llmv2"), (_QWEN2,), nfc=True),
    PreTokenizer(("deepseek-r1-qwen", "stablelm2", "hunyuan", "solar-open", "grok-2"), (_QWEN2,)),
    PreTokenizer(
        ("qwen35",),
        (
            rf"{_SHORT}|[^\r\n\p{{L}}\p{{N}}]?[\p{{L}}\p{{M}}]+|\p{{N}}"
            rf"| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
        ),
        nfc=True,
    ),
    PreTokenizer(
        ("deepseek-llm",),
        (
            r"[\r\n]",
            rf"\s?[{_DEEPSEEK_LETTERS}]+",
            r"\s?[!-/:-~！-／：-～‘-‟　-。]+",
            r"\s+$",
            _CJK,
            r"\p{N}+",
        ),
    ),
    PreTokenizer(("deepseek-coder",), (r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", _CJK, r"\p{N}")),
    PreTokenizer(
        ("deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"),
        (r"\p{N}{1,3}", "[一-龥぀-ゟ゠-ヿ]+", _DEEPSEEK3),
    ),
    PreTokenizer(("falcon",), (r"[\p{P}\$\+<=>\^~\|`]+", _GPT2, "[0-9][0-9][0-9]")),
    PreTokenizer(("tekken",), (_TEKKEN,), ignore_merges=True, adds_bos=True),
    PreTokenizer(("gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"), (_GPT4O,)),
    PreTokenizer(("bloom", "gpt3-finnish", "poro-chat"), (_BLOOM,)),
    PreTokenizer(("viking",), (_BLOOM, r"\p{N}")),
    PreTokenizer(
        ("seed-coder",),
        (rf"{_SHORT}|{_WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{_SPACES}",),
    ),
    PreTokenizer(
        ("bailingmoe", "bailingmoe2", "llada-moe"),
        (rf"'(?i:[sdmt]|ll|ve|re)|{_WORD}|\p{{N}}|{_SIGNS}|\s*[\r\n]|\s+(?!\S)|\s+",),
    ),
)

BY_NAME = {name: row for row in PRE_TOKENIZERS for name in row.names}
