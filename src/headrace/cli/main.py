# SPDX-License-Identifier: Apache-2.0
"""The `headrace` command. Only the chosen subcommand's file is imported, since the wait for the first
token begins when the process does."""

from __future__ import annotations

import argparse
import importlib
import os
import signal
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from headrace import __version__
from headrace.core.env import read_environment
from headrace.core.errors import HeadraceError

EXAMPLES = """\
examples:
  headrace pull smollm2                 fetch a small model
  headrace run smollm2                  chat with it here
  headrace serve smollm2                serve it to OpenAI clients on 127.0.0.1:8000
  headrace run ./model.gguf -p "Hello"  answer one prompt from a file of your own

`headrace COMMAND --help` tells more, with examples. Pulled models lie in the platform's cache folder;
the environment variable HEADRACE_HOME names another.
"""


@dataclass(frozen=True, slots=True)
class Command:
    """A subcommand: its file in cli/ has `add_parser(subparsers)`, which sets `run(args) -> int`."""

    name: str
    help: str


COMMANDS = (
    Command("run", "chat with a model in the terminal, or answer one prompt"),
    Command("serve", "serve a model over HTTP, as OpenAI clients expect"),
    Command("pull", "bring a model to this machine"),
    Command("models", "list models: here, and known by name"),
    Command("rm", "delete a model from this machine"),
    Command("info", "say what is in a model file"),
    Command("kernels", "say which kernels this CPU runs"),
    Command("bench", "measure speed"),
    Command("eval", "measure quality"),
)


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command line (the process's own when None) and return its exit status."""
    words = list(sys.argv[1:] if argv is None else argv)
    try:
        read_environment()  # a misspelt HEADRACE_* variable stops every command
        parser = build_parser(words)
        args = parser.parse_args(words)
        run: Callable[[argparse.Namespace], int] | None = getattr(args, "run", None)
        if run is None:
            parser.print_help()
            return 0
        status = run(args)
        print(end="", flush=True)  # here, where a reader that has gone is caught
        return status
    except HeadraceError as error:
        print(f"headrace: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print(file=sys.stderr)
        return 128 + signal.SIGINT
    except BrokenPipeError:  # `headrace models | head`: nobody reads on, and that is no error
        _give_up_stdout()
        return 0
    except OSError as error:  # a full disk under stdout, a folder that cannot be
        _give_up_stdout()
        print(f"headrace: {error}", file=sys.stderr)
        return 1


def _give_up_stdout() -> None:
    """If it takes nothing, so that the interpreter's own last flush does not fail once more."""
    try:
        print(end="", flush=True)
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def build_parser(words: Sequence[str]) -> argparse.ArgumentParser:
    """A parser that knows the chosen subcommand in full and the others by name."""
    parser = argparse.ArgumentParser(
        prog="headrace",
        description="Serve language models, with the shortest wait for the first token.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"headrace {__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND")
    chosen = next((word for word in words if not word.startswith("-")), None)
    for command in COMMANDS:
        if command.name == chosen:
            importlib.import_module(f"headrace.cli.{command.name}").add_parser(subparsers)
        else:
            subparsers.add_parser(command.name, help=command.help, add_help=False)
    return parser


if __name__ == "__main__":
    sys.exit(main())
