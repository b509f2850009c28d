# SPDX-License-Identifier: Apache-2.0
"""`headrace run`: talk with a model in the terminal, or answer one prompt. The wait for the first token
begins when the process does, so nothing is imported here that this path does not need."""

from __future__ import annotations

import argparse
import io
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.api.llm import LLM
    from headrace.cli.conversation import Completion, Conversation
    from headrace.core.request import SamplingParams

DESCRIPTION = """\
Chat with a model in the terminal, or answer one prompt with -p. MODEL is what `headrace pull` takes: a short
name, hf:org/name, a URL or a path; it is pulled first if it is not here yet. With -p only the answer goes to
stdout. Without a terminal and without -p, all of stdin is the prompt. How tokens are drawn is as said below,
whatever the model's own files suggest.
"""

EXAMPLES = """\
examples:
  headrace run smollm2
  headrace run smollm2 -p "Why is the sky blue?" --max-tokens 100
  headrace run smollm2 --raw -p "Once upon a time" --temperature 0
  git diff | headrace run smollm2 --system "Write a commit message." -p -
"""

COMMANDS = """\
/system TEXT   say how the model should behave (without TEXT: no longer)
/reset         forget what was said
/stats         how the last answer went, and the engine's numbers
/help          these lines
/exit          leave (also Ctrl-D, or Ctrl-C twice)
Ctrl-C stops an answer. Many lines: paste them, or put them between \"\"\" and \"\"\"."""


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "run",
        help="chat with a model in the terminal, or answer one prompt",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="short name, hf:org/name[/file], URL or path")
    parser.add_argument("-p", "--prompt", metavar="TEXT", help="answer this and leave; - reads stdin")
    parser.add_argument("--raw", action="store_true", help="continue the text as it is, without a template")
    parser.add_argument(
        "--chat-template", metavar="JINJA", help="file, or the template itself, in place of the model's own"
    )
    parser.add_argument("--system", metavar="TEXT", help="how the model should behave")
    parser.add_argument(
        "--temperature", type=float, default=0.7, help="0: always the likeliest token (%(default)s)"
    )
    parser.add_argument("--top-p", metavar="P", type=float, default=0.95, help="1: off (%(default)s)")
    parser.add_argument("--top-k", metavar="K", type=int, default=0, help="0: off (%(default)s)")
    parser.add_argument(
        "--max-tokens", metavar="N", type=_at_least_1, help="default: as many as there is room for"
    )
    parser.add_argument("--seed", type=int, help="the same seed gives the same answer")
    parser.add_argument("--threads", metavar="N", type=int, help="default: one for each physical core")
    parser.add_argument(
        "--packed-cache",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the packed weights in HEADRACE_HOME, so that the next start packs nothing (default: on)",
    )
    parser.add_argument("--verbose", action="store_true", help="settings and times on stderr")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    from headrace.api.llm import LLM
    from headrace.core.request import SamplingParams

    params = SamplingParams(
        temperature=args.temperature,
        top_p=args.top_p,
        top_k=args.top_k,
        max_tokens=args.max_tokens,
        seed=args.seed,
    )
    prompt = _prompt(args)
    if args.verbose:
        from headrace.cli.log import log_to_stderr

        log_to_stderr()
    begin_s = time.perf_counter()
    _pull_if_absent(args.model)
    with LLM(
        args.model,
        num_threads=args.threads,
        chat_template=args.chat_template,
        packed_cache=args.packed_cache,
    ) as llm:
        if args.verbose:
            print(f"loaded in {time.perf_counter() - begin_s:.3f} s", file=sys.stderr)
        talk = _talk(llm, params, args)
        if prompt is None:
            return _Session(llm, talk, args.verbose).run()
        _show(talk.ask(prompt))
        if args.verbose:
            print(talk.timing, file=sys.stderr)
    return 0


def _prompt(args: argparse.Namespace) -> str | None:
    """The one prompt to answer; None to chat."""
    if args.prompt == "-" or (args.prompt is None and not sys.stdin.isatty()):
        return _prompt_of_stdin()
    prompt: str | None = args.prompt
    return prompt


