# SPDX-License-Identifier: Apache-2.0
"""Headrace's own turn in `headrace bench peers`, a fresh process as its peers are: `python -m` this, with the
task as JSON. Prints the speed as JSON."""

from __future__ import annotations

import json
import sys

import numpy as np

from headrace.bench.engine_steps import RowLoad, StepLog, measure_rows
from headrace.bench.latency import time_request
from headrace.core.config import EngineConfig, ModelConfig
from headrace.core.request import GenerateRequest, SamplingParams
from headrace.engine.build import load_backend
from headrace.engine.loop import Engine

NO_HURRY_MS = 60_000.0  # nothing else runs beside a prompt


def main(task: dict[str, object]) -> dict[str, float]:
    prompt_tokens, output_tokens, num_rows, row_prompt_tokens, num_threads = (
        int(str(task[name]))
        for name in ("prompt_tokens", "output_tokens", "num_rows", "row_prompt_tokens", "num_threads")
    )
    longest = max(prompt_tokens, row_prompt_tokens) + output_tokens
    config = ModelConfig(num_threads=num_threads, max_model_len=longest)
    backend = load_backend(str(task["model"]), config).backend
    log = StepLog()
    batched = max(num_rows, EngineConfig().max_num_batched_tokens)
    limits = EngineConfig(max_num_seqs=num_rows, max_itl_ms=NO_HURRY_MS, max_num_batched_tokens=batched)
    engine = Engine(backend, limits, on_step=log)
    engine.start()
    random = np.random.default_rng(0)

    def request(num_prompt: int, max_tokens: int) -> GenerateRequest:
        ids = tuple(random.integers(0, engine.info.vocab_size, num_prompt).tolist())
        params = SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True)
        return GenerateRequest(request_id=f"{num_prompt}-{max_tokens}", prompt_ids=ids, params=params)

    def fill() -> tuple[int, int]:
        stats = engine.stats()
        return stats.num_leased_places, stats.num_filled_places

    try:
        time_request(engine.submit, request(8, 2))
        prompt = prompt_tokens / time_request(engine.submit, request(prompt_tokens, 1)).ttft_s
        decode = 1 / time_request(engine.submit, request(1, output_tokens)).tpot_s
        load = RowLoad(
            num_rows=num_rows, prompt_tokens=row_prompt_tokens, output_tokens=output_tokens, rounds=1
        )
        cost = measure_rows(engine.submit_all, fill, log, load, engine.info.vocab_size)
    finally:
        engine.close()
    return {"prompt": prompt, "decode": decode, "rows": cost.decode_tokens_per_s}


if __name__ == "__main__":
    print(json.dumps(main(json.loads(sys.argv[1]))))
