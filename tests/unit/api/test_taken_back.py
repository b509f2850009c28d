# SPDX-License-Identifier: Apache-2.0
"""Case Q8 over HTTP: many requests, half of them given up at random moments by cancelling or leaving."""

from __future__ import annotations

import asyncio
import contextlib
import random

import httpx

from headrace.core.config import EngineConfig
from headrace.runner.backends.fake import FakeBackend
from unit.api.byte_tokenizer import VOCAB_SIZE, byte_tokenizer
from unit.api.live_server import LiveServer, running
from unit.api.slow_server import TEXT, stats_of, wait_until

NUM_REQUESTS = 80
MAX_LEN = 256


async def _one(client: httpx.AsyncClient, number: int) -> None:
    rng = random.Random(number)
    body = {
        "prompt": "shared by all of them: " + "xyz"[number % 3] * rng.choice((1, 30, 100)),
        "max_tokens": 24,
        "seed": 7,
        "n": rng.choice((1, 1, 2)),
        "ignore_eos": True,
        "stream": rng.random() < 0.5,
    }
    way = rng.choice(("stay", "stay", "cancel", "leave"))
    sending = asyncio.create_task(client.post(TEXT, json=body, headers={"X-Request-Id": f"r{number}"}))
    if way == "stay":
        response = await sending
        assert response.status_code == 200
        assert response.content.endswith(b"data: [DONE]\n\n") == body["stream"]
        return
    await asyncio.sleep(rng.random() * 0.5)
    if way == "cancel":
        cancelled = await client.post(f"/v1/requests/r{number}/cancel")
        assert cancelled.status_code in (200, 404)
        assert (await sending).status_code == 200
    else:
        sending.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await sending


async def _storm(server: LiveServer) -> None:
    limits = httpx.Limits(max_connections=64)
    async with httpx.AsyncClient(base_url=server.url, timeout=60, limits=limits) as client:
        await asyncio.gather(*(_one(client, number) for number in range(NUM_REQUESTS)))


def test_nothing_is_lost() -> None:
    backend = FakeBackend(
        vocab_size=VOCAB_SIZE, max_model_len=MAX_LEN, block_size=16, num_blocks=48, step_s=0.001
    )
    config = EngineConfig(max_num_seqs=8, max_num_batched_tokens=32)
    with running(backend, byte_tokenizer(), config=config) as server:
        longest = {"prompt": "q" * 200, "ignore_eos": True, "seed": 3, "return_token_ids": True}
        before = server.post(TEXT, longest).json()["choices"][0]
        assert len(before["token_ids"]) == MAX_LEN - 200
        asyncio.run(_storm(server))
        wait_until(lambda: stats_of(server).num_running + stats_of(server).num_waiting == 0)
        assert stats_of(server).num_free_blocks == stats_of(server).num_blocks
        assert server.http.get("/load").json() == {"server_load": 0}
        assert server.post(TEXT, longest).json()["choices"][0] == before
        ends = server.http.get("/metrics").text
        assert 'answers_total{finish_reason="abort"' in ends
        assert 'answers_total{finish_reason="error",model_name="tiny"} 0.0' in ends
