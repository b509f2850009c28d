# SPDX-License-Identifier: Apache-2.0
"""What every Backend must do, the fake one included. Call `check_backend(backend)` on a fresh backend with at
least MIN_BLOCKS blocks; it leaves its own marks in the K/V storage and does not close the backend."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from draws import GREEDY
from headrace.core.plan import Backend, BlockCopy, DrawPlan, OutputPlan, RowPlan, StepPlan, TokenResult

MIN_BLOCKS = 24


def check_backend(backend: Backend, *, atol: float = 1e-9) -> None:
    """`atol`: how far log probabilities may differ when the same tokens are computed in other company,
    chunks or places. 0 differences in drawn tokens are allowed but where the best two are that close."""
    assert isinstance(backend, Backend)
    assert backend.info.num_blocks >= MIN_BLOCKS, f"the conformance test needs {MIN_BLOCKS} blocks"
    _Conformance(backend, atol).run()


class _Conformance:
    def __init__(self, backend: Backend, atol: float) -> None:
        self.backend = backend
        self.info = backend.info
        self.atol = atol
        self.random = random.Random(20)
        size = self.info.block_size
        lengths = (1, 2, size, 2 * size + 1, 3 * size + 2)
        self.prompts = [self._ids(n) for n in lengths if n < self.info.max_model_len]
        self.base = [self._alone(prompt, self._blocks(len(prompt))) for prompt in self.prompts]

    def run(self) -> None:
        self.check_answers()
        self.check_scattered_blocks()
        self.check_batch_is_alone()
        self.check_chunked_is_whole()
        self.check_scores_agree_with_draws()
        self.check_draws()
        self.check_drawable()
        self.check_copies()
        self.check_shared_blocks()
        self.check_bad_plans()

    # ---- pieces ----

    def _ids(self, count: int) -> tuple[int, ...]:
        return tuple(self.random.randrange(self.info.vocab_size) for _ in range(count))

    def _blocks(self, num_places: int, pool: list[int] | None = None) -> tuple[int, ...]:
        """Blocks in no order for so many places, taken out of `pool` when one is given."""
        pool = list(range(self.info.num_blocks)) if pool is None else pool
        chosen = self.random.sample(pool, -(-num_places // self.info.block_size))
        for block_id in chosen:
            pool.remove(block_id)
        return tuple(chosen)

    def _row(
        self,
        ids: Sequence[int],
        blocks: tuple[int, ...],
        begin: int = 0,
        end: int | None = None,
        draw: DrawPlan = GREEDY,
        sequence_id: int = 7,
        num_top: int = 5,
    ) -> RowPlan:
        """Compute places begin .. end-1 of ids: score each next token, draw after the last one."""
        end = len(ids) if end is None else end
        outputs = [
            OutputPlan(index=place - begin, draw=None, target=ids[place + 1], num_top=num_top)
            for place in range(begin, min(end, len(ids) - 1))
        ]
        if end == len(ids):
            draw = replace(draw, position=len(ids))
            outputs.append(OutputPlan(index=end - 1 - begin, draw=draw, target=None, num_top=num_top))
        return RowPlan(sequence_id, tuple(ids[begin:end]), begin, blocks, tuple(outputs))

    def _execute(self, *rows: RowPlan) -> list[tuple[TokenResult, ...]]:
        result = self.backend.execute(StepPlan(rows=rows))
        assert [row.sequence_id for row in result.rows] == [row.sequence_id for row in rows]
        assert [len(row.outputs) for row in result.rows] == [len(row.outputs) for row in rows]
        assert result.native_s >= 0
        return [row.outputs for row in result.rows]

    def _alone(
        self, ids: Sequence[int], blocks: tuple[int, ...], draw: DrawPlan = GREEDY
    ) -> tuple[TokenResult, ...]:
        return self._execute(self._row(ids, blocks, draw=draw))[0]

    def _same(self, got: Sequence[TokenResult], want: Sequence[TokenResult], what: str) -> None:
        assert len(got) == len(want), what
        for mine, theirs in zip(got, want, strict=True):
            gap = theirs.top[0][1] - theirs.top[1][1]
            if mine.token != theirs.token:
                assert gap <= 2 * self.atol, f"{what}: drew {mine.token} for {theirs.token}"
                continue
            assert mine.logprob == pytest.approx(theirs.logprob, abs=self.atol), what
            for (_, mine_value), (_, their_value) in zip(mine.top, theirs.top, strict=True):
                assert mine_value == pytest.approx(their_value, abs=self.atol), what

    # ---- checks ----

    def check_answers(self) -> None:
        """Log probabilities are sorted, of distinct tokens, at most 0, and agree with the token's own."""
        for prompt, outputs in zip(self.prompts, self.base, strict=True):
            for place, answer in enumerate(outputs):
                values = [value for _, value in answer.top]
                assert len(values) == 5
                assert values == sorted(values, reverse=True)
                assert len({token for token, _ in answer.top}) == 5
                assert all(math.isfinite(value) and value <= 1e-6 for value in values)
                assert sum(math.exp(value) for value in values) <= 1 + 1e-5
                assert answer.logprob <= values[0] + 1e-6
                assert dict(answer.top).get(answer.token, answer.logprob) == answer.logprob
                if place < len(prompt) - 1:
                    assert answer.token == prompt[place + 1]
            assert outputs[-1].token == outputs[-1].top[0][0], "greedy draws the most likely token"
        silent = self._execute(self._row(self.prompts[-1], self._blocks(len(self.prompts[-1])), num_top=-1))[
            0
        ]
        assert all(answer.logprob == 0.0 and answer.top == () for answer in silent)
        assert silent[-1].token == self.base[-1][-1].token
        blocks = self._blocks(2)
        assert self._execute(RowPlan(1, self.prompts[1], 0, blocks, ())) == [()]
        lone = self._row(self.prompts[1], blocks, num_top=0)
        assert all(answer.top == () and answer.logprob < 0 for answer in self._execute(lone)[0])

    def check_scattered_blocks(self) -> None:
        for prompt, want in zip(self.prompts, self.base, strict=True):
            size = self.info.block_size
            for start in (0, self.info.num_blocks - 5):
                blocks = tuple(range(start, start + -(-len(prompt) // size)))
                self._same(self._alone(prompt, blocks), want, "in order")
                self._same(self._alone(prompt, blocks[::-1]), want, "reversed")

    def check_batch_is_alone(self) -> None:
        for order in (list(range(len(self.prompts))), list(range(len(self.prompts)))[::-1]):
            pool = list(range(self.info.num_blocks))
            rows = [
                self._row(self.prompts[i], self._blocks(len(self.prompts[i]), pool), sequence_id=i)
                for i in order
            ]
            for i, got in zip(order, self._execute(*rows), strict=True):
                self._same(got, self.base[i], f"prompt {i} in company")

    def check_chunked_is_whole(self) -> None:
        """In chunks of any size, with others computing beside it."""
        long = self.prompts[-1]
        size = self.info.block_size
        for chunk in {1, 2, size - 1, size, size + 1} - {0}:
            pool = list(range(self.info.num_blocks))
            blocks = self._blocks(len(long), pool)
            got: list[TokenResult] = []
            for begin in range(0, len(long), chunk):
                end = min(begin + chunk, len(long))
                held = blocks[: -(-end // size)]
                other = self._row(
                    self.prompts[2], self._blocks(len(self.prompts[2]), list(pool)), sequence_id=1
                )
                got += self._execute(other, self._row(long, held, begin, end))[1]
            self._same(got, self.base[-1], f"chunks of {chunk}")

    def check_scores_agree_with_draws(self) -> None:
        """A greedy answer, token by token, has the log probabilities that scoring it whole gives."""
        prompt = self.prompts[2]
        pool = list(range(self.info.num_blocks))
        blocks = self._blocks(len(prompt) + 6, pool)
        ids = list(prompt)
        drawn = [self._execute(self._row(ids, blocks))[0][-1]]
        for _ in range(4):
            ids.append(drawn[-1].token)
            drawn.append(self._execute(self._row(ids, blocks, len(ids) - 1))[0][-1])
        ids.append(drawn[-1].token)
        scored = self._alone(ids, self._blocks(len(ids), pool))[len(prompt) - 1 : -1]
        self._same(drawn, scored, "drawn and scored")

    def check_draws(self) -> None:
        prompt = self.prompts[1]
        blocks = self._blocks(len(prompt))

        def draw(plan: DrawPlan) -> int:
            return self._alone(prompt, blocks, plan)[-1].token

        best = self.base[1][-1].token
        other = (best + 1) % self.info.vocab_size
        assert draw(replace(GREEDY, logit_bias=((other, 100.0),))) == other, "bias forces a token"
        assert draw(replace(GREEDY, logit_bias=((best, -math.inf),))) != best, "a ban holds"
        plain, biased = (
            self.base[1][-1],
            self._alone(prompt, blocks, replace(GREEDY, logit_bias=((other, 100.0),)))[-1],
        )
        for (_, value), (_, plain_value) in zip(biased.top, plain.top, strict=True):
            assert value == pytest.approx(plain_value, abs=self.atol), "bias does not touch log probabilities"
        hot = replace(GREEDY, temperature=1.5)
        drawn = [draw(replace(hot, seed=seed)) for seed in (0, 1, 2, 3, 2**63, 2**64 - 1)]
        assert drawn == [draw(replace(hot, seed=seed)) for seed in (0, 1, 2, 3, 2**63, 2**64 - 1)]
        assert len({draw(replace(GREEDY, temperature=100.0, seed=seed)) for seed in range(8)}) > 1
        banned = tuple((token, -math.inf) for token in range(self.info.vocab_size) if token != other)
        assert draw(replace(hot, logit_bias=banned)) == other
        pool = list(range(self.info.num_blocks))
        rows = [
            self._row(prompt, self._blocks(len(prompt), pool), draw=replace(hot, seed=seed), sequence_id=seed)
            for seed in (3, 1, 2, 0)
        ]
        in_company = {
            row.sequence_id: out[-1].token for row, out in zip(rows, self._execute(*rows), strict=True)
        }
        if self.atol < 1e-3:  # a draw may hang on the last bit where company changes it
            assert [in_company[seed] for seed in range(4)] == drawn[:4]

    def check_drawable(self) -> None:
        """Only the first ids are drawn, listed and share the probability."""
        prompt, num_ids = self.prompts[1], 5
        blocks = self._blocks(len(prompt))
        scores = [OutputPlan(len(prompt) - 1, None, target, num_ids, num_ids) for target in range(num_ids)]

        def answer(draw: DrawPlan) -> tuple[TokenResult, ...]:
            outputs = (*scores, OutputPlan(len(prompt) - 1, draw, None, num_ids, num_ids))
            return self._execute(RowPlan(1, prompt, 0, blocks, outputs))[0]

        *scored, drawn = answer(GREEDY)
        assert {token for token, _ in drawn.top} == set(range(num_ids))
        assert drawn.token == drawn.top[0][0]
        assert sum(math.exp(value) for _, value in drawn.top) == pytest.approx(1, abs=1e-4)
        assert dict(drawn.top) == {token: result.logprob for token, result in enumerate(scored)}
        hot = replace(GREEDY, temperature=100.0)
        tokens = {answer(replace(hot, seed=seed))[-1].token for seed in range(12)}
        assert len(tokens) > 1
        assert max(tokens) < num_ids
        seen = replace(hot, history=(self.info.vocab_size - 1, 0), num_prompt=0, frequency_penalty=2.0)
        assert answer(seen)[-1].token < num_ids, "penalised ids may lie beyond"
        for outputs in (
            (OutputPlan(0, None, num_ids, -1, num_ids),),
            (OutputPlan(0, None, 0, -1, self.info.vocab_size + 1),),
            (OutputPlan(0, replace(GREEDY, logit_bias=((num_ids, 1.0),)), None, -1, num_ids),),
        ):
            assert self._refuses(StepPlan(rows=(RowPlan(1, prompt[:1], 0, blocks, outputs),)))

    def check_copies(self) -> None:
        """A sequence goes on in a copy of another's last block, from places in its middle, in the step that
        copies or, where that one only copies, in the next; the block that was copied stays as it was."""
        size = self.info.block_size
        first = self.prompts[-1]
        for common in {len(first) - 1, size + 1, size + size // 2} - set(range(size + 1)):
            other = first[:common] + self._ids(len(first) - common)
            cold = self._alone(other, self._blocks(len(other)))
            pool = list(range(self.info.num_blocks))
            blocks = self._blocks(len(first), pool)
            spare = self._blocks(2 * len(first), pool)
            place = (common - 1) // size  # of the block that both begin, and then differ in
            want = self._execute(self._row(first, blocks, 0, common))[0]
            for num, apart in enumerate((False, True)):
                fork = (*blocks[:place], *spare[num::2][: len(blocks) - place])
                copies = (BlockCopy(blocks[place], fork[place]),)
                rows: tuple[RowPlan, ...] = (
                    self._row(other, fork, common),
                    self._row(first, blocks, common, sequence_id=1),
                )
                if apart:
                    assert self.backend.execute(StepPlan((), copies=copies)).rows == ()
                    copies = ()
                    rows = rows[:1]
                result = self.backend.execute(StepPlan(rows, copies=copies))
                self._same(result.rows[0].outputs, cold[common:], f"behind a copy of {common} places")
                if not apart:
                    self._same((*want, *result.rows[1].outputs), self.base[-1], "the block that was copied")

    def check_shared_blocks(self) -> None:
        """Rows that begin with the same blocks are as they are alone, whatever each computes behind them."""
        size = self.info.block_size
        common = self.prompts[-1][: 2 * size]
        pool = list(range(self.info.num_blocks))
        shared = self._blocks(len(common), pool)
        self._execute(RowPlan(1, common, 0, shared, ()))
        prompts = [common + self._ids(n) for n in (1, 2, size + 1)]
        prompts.append(common[:size] + self._ids(2))
        rows, wants = [], []
        for number, prompt in enumerate(prompts):
            num_shared = 1 if number == 3 else 2
            wants.append(self._alone(prompt, self._blocks(len(prompt), list(pool)))[num_shared * size :])
            own = self._blocks(len(prompt) - num_shared * size, pool)
            rows.append(self._row(prompt, shared[:num_shared] + own, num_shared * size, sequence_id=number))
        for number, (got, want) in enumerate(zip(self._execute(*rows), wants, strict=True)):
            self._same(got, want, f"row {number} of those that share blocks")

    def check_bad_plans(self) -> None:
        """ValueError, before anything is written: the row beside the bad one is not touched either."""
        info = self.info
        prompt = self.prompts[-1]
        pool = list(range(info.num_blocks))
        blocks = self._blocks(len(prompt), pool)
        cut = info.block_size + 1
        first = self._execute(self._row(prompt, blocks, 0, cut))[0]
        spare = self._blocks(2 * info.block_size, pool)
        good = self._row((0,) * cut, blocks, sequence_id=1)  # would spoil the places computed above
        draw = OutputPlan(index=0, draw=GREEDY, target=None, num_top=-1)
        score = OutputPlan(index=0, draw=None, target=0, num_top=-1)
        row = RowPlan(2, (0, 0), 0, spare, ())
        bad_rows = {
            "token too large": replace(row, tokens=(0, info.vocab_size)),
            "negative token": replace(row, tokens=(-1, 0)),
            "no tokens": replace(row, tokens=()),
            "block too large": replace(row, block_ids=(info.num_blocks,)),
            "negative block": replace(row, block_ids=(-1,)),
            "too few blocks": replace(row, num_computed=2 * info.block_size - 1),
            "no blocks": replace(row, block_ids=()),
            "negative num_computed": replace(row, num_computed=-1),
            "output outside": replace(row, outputs=(replace(score, index=2),)),
            "draw before the end": replace(row, outputs=(draw,)),
            "target outside": replace(row, outputs=(replace(score, target=info.vocab_size),)),
            "draw and target": replace(row, outputs=(replace(draw, index=1, target=0),)),
            "neither": replace(row, outputs=(replace(score, target=None),)),
            "bias outside": replace(
                row,
                outputs=(replace(draw, index=1, draw=replace(GREEDY, logit_bias=((info.vocab_size, 1.0),))),),
            ),
            "block of another row": replace(row, block_ids=blocks[:1]),
            "too long": RowPlan(2, (0,), info.max_model_len, tuple(range(info.num_blocks)), ()),
        }
        for name, bad in bad_rows.items():
            assert self._refuses(StepPlan(rows=(good, bad))), f"{name} was let through"
        bad_copies = {
            "a source outside": (BlockCopy(info.num_blocks, blocks[0]),),
            "a target outside": (BlockCopy(spare[0], -1),),
            "onto itself": (BlockCopy(blocks[0], blocks[0]),),
            "a target twice": (BlockCopy(spare[0], blocks[0]), BlockCopy(spare[1], blocks[0])),
            "a target that is read": (BlockCopy(spare[0], blocks[0]), BlockCopy(blocks[0], spare[1])),
        }
        for name, copies in bad_copies.items():
            assert self._refuses(StepPlan((good,), copies=copies)), f"a copy with {name} was let through"
        rest = self._execute(self._row(prompt, blocks, cut))[0]
        self._same((*first, *rest), self.base[-1], "after refused plans")

    def _refuses(self, plan: StepPlan) -> bool:
        try:
            self.backend.execute(plan)
        except ValueError:
            return True
        return False
