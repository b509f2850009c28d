# SPDX-License-Identifier: Apache-2.0
"""The command line of `headrace serve`: options that hold several values leave MODEL alone."""

from __future__ import annotations

import argparse

import pytest

from headrace.cli.main import build_parser


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
