# SPDX-License-Identifier: Apache-2.0
"""Case C11: an embedding with more rows than the tokenizer has tokens, as models are padded to. No id beyond
the tokenizer is drawn, listed or taken, on either backend."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("torch")

from byte_model import NUM_TOKENS, write_model
from tiny_models import VOCAB

from headrace import LLM, SamplingParams
from headrace.core.errors import RequestError


@pytest.mark.parametrize("backend", ["cpu", "reference"])
def test_nothing_beyond_the_tokenizer(backend: str, tmp_path: Path) -> None:
    num_answers, num_each = (10, 200) if backend == "cpu" else (2, 50)
    hot = SamplingParams(
        temperature=5.0, seed=1, max_tokens=num_each, ignore_eos=True, logprobs=20, prompt_logprobs=20
    )
    with LLM(str(write_model(tmp_path)), backend=backend) as llm:
        assert VOCAB > NUM_TOKENS == llm.model.tokenizer.vocab_size == llm.model.info.vocab_size
        output = llm.generate([[65, NUM_TOKENS - 1]], hot, n=num_answers)[0]
        drawn = [token for answer in output.outputs for token in answer.token_ids]
        assert len(drawn) == num_answers * num_each
        assert max(drawn) < NUM_TOKENS
        tops = [top for answer in output.outputs for top in answer.logprobs or ()]
        tops += [top for top in output.prompt_logprobs or () if top]
        assert len(tops) == len(drawn) + 1
        assert max(token for top in tops for token in top) < NUM_TOKENS
        for bad in (
            {"prompts": [[NUM_TOKENS]]},
            {"prompts": [[1]], "params": SamplingParams(logit_bias=((NUM_TOKENS, 100.0),))},
            {"prompts": [[1]], "params": SamplingParams(stop_token_ids=(NUM_TOKENS,))},
        ):
            with pytest.raises(RequestError, match=f"token id {NUM_TOKENS}, but"):
                llm.generate(**bad)
