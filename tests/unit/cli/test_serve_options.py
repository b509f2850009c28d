# SPDX-License-Identifier: Apache-2.0
"""The command line of `headrace serve`: options that hold several values leave MODEL alone, and those of the
engine become its config."""

from __future__ import annotations

import argparse

import pytest

from headrace.api.http.origin import digest_of_key
from headrace.cli.main import build_parser
from headrace.cli.serve import config_of
from headrace.core.config import EngineConfig
from headrace.core.errors import ConfigError


def parsed(*words: str) -> argparse.Namespace:
    line = ["serve", *words]
    return build_parser(line).parse_args(line)


@pytest.mark.parametrize("option", ["--api-key", "--served-model-name", "--allowed-origins"])
def test_the_model_may_come_last(option: str) -> None:
    assert parsed(option, "x", "smollm2").model == "smollm2"
    assert parsed("smollm2", option, "x").model == "smollm2"


def test_several_values() -> None:
    args = parsed(
        "--api-key", "k,1", "--api-key=l", "--served-model-name", "a", "m", "--served-model-name", "b"
    )
    assert (args.model, args.api_key, args.served_model_name) == ("m", ["k,1", "l"], ["a", "b"])
    origins = parsed("--allowed-origins", "http://a, http://b", "--allowed-origins", "*", "m").allowed_origins
    assert origins == ["http://a", "http://b", "*"]


def test_none_are_given() -> None:
    args = parsed("m")
    assert (args.api_key, args.allowed_origins, args.served_model_name) == ([], [], None)


@pytest.mark.parametrize("option", ["--api-key", "--served-model-name", "--allowed-origins"])
def test_an_unset_variable_is_no_value(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed(option, "", "m")
    assert f"argument {option}: it is empty" in capsys.readouterr().err


def engine_of(*words: str) -> EngineConfig:
    return config_of(parsed("m", *words)).engine


def test_engine_options() -> None:
    config = engine_of(
        *("--max-num-seqs", "3", "--max-num-batched-tokens", "64", "--max-itl-ms", "40.5"),
        *("--max-num-queued-reqs", "5", "--max-num-queued-tokens", "600"),
        *("--scheduling-policy", "fair", "--tenant-weight", "a=2", "--tenant-weight", "b=c=0.5"),
        "--no-enable-prefix-caching",
    )
    assert config == EngineConfig(
        max_num_seqs=3,
        max_num_batched_tokens=64,
        max_itl_ms=40.5,
        max_num_queued_reqs=5,
        max_num_queued_tokens=600,
        scheduling_policy="fair",
        tenant_weights=(("a", 2.0), ("b=c", 0.5)),
        enable_prefix_caching=False,
    )


def test_engine_options_left_out() -> None:
    """A server's queue has an end; all else is as the engine has it."""
    assert engine_of() == EngineConfig(max_num_queued_reqs=1024)
    assert engine_of("--enable-prefix-caching", "--enable-chunked-prefill") == engine_of()


def test_weights_of_keys() -> None:
    """By the name that their tenants have; the keys themselves go no further."""
    words = ("--scheduling-policy", "fair", "--api-key", "k=1", "--tenant-weight", "k=1=3")
    assert engine_of(*words).tenant_weights == ((digest_of_key("k=1"), 3.0),)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--no-enable-chunked-prefill"], "--max-itl-ms"),
        (["--tenant-weight", "a=2"], "--scheduling-policy fair"),
        (["--scheduling-policy", "fair", "--api-key", "k", "--tenant-weight", "secret=2"], "number 1"),
        (["--max-itl-ms", "0"], "max_itl_ms"),
        (["--max-itl-ms", "nan"], "max_itl_ms"),
        (["--max-num-queued-reqs", "-1"], "max_num_queued_reqs"),
        (["--max-num-queued-tokens", "-1"], "max_num_queued_tokens"),
    ],
)
def test_options_that_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        engine_of(*words)
    assert "secret" not in str(refused.value), "it may be a key with a typing error"


@pytest.mark.parametrize("weight", ["a", "a=", "=2", "a=0", "a=-1", "a=x", "a=inf", "a=nan"])
def test_weights_that_are_none(weight: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parsed("m", "--tenant-weight", weight)
    assert "TENANT=W" in capsys.readouterr().err
