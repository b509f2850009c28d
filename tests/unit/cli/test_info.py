# SPDX-License-Identifier: Apache-2.0
"""`headrace info` says what is in a file; the numbers are counted by hand here."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest

from headrace.cli.main import main


def text(value: str) -> bytes:
    return struct.pack("<Q", len(value.encode())) + value.encode()


def gguf_file(path: Path, name: str = "Tiny") -> Path:
    """Two tensors: Q8_0 (2, 32) of 68 bytes, F32 (3,) of 12; a vocabulary of 3."""
    string, u32 = (lambda v: struct.pack("<I", 8) + text(v)), (lambda v: struct.pack("<II", 4, v))
    tokens = struct.pack("<IIQ", 9, 8, 3) + text("a") + text("<bos>") + text("<eos>")
    template = "{{ bos_token }}\nline 2\nline 3\nline 4\nline 5\nline 6"
    pairs = {
        "general.architecture": string("llama"),
        "general.name": string(name),
        "llama.context_length": u32(8192),
        "llama.block_count": u32(30),
        "llama.embedding_length": u32(576),
        "llama.feed_forward_length": u32(1536),
        "llama.attention.head_count": u32(9),
        "llama.attention.head_count_kv": u32(3),
        "tokenizer.ggml.model": string("gpt2"),
        "tokenizer.ggml.pre": string("smollm"),
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.bos_token_id": u32(1),
        "tokenizer.ggml.eos_token_id": u32(2),
        "tokenizer.chat_template": string(template),
    }
    out = b"GGUF" + struct.pack("<IQQ", 3, 2, len(pairs))
    out += b"".join(text(key) + value for key, value in pairs.items())
    out += text("m.weight") + struct.pack("<IQQIQ", 2, 32, 2, 8, 0)
    out += text("n.weight") + struct.pack("<IQIQ", 1, 3, 0, 96)
    out += bytes(-len(out) % 32) + bytes(96 + 12)
    path.write_bytes(out)
    return path


def test_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = gguf_file(tmp_path / "tiny.gguf")
    assert main(["info", str(path), "--tensors"]) == 0
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    for expected in (
        f"file {path}",
        "name Tiny",
        f"container GGUF v3, {path.stat().st_size / 1000:.1f} kB",
        "architecture llama",
        "parameters 0.00 M in 2 tensors",
        "context 8192 tokens",
        "layers 30, width 576, feed-forward 1536",
        "heads 9 query, 3 key/value",
        "tokenizer gpt2 / smollm, 3 tokens",
        "bos, eos 1 <bos>, 2 <eos>",
        "Q8_0 1 0.00 M 0.1 kB 85.0 %",
        "F32 1 0.00 M 0.0 kB 15.0 %",
        "{{ bos_token }}",
        "... 2 lines more",
        "m.weight Q8_0 2 x 32 0.1 kB",
        "n.weight F32 3 0.0 kB",
    ):
        assert expected in lines


def test_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = gguf_file(tmp_path / "tiny.gguf")
    assert main(["info", str(path), "--json", "--tensors"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["num_parameters"] == 67
    assert found["formats"] == [
        {"format": "Q8_0", "num_tensors": 1, "num_elements": 64, "num_bytes": 68},
        {"format": "F32", "num_tensors": 1, "num_elements": 3, "num_bytes": 12},
    ]
    assert found["geometry"]["context_length"] == 8192
    assert found["tokenizer"]["eos"] == {"id": 2, "text": "<eos>"}
    assert found["tensors"][0] == {"name": "m.weight", "shape": [2, 32], "format": "Q8_0", "num_bytes": 68}


def test_model_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    header = json.dumps(
        {"model.embed_tokens.weight": {"dtype": "F16", "shape": [3, 2], "data_offsets": [0, 12]}}
    ).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(12))
    config = {"model_type": "gemma3_text", "vocab_size": 3, "num_hidden_layers": 4, "eos_token_id": [1, 106]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"eos_token": {"content": "<eos>"}}))
    (tmp_path / "chat_template.jinja").write_text("{{ messages }}")
    assert main(["info", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["container"] == "safetensors"
    assert found["architecture"] == "gemma3_text"
    assert found["num_parameters"] == 6
    assert found["geometry"]["num_layers"] == 4
    assert found["tokenizer"] == {
        "model": "tokenizer.json",
        "pre": None,
        "vocab_size": 3,
        "bos": None,
        "eos": {"id": 1, "text": "<eos>"},
    }
    assert found["chat_template"] == "{{ messages }}"


def test_escapes_in_the_file_do_not_reach_the_terminal(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["info", str(gguf_file(tmp_path / "tiny.gguf", name="\x1b]0;owned\x07\nfile  fake"))]) == 0
    out = capsys.readouterr().out
    assert "\x1b" not in out
    assert "\nfile  fake" not in out
    assert r"\x1b]0;owned\x07\nfile  fake" in out


def test_broken_file_and_unknown_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path / "home"))
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    assert main(["info", str(tmp_path / "bad.gguf")]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "bad.gguf: magic:" in error
    assert main(["info", "no-such-model"]) == 1
    assert "no-such-model" in capsys.readouterr().err
