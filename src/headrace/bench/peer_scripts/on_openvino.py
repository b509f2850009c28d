# SPDX-License-Identifier: Apache-2.0
"""OpenVINO GenAI's speed on a GGUF file, as a script: run by its path in whatever interpreter has it, so
nothing of Headrace is imported. The task is JSON in argv, the speed JSON on the last line."""

import importlib
import json
import sys
from typing import Any

import numpy as np

FEWEST_IDS = 1000  # any vocabulary has these


def main(task: dict[str, Any]) -> dict[str, float | None]:
    genai: Any = importlib.import_module("openvino_genai")
    openvino: Any = importlib.import_module("openvino")
    pipeline = genai.LLMPipeline(task["model"], "CPU", INFERENCE_NUM_THREADS=task["num_threads"])
    random = np.random.default_rng(0)

    def metrics(rows: int, prompt_tokens: int, new_tokens: int) -> Any:
        ids = random.integers(0, FEWEST_IDS, (rows, prompt_tokens), dtype=np.int64)
        inputs = genai.TokenizedInputs(openvino.Tensor(ids), openvino.Tensor(np.ones_like(ids)))
        config = genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = new_tokens, True, False
        return pipeline.generate(inputs, config).perf_metrics

    metrics(1, 8, 2)
    prompt = task["prompt_tokens"] / metrics(1, task["prompt_tokens"], 2).get_ttft().mean * 1000
    decode = 1000 / metrics(1, 1, task["output_tokens"]).get_tpot().mean
    try:
        of_row = metrics(task["num_rows"], task["row_prompt_tokens"], task["output_tokens"]).get_tpot().mean
        rows = 1000 * task["num_rows"] / of_row
    except Exception as error:  # whatever it is, what was measured before it stands
        print(f"{task['num_rows']} sequences at once: {error}", file=sys.stderr)
        rows = None
    return {"prompt": prompt, "decode": decode, "rows": rows}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
