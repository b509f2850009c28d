# SPDX-License-Identifier: Apache-2.0
"""transformers' speed on a GGUF file, as a script: run by its path in whatever interpreter has transformers,
torch and gguf, so nothing of Headrace is imported. The task is JSON in argv, the speed JSON on the last
line."""

import importlib
import json
import sys
import time
from pathlib import Path
from typing import Any


def main(task: dict[str, Any]) -> dict[str, float]:
    torch: Any = importlib.import_module("torch")
    transformers: Any = importlib.import_module("transformers")
    torch.set_num_threads(task["num_threads"])
    path = Path(task["model"])
    where = {"gguf_file": path.name} if path.is_file() else {}
    folder = path.parent if path.is_file() else path
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **where).eval()
    torch.manual_seed(0)

    def seconds(rows: int, prompt_tokens: int, new_tokens: int) -> float:
        ids = torch.randint(0, model.config.vocab_size, (rows, prompt_tokens))
        begin = time.perf_counter()
        with torch.inference_mode():
            model.generate(
                ids,
                attention_mask=torch.ones_like(ids),
                do_sample=False,
                min_new_tokens=new_tokens,
                max_new_tokens=new_tokens,
                pad_token_id=0,
            )
        return time.perf_counter() - begin

    def decode(rows: int, prompt_tokens: int) -> float:
        first = seconds(rows, prompt_tokens, 1)
        rest = seconds(rows, prompt_tokens, task["output_tokens"]) - first
        return float(rows * (task["output_tokens"] - 1) / rest)

    seconds(1, 8, 2)
    prompt = task["prompt_tokens"] / seconds(1, task["prompt_tokens"], 1)
    rows = decode(task["num_rows"], task["row_prompt_tokens"])
    return {"prompt": prompt, "decode": decode(1, 1), "rows": rows}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