def _prompt_of_stdin() -> str:
    from headrace.core.errors import ConfigError

    if isinstance(sys.stdin, io.TextIOWrapper):
        sys.stdin.reconfigure(encoding="utf-8", errors="strict")  # whatever the locale would have let pass
    try:
        text = sys.stdin.read()
    except UnicodeDecodeError as error:
        raise ConfigError(f"standard input is not UTF-8, which a prompt must be: {error.reason}") from error
    if not text.strip():
        raise ConfigError(
            "there is no prompt: standard input is empty. Write something to it, or give -p TEXT"
        )
    return text


def _at_least_1(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of tokens: it must be at least 1")
    return int(text)


def _pull_if_absent(source: str) -> None:
    from headrace.core.errors import CatalogueError
    from headrace.weights import catalogue

    try:
        catalogue.resolve(source)
    except CatalogueError:
        catalogue.pull(source)


def _talk(llm: LLM, params: SamplingParams, args: argparse.Namespace) -> Completion:
    from headrace.cli.conversation import Completion, Conversation
    from headrace.core.errors import ConfigError

    if not args.raw:
        return Conversation(llm, params, args.system)
    for option, value in (("--system", args.system), ("--chat-template", args.chat_template)):
        if value is not None:
            raise ConfigError(f"{option} is for chats, and --raw leaves the chat template out")
    return Completion(llm, params)


def _show(pieces: Iterator[str]) -> None:
    from headrace.core.errors import RequestError

    has_line = True
    try:
        for piece in pieces:
            print(piece, end="", flush=True)
    except RequestError:  # refused before the first piece, so that there is no line to end
        has_line = False
        raise
    finally:
        if has_line:
            print(flush=True)


class _Session:
    """Reads, answers, obeys commands, until the person leaves."""

    def __init__(self, llm: LLM, talk: Completion, verbose: bool) -> None:
        from headrace.cli.console import Console
        from headrace.cli.conversation import Conversation

        self._console = Console()
        self._llm = llm
        self._talk = talk
        self._chat: Conversation | None = talk if isinstance(talk, Conversation) else None
        self._verbose = verbose
        self._commands: dict[str, Callable[[str], None]] = {
            "/system": self._set_system,
            "/reset": self._reset,
            "/stats": self._stats,
            "/help": lambda _: print(COMMANDS),
        }

    def run(self) -> int:
        print(f"{self._llm.model.name}. /help lists the commands, Ctrl-D leaves.")
        num_interrupts = 0
        while True:
            try:
                text = self._console.read()
            except EOFError:
                print()
                return 0
            except KeyboardInterrupt:
                num_interrupts += 1
                if num_interrupts == 2:
                    print()
                    return 0
                print("\n(Ctrl-C again or Ctrl-D leaves)")
                continue
            num_interrupts = 0
            if text.strip() == "/exit":
                return 0
            self._take(text)

    def _take(self, text: str) -> None:
        word, _, rest = text.strip().partition(" ")
        if word in self._commands and "\n" not in text:
            self._commands[word](rest.strip())
        elif word.startswith("/") and word[1:].isalpha() and "\n" not in text:
            print(f"There is no command {word}; /help lists them")
        elif word:
            self._ask(text)

    def _ask(self, text: str) -> None:
        from headrace.core.errors import RequestError

        try:
            _show(self._talk.ask(text))
        except KeyboardInterrupt:
            print("(stopped)")
        except RequestError as error:
            hint = " /reset starts anew." if error.code == "context_length_exceeded" and self._chat else ""
            print(f"{error}{hint}")
        if self._verbose and self._talk.timing:
            print(self._talk.timing, file=sys.stderr)

    def _set_system(self, text: str) -> None:
        if self._chat is None:
            print("There is no chat template under --raw, so there is no system message")
            return
        self._chat.system = text or None
        print("From now on the model is told so" if text else "No system message any more")

    def _reset(self, _: str) -> None:
        if self._chat is not None:
            self._chat.reset()
        print("Forgotten")

    def _stats(self, _: str) -> None:
        stats = self._llm.model.engine.stats()
        if self._talk.timing:
            print(f"last answer: {self._talk.timing}")
        if self._chat is not None:
            print(f"conversation: {self._chat.num_turns} questions answered")
        print(f"engine: {stats.num_computed_tokens} tokens computed and {stats.num_output_tokens} drawn")
        print(f"context: {self._llm.model.resolved.max_model_len.value} tokens at most")
