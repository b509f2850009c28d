# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/wikitext2-nll.json: for each window of WikiText-2 the mean negative log likelihood that
transformers gives in float32 on a real file's dequantised weights. It takes minutes, so it is run by hand
(`python tests/cpu/record_wikitext_nll.py`) when a model is added; test_real_models.py reads the result."""

from __future__ import annotations

import json
from pathlib import Path

from real_oracle import nlls, transformers_twin

from headrace.bench.perplexity import first_scored, first_windows
from headrace.text.tokenizer import load_tokenizer
from headrace.weights.catalogue import pull
from headrace.weights.open import open_checkpoint

DATA = Path(__file__).parent.parent / "data"
MODELS = ("smollm2", "gemma3-270m")
WINDOW = 512
NUM_WINDOWS = 20


def wikitext_windows(path: Path) -> list[tuple[int, ...]]:
    tokenizer = load_tokenizer(open_checkpoint(path))
    ids = tokenizer.encode((DATA / "wikitext2-excerpt.txt").read_text(encoding="utf-8"))
    return first_windows(ids, WINDOW, NUM_WINDOWS, tokenizer.bos_id if tokenizer.adds_bos else None)


def mean_nlls(path: Path) -> list[float]:
    model = transformers_twin(open_checkpoint(path))
    means = []
    for number, tokens in enumerate(wikitext_windows(path)):
        means.append(float(nlls(model, tokens, first_scored(WINDOW)).mean()))
        print(f"{path.name}: window {number}: {means[-1]:.6f}", flush=True)
    return means


if __name__ == "__main__":
    recorded = {name: mean_nlls(pull(name)) for name in MODELS}
    (DATA / "wikitext2-nll.json").write_text(json.dumps(recorded, indent=1) + "\n")
