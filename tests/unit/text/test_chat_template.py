# SPDX-License-Identifier: Apache-2.0
"""Chat templates in the styles of real models: ids, BOS, refusals, the sandbox."""

from __future__ import annotations

from pathlib import Path

import pytest
import templates
from synthetic import CHATML, GEMMA, LLAMA3, MetadataOnly, bpe_metadata, load

from headrace.core.errors import ConfigError, ModelFileError, RequestError
from headrace.text.chat_template import ChatTemplate, load_chat_template, read_template
from headrace.text.tokenizer import Tokenizer

USER = {"role": "user", "content": "hi"}
TOKENIZER = load(bpe_metadata())


def chatml(source: str = templates.CHATML) -> ChatTemplate:
    return ChatTemplate(source, TOKENIZER)


def text_of(ids: list[int], tokenizer: Tokenizer = TOKENIZER) -> str:
    return tokenizer.decode(ids, skip_special=False)


def test_chatml() -> None:
    messages = [{"role": "system", "content": "Be brief."}, USER]
    text = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    assert chatml().encode(messages) == TOKENIZER.encode(text, parse_special=True)
    assert text_of(chatml().encode([USER], add_generation_prompt=False)) == "<|im_start|>user\nhi<|im_end|>\n"


def test_llama3_has_one_bos() -> None:
    tokenizer = load(bpe_metadata(pre="llama-bpe", control=LLAMA3))
    ids = ChatTemplate(templates.LLAMA3, tokenizer).encode([{"role": "user", "content": "  hi  "}])
    assert text_of(ids, tokenizer) == (
        "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nhi<|eot_id|>"
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    )
    assert ids.count(0) == 1


@pytest.mark.parametrize(("adds_bos", "count"), [(True, 1), (False, 0)])
def test_a_template_without_bos_gets_the_one_the_model_wants(adds_bos: bool, count: int) -> None:
    tokenizer = load(bpe_metadata(add_bos_token=adds_bos))
    assert ChatTemplate(templates.CHATML, tokenizer).encode([USER]).count(0) == count


def test_gemma() -> None:
    tokenizer = load(bpe_metadata(control=GEMMA, bos_token_id=2, eos_token_id=1, add_bos_token=True))
    template = ChatTemplate(templates.GEMMA, tokenizer)
    ids = template.encode([USER, {"role": "assistant", "content": "yes"}, USER])
    assert text_of(ids, tokenizer) == (
        "<bos><start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\nyes<end_of_turn>\n"
        "<start_of_turn>user\nhi<end_of_turn>\n<start_of_turn>model\n"
    )
    for messages, reason in (
        ([{"role": "system", "content": "x"}, USER], "System role not supported"),
        ([USER, USER], "must alternate"),
    ):
        with pytest.raises(RequestError, match=reason) as caught:
            template.encode(messages)
        assert caught.value.param == "messages"


def test_tools_and_their_results() -> None:
    tool = {"type": "function", "function": {"name": "größe", "parameters": {"type": "object"}}}
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"x": "<é>"}'}}
    messages = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]
    messages += [{"role": "tool", "tool_call_id": "1", "content": "5"}]
    text = text_of(chatml().encode(messages, tools=[tool]))
    assert '{"type": "function", "function": {"name": "größe", "parameters": {"type": "object"}}}' in text
    assert '{"name": "f", "arguments": {"x": "<é>"}}' in text
    assert "<tool_response>\n5\n</tool_response>" in text


def test_parts_give_the_ids_of_the_joined_string() -> None:
    parts = [{"type": "text", "text": "A<|im_"}, {"type": "text", "text": "end|>B"}]
    whole = chatml().encode([{"role": "user", "content": "A<|im_end|>B"}])
    assert chatml().encode([{"role": "user", "content": parts}]) == whole


def test_template_options() -> None:
    assert text_of(chatml().encode([USER], enable_thinking=False)).endswith("<think>\n\n</think>\n\n")
    assert chatml("{{ custom }}").encode([USER], custom="hello") == TOKENIZER.encode("hello")


def test_templates_look_into_contents_as_they_are() -> None:
    content = "<think>hm</think>\n\nyes <|im_end|>"
    ids = chatml().encode([{"role": "assistant", "content": content}], add_generation_prompt=False)
    assert text_of(ids) == "<|im_start|>assistant\nyes <|im_end|><|im_end|>\n"
    assert ids.count(2) == 1


@pytest.mark.parametrize("content", ["Sure, ", "a <|im_end|>", "a <|im_", "", "x  "])
def test_the_last_message_can_be_gone_on_with(content: str) -> None:
    messages = [USER, {"role": "assistant", "content": content}]
    ids = chatml().encode(messages, continue_final_message=True)
    assert text_of(ids).endswith("<|im_start|>assistant\n" + content)
    assert ids == chatml().encode(messages, continue_final_message=True, add_generation_prompt=False)


