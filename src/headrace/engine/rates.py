# SPDX-License-Identifier: Apache-2.0
"""What a step costs on this machine, learned from the steps it has taken, and what follows for the next one's
size. Numbers in, numbers out."""

from __future__ import annotations

import math
from dataclasses import dataclass

# A step is planned to end so much before its limit, and by as much more as steps scatter on this machine:
# those that take unusually long should still end within twice the limit.
MARGIN = 0.1
USUAL_SCATTER = 0.1  # before it is measured
# Where the answers' tokens alone take all the time, prompts get this share of that time on top: they always
# go on, and the answers wait a quarter longer than they would anyway.
MIN_PROMPT_SHARE = 0.25
FIRST_CHUNK = 128  # while nothing has been measured
FORGETTING = 0.97  # weight of a step beside the next one
# While a long prompt comes in, all steps look alike and tell nothing of others: those of long ago still count
# a little.
SLOW_FORGETTING, SLOW_WEIGHT = 0.999, 0.02
OUTLIER = 4.0  # a step that took more than so many times what was foreseen counts as so many
DRIFT_SHARE = 0.2  # of a step in the running error
SCATTER_SHARE = 0.05  # of a step in how far steps are usually off
SWEEPS = 8
LATE_SHARE = 0.05  # of the first tokens that come later than they may
LATENESS_STEP = 0.1
FIRST_LATENESS, MAX_LATENESS = 1.25, 4.0
SHORTEST_FORECAST_S = 0.02  # nothing is learned from how much longer than this a shorter wait took


@dataclass(frozen=True, slots=True)
class StepShape:
    """What of a step its time depends on."""

    num_prompt_tokens: int  # of rows with several new tokens
    num_decode_rows: int  # rows with one
    attended: float  # sum over rows of new tokens times the tokens before them


@dataclass(frozen=True, slots=True)
class StepRates:
    """What was learned up to one moment."""

    fixed_s: float
    prompt_s: float  # a prompt token
    decode_s: float  # a decode row
    attended_s: float  # a pair of a new token and one before it
    margin: float  # steps are planned to take 1 / margin of their limit

    def seconds(self, num_prompt_tokens: float, num_decode_rows: int, attended: float) -> float:
        return (
            self.fixed_s
            + self.prompt_s * num_prompt_tokens
            + self.decode_s * num_decode_rows
            + self.attended_s * attended
        )

    def tokens_within(
        self, limit_s: float, num_decode_rows: int, decode_context: float, prompt_context: float
    ) -> float:
        """As of `StepCost`, but whole only by chance."""
        beside_s = self.seconds(0, num_decode_rows, decode_context)
        left_s = max(limit_s / self.margin - beside_s, MIN_PROMPT_SHARE * beside_s)
        # n tokens attend to n * context + n * n / 2 others.
        linear, square = self.prompt_s + self.attended_s * prompt_context, self.attended_s / 2
        root = linear + math.sqrt(linear * linear + 4 * square * left_s)
        if root <= 0:
            return FIRST_CHUNK
        # Of square * n * n + linear * n = left_s, in the form that allows for square = 0.
        num_tokens = max(1.0, 2 * left_s / root)
        # What a prompt token costs is not known yet where it seems to cost nothing.
        return num_tokens if self.prompt_s > 0 else min(num_tokens, FIRST_CHUNK)


class _Normal:
    """The normal equations of least squares over steps that fade."""

    def __init__(self, forgetting: float) -> None:
        self.gram = [[0.0] * 4 for _ in range(4)]
        self.moment = [0.0] * 4
        self._forgetting = forgetting

    def add(self, x: tuple[float, ...], step_s: float) -> None:
        weight = step_s**-2
        for i in range(4):
            row = self.gram[i]
            for j in range(4):
                row[j] = row[j] * self._forgetting + weight * x[i] * x[j]
            self.moment[i] = self.moment[i] * self._forgetting + weight * x[i] * step_s


