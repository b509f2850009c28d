# SPDX-License-Identifier: Apache-2.0
"""How tokens are drawn depends on the request alone: what a model's files suggest is not used, except which
tokens end an answer."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from byte_model import write_model

from headrace import LLM, SamplingParams

SUGGESTED = {
    "do_sample": True,
    "temperature": 1e-4,
    "top_k": 1,
    "top_p": 0.01,
    "min_p": 0.9,
    "repetition_penalty": 5.0,
    "max_new_tokens": 2,
    "eos_token_id": [7],
}


def test_only_the_end_tokens_are_used(tmp_path: Path) -> None:
    plain, suggesting = (write_model(tmp_path / name) for name in ("plain", "suggesting"))
    for folder, config in ((plain, {}), (suggesting, SUGGESTED)):
        (folder / "generation_config.json").write_text(json.dumps(config))
    params = SamplingParams(seed=3, max_tokens=40, ignore_eos=True)
    answers = []
    for folder in (plain, suggesting):
        with LLM(str(folder), backend="reference") as llm:
            answers.append(llm.generate([[65, 66]], params)[0].outputs[0].token_ids)
            assert (7 in llm.model.tokenizer.eos_ids) is (folder == suggesting)
    assert answers[0] == answers[1]
    assert len(set(answers[0])) > 10
