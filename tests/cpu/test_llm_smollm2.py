# SPDX-License-Identifier: Apache-2.0
"""`LLM` with the real model, as the README shows it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from headrace import LLM, SamplingParams


def test_generate_and_chat(smollm2_path: Path) -> None:
    with LLM(str(smollm2_path), max_model_len=512) as llm:
        greedy = SamplingParams(temperature=0, max_tokens=8)
        prompts = ["The capital of France is", "1, 2, 3, 4,"]
        outputs = llm.generate(prompts, greedy)
        assert [output.prompt for output in outputs] == prompts
        assert "Paris" in outputs[0].outputs[0].text
        assert "5" in outputs[1].outputs[0].text
        talk = [{"role": "user", "content": "Hello!"}]
        answer = llm.chat(talk, greedy)[0].outputs[0]
        assert answer.text == "".join(delta.text for delta in llm.stream_chat(talk, greedy))
        assert len(answer.text) > 5


def test_a_model_that_nobody_closes_leaves_without_a_word(smollm2_path: Path) -> None:
    script = (
        "import sys, threading; from headrace import LLM, SamplingParams\n"
        "llm = LLM(sys.argv[1], max_model_len=64)\n"
        "print(llm.generate('1, 2, 3', SamplingParams(max_tokens=1))[0].outputs[0].text)\n"
        "llm = LLM(sys.argv[1], max_model_len=64)\n"
        "assert sum(thread.name == 'headrace-engine' for thread in threading.enumerate()) == 1\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(smollm2_path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