class StepCost:
    """Seconds = fixed + a * prompt tokens + b * decode rows + c * attended, with no negative coefficient.

    Least squares of the relative error over exponentially forgotten steps, the normal equations solved by
    coordinate descent that stops at zero. A running error in front of it follows a machine that suddenly
    slows down before the coefficients do.
    """

    def __init__(self) -> None:
        self._recent = _Normal(FORGETTING)
        self._long_ago = _Normal(SLOW_FORGETTING)
        self._coefficients = [0.0] * 4
        self._log_drift = 0.0
        self._scatter = USUAL_SCATTER  # running mean of how far steps are off, as a logarithm
        self._num_steps = 0

    @property
    def is_known(self) -> bool:
        return self._num_steps > 0

    @property
    def rates(self) -> StepRates:
        """At this moment; all zero while nothing is known. Any thread may ask."""
        drift = self._drift
        fixed, prompt, decode, attended = self._coefficients
        margin = 1.0 + MARGIN + self._scatter
        return StepRates(fixed * drift, prompt * drift, decode * drift, attended * drift, margin)

    def seconds(self, shape: StepShape) -> float:
        """Of such a step; 0 while nothing is known."""
        return self._fitted(shape) * self._drift

    def learn(self, shape: StepShape, step_s: float) -> None:
        """A step took so long."""
        if step_s <= 0 or not math.isfinite(step_s):
            return
        foreseen_s = self._fitted(shape)
        if self._num_steps >= 8 and foreseen_s > 0:
            step_s = min(step_s, OUTLIER * foreseen_s)
            error = math.log(step_s / foreseen_s)
            self._scatter += SCATTER_SHARE * (min(abs(error - self._log_drift), 1.0) - self._scatter)
            self._log_drift += DRIFT_SHARE * (error - self._log_drift)
        self._num_steps += 1
        for normal in (self._recent, self._long_ago):
            normal.add(_features(shape), step_s)
        self._solve()

    def tokens_within(
        self, limit_s: float, *, num_decode_rows: int, decode_context: int, prompt_context: int
    ) -> int:
        """How many prompt tokens, behind `prompt_context` others, fit into a step of `limit_s` beside so many
        answers whose contexts sum to `decode_context`. At least one, see MIN_PROMPT_SHARE."""
        if not self.is_known:
            return FIRST_CHUNK
        num_tokens = self.rates.tokens_within(limit_s, num_decode_rows, decode_context, prompt_context)
        return int(min(num_tokens, 2**20))

    @property
    def _drift(self) -> float:
        """How much slower than fitted the last steps were; the fit itself follows a faster machine."""
        return math.exp(max(self._log_drift, 0.0))

    def _fitted(self, shape: StepShape) -> float:
        return sum(c * x for c, x in zip(self._coefficients, _features(shape), strict=True))

    def _solve(self) -> None:
        c, some, more = list(self._coefficients), self._recent, self._long_ago
        gram = [
            [a + SLOW_WEIGHT * b for a, b in zip(*rows, strict=True)]
            for rows in zip(some.gram, more.gram, strict=True)
        ]
        moment = [a + SLOW_WEIGHT * b for a, b in zip(some.moment, more.moment, strict=True)]
        for _ in range(SWEEPS):
            for i in (1, 2, 3, 0):  # what is not told apart yet counts for the tokens
                if gram[i][i] <= 0:
                    continue
                rest = sum(gram[i][j] * c[j] for j in range(4) if j != i)
                c[i] = max(0.0, (moment[i] - rest) / gram[i][i])
        self._coefficients = c  # in one go, for those who read on other threads


def _features(shape: StepShape) -> tuple[float, float, float, float]:
    return (1.0, float(shape.num_prompt_tokens), float(shape.num_decode_rows), shape.attended)


class OutputLengths:
    """How long answers are: a running mean over those that have ended."""

    def __init__(self, mean: float = 128.0) -> None:
        self._mean = mean
        self._num = 0

    @property
    def mean(self) -> float:
        return self._mean

    def learn(self, num_output: int) -> None:
        self._num += 1
        self._mean += (num_output - self._mean) / min(self._num, 64)


class Lateness:
    """How many times later than foreseen a first token may come: nineteen of twenty come sooner. A running
    quantile (adaptive conformal inference, Gibbs and Candès 2021), so that it holds whatever makes forecasts
    wrong on this machine and under this load."""

    def __init__(self) -> None:
        self._factor = FIRST_LATENESS

    @property
    def factor(self) -> float:
        """At least 1."""
        return self._factor

    def learn(self, foreseen_s: float, actual_s: float) -> None:
        is_late = actual_s > self._factor * max(foreseen_s, SHORTEST_FORECAST_S)
        self._factor += LATENESS_STEP * (is_late - LATE_SHARE)
        self._factor = min(max(self._factor, 1.0), MAX_LATENESS)