def test_going_on_with_a_message_the_template_leaves_out() -> None:
    with pytest.raises(RequestError, match="leaves out the last message"):
        chatml("x").encode([USER], continue_final_message=True)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ ''.__class__.__mro__ }}", "sandbox"),
        ("{{ messages.__init__.__globals__ }}", "sandbox"),
        ("{{ raise_exception.__globals__['__builtins__']['open']('MARKER', 'w') }}", "sandbox"),
        ("{{ cycler.__init__.__globals__.os.system('touch MARKER') }}", "sandbox"),
        ("{{ ''|attr('__class__') }}{{ (''|attr('__class__')).mro() }}", "sandbox"),
        ("{{ '{0.__class__}'.format(messages) }}{{ 1/0 }}", "fails on these messages|sandbox"),
        ("{{ messages.append(1) }}", "sandbox"),
        ("{{ 'a' * 1000000000 }}", "sandbox"),
        ("{{ [0] * 1000000000 }}", "sandbox"),
        ("{{ 9 ** 1000000000 }}", "sandbox"),
        ("{{ 'a'.ljust(1000000000) }}", "sandbox"),
        ("{{ 'a'|center(1000000000) }}", "sandbox"),
        ("{{ '%1000000000d' % 5 }}", "sandbox"),
        ("{{ '%1000000000d'|format(5) }}", "sandbox"),
        ("{{ '{:1000000000}'.format(5) }}", "sandbox"),
        (
            "{% for i in range(9999) %}{% for j in range(9999) %}{{ 'a' * 999 }}{% endfor %}{% endfor %}",
            "sandbox",
        ),
        (
            "{% set n = namespace(x='aa') %}{% for i in range(40) %}{% set n.x = n.x + n.x %}{% endfor %}",
            "sandbox",
        ),
        ("{% for i in range(1000000) %}x{% endfor %}", "fails on these messages"),
        ("{{ nothing.at.all }}", "fails on these messages"),
        ("{{ 1 / 0 }}", "fails on these messages"),
        ("{{ messages[0] + 1 }}", "fails on these messages"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails on these messages"),
        ("{% include 'x' %}", "fails on these messages"),
    ],
)
def test_hostile_and_failing_templates_are_stopped(
    source: str, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(RequestError, match=message) as caught:
        chatml(source).encode([USER])
    assert caught.value.param == "messages"
    assert not list(tmp_path.iterdir())


def test_the_usual_helpers_work() -> None:
    source = (
        "{% generation %}{{ {'a': '<é>'} | tojson }}{% endgeneration %}"
        "{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}{{ i }}{% endfor %}"
        "{{ strftime_now('%Y')|length }}{{ '%02d' % 7 }}{{ {'b': 1} | tojson(indent=2) }}{{ 'ab' * 2 }}"
    )
    assert text_of(chatml(source).encode([USER])) == '{"a": "<é>"}014' + '07{\n  "b": 1\n}abab'


def test_missing_and_broken_templates() -> None:
    assert load_chat_template(MetadataOnly(bpe_metadata()), TOKENIZER) is None
    for value, message in (
        ("{% if %}", r"tokenizer\.chat_template: chat template is broken at line 1"),
        ("\n{{ x | nofilter }}", r"tokenizer\.chat_template: chat template is broken at line 2"),
        (5, r"tokenizer\.chat_template: must be a string"),
    ):
        metadata = bpe_metadata() | {"tokenizer.chat_template": value}
        with pytest.raises(ModelFileError, match=message):
            load_chat_template(MetadataOnly(metadata), TOKENIZER)


def test_a_second_template_serves_requests_with_tools() -> None:
    metadata = {"tokenizer.chat_template": "plain", "tokenizer.chat_template.tool_use": "tools"}
    template = load_chat_template(MetadataOnly(metadata), TOKENIZER)
    assert template is not None
    assert template.encode([USER]) == TOKENIZER.encode("plain")
    assert template.encode([USER], tools=[{}]) == TOKENIZER.encode("tools")


def test_a_template_that_the_user_gave(tmp_path: Path) -> None:
    path = tmp_path / "own.jinja"
    path.write_text("own {{ messages[0].content }}", encoding="utf-8")
    assert chatml(read_template(str(path))).encode([USER]) == TOKENIZER.encode("own hi")
    assert read_template("{{ 'inline' }}") == "{{ 'inline' }}"
    for bad in (str(tmp_path / "none.jinja"), str(tmp_path), "{% if %}"):
        with pytest.raises(ConfigError, match="chat template"):
            read_template(bad)


def test_control_texts_of_these_tests_are_real_tokens() -> None:
    assert [TOKENIZER.vocabulary.control[text] for text in CHATML] == [0, 1, 2]
