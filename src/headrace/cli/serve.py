# SPDX-License-Identifier: Apache-2.0
"""`headrace serve`: one model over HTTP, as OpenAI clients expect. Where it listens goes to stdout, once
it can answer; everything else to stderr."""

from __future__ import annotations

import argparse
import gc
import sys
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from headrace.api.served_model import ServedModel
    from headrace.core.config import ModelConfig

SWITCH_INTERVAL_S = 0.0005

DESCRIPTION = """\
Serve a model to OpenAI clients. MODEL is what `headrace pull` takes: a short name, hf:org/name, a URL or a
path; it is pulled first if it is not here yet. The port opens at once and answers 503 until the model is
loaded. SIGTERM or Ctrl-C lets running requests finish, a second one ends at once.
"""

EXAMPLES = """\
examples:
  headrace serve smollm2
  headrace serve ./model.gguf --port 8080 --served-model-name mine
  headrace serve smollm2 --host 0.0.0.0 --api-key "$KEY"

then:
  curl http://127.0.0.1:8000/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{"messages": [{"role": "user", "content": "Hello"}]}'
"""


MAX_NUM_QUEUED_REQS = 1024


def add_parser(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "serve",
        help="serve a model over HTTP, as OpenAI clients expect",
        description=DESCRIPTION,
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("model", metavar="MODEL", help="short name, hf:org/name[/file], URL or path")
    http = parser.add_argument_group("HTTP")
    http.add_argument("--host", default="127.0.0.1", help="address to listen on (default: %(default)s)")
    http.add_argument("--port", type=_port, default=8000, help="0 takes a free one (default: %(default)s)")
    # One value a time each: with nargs="+" they would take MODEL, where it comes last, for a value of theirs.
    http.add_argument(
        "--served-model-name",
        metavar="NAME",
        action="append",
        type=_filled,
        help="what requests call it; give it again for a further name (default: MODEL's name)",
    )
    http.add_argument(
        "--api-key",
        metavar="KEY",
        action="append",
        type=_filled,
        default=[],
        help="a key that requests must bring; give it again for a further one (default: none is needed)",
    )
    http.add_argument(
        "--allowed-origins",
        metavar="ORIGIN[,ORIGIN]",
        action="extend",
        type=_origins,
        default=[],
        help="web pages that may call from a browser; * is all (default: none)",
    )
    http.add_argument(
        "--drain-timeout",
        metavar="S",
        type=_seconds,
        default=30.0,
        help="seconds that running requests have after the first signal (default: %(default)g)",
    )
    model = parser.add_argument_group("model")
    model.add_argument("--chat-template", metavar="JINJA", help="file, or the template itself")
    model.add_argument("--threads", type=int, help="default: one for each physical core")
    model.add_argument("--max-model-len", metavar="N", type=int, help="tokens of prompt and answer together")
    model.add_argument("--kv-cache-memory-bytes", metavar="N", type=int, help="memory for K and V")
    model.add_argument(
        "--backend", choices=("cpu", "reference"), default="cpu", help="reference: plain numpy, slow"
    )
    model.add_argument(
        "--packed-cache",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep the packed weights in HEADRACE_HOME, so that the next start packs nothing (default: on)",
    )
    _add_scheduling(parser.add_argument_group("who is served when"))
    _add_reports(parser.add_argument_group("what is told"))
    parser.set_defaults(run=run)


def _add_scheduling(group: argparse._ArgumentGroup) -> None:
    group.add_argument("--max-num-seqs", metavar="N", type=int, help="answers computed at once")
    group.add_argument("--max-num-batched-tokens", metavar="N", type=int, help="tokens in one step")
    group.add_argument(
        "--max-itl-ms",
        metavar="MS",
        type=float,
        help="prompts are cut so that no running answer waits longer for its next token",
    )
    group.add_argument(
        "--max-num-queued-reqs",
        metavar="N",
        type=int,
        default=MAX_NUM_QUEUED_REQS,
        help="answers that may wait; further requests get 429 (default: %(default)s)",
    )
    group.add_argument(
        "--max-num-queued-tokens",
        metavar="N",
        type=int,
        help="prompt tokens that may wait; further requests get 429 (default: no limit)",
    )
    group.add_argument(
        "--scheduling-policy",
        choices=("fcfs", "priority", "fair", "deadline"),
        help="who goes first: who came first, the lower `priority`, the tenant that had least for its "
        "weight, the earliest TTFT target (default: fcfs)",
    )
    group.add_argument(
        "--tenant-weight",
        metavar="TENANT=W",
        action="append",
        type=_tenant_weight,
        default=[],
        help="for fair: a tenant's share, 1 if not given. TENANT is an API key, or without keys what "
        "X-Tenant-ID says; give it again for a further one",
    )
    group.add_argument(
        "--enable-prefix-caching",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="keep K and V for prompts that begin alike (default: on)",
    )
    group.add_argument(
        "--enable-chunked-prefill",
        action=argparse.BooleanOptionalAction,
        default=True,
        help="always on: prompts are computed in parts",
    )


def _add_reports(group: argparse._ArgumentGroup) -> None:
    group.add_argument(
        "--metrics-compat",
        choices=("vllm",),
        help="also give the numbers at /metrics under that server's names",
    )
    group.add_argument(
        "--enable-per-request-metrics",
        action="store_true",
        help="vLLM's `metrics` object in every answer",
    )


def run(args: argparse.Namespace) -> int:
    from headrace.api.app import AppOptions
    from headrace.api.server import Server, ServerOptions, listen, url_of
    from headrace.cli.log import log_to_stderr

    log_to_stderr()
    # The engine's thread wants the interpreter for a moment after each step, and must not wait until the one
    # that streams to clients has had its 5 ms.
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    config = config_of(args)
    begin_s = time.perf_counter()
    listener = listen(args.host, args.port)

    def on_ready(model: ServedModel) -> None:
        # What is there now stays: a collection that walks over a vocabulary holds every answer up.
        gc.collect()
        gc.freeze()
        took_s = time.perf_counter() - begin_s
        print(f"Serving {model.names[0]} at {url_of(listener)}/v1 (ready in {took_s:.1f} s)", flush=True)

    options = ServerOptions(
        drain_timeout_s=args.drain_timeout,
        app=AppOptions(
            api_keys=tuple(args.api_key),
            allowed_origins=tuple(args.allowed_origins),
            has_vllm_metrics=args.metrics_compat == "vllm",
            reports_metrics=args.enable_per_request_metrics,
        ),
    )
    server = Server(options, listener, lambda: _load(args, config), on_ready)
    return server.run()


def _load(args: argparse.Namespace, config: ModelConfig) -> ServedModel:
    from headrace.api.served_model import ServedModel
    from headrace.engine.admission import max_tokens_in
    from headrace.engine.build import load_model
    from headrace.observe.counts import StepCounts
    from headrace.weights.catalogue import pull

    pull(args.model)  # nothing to do when it is here
    step_counts = StepCounts()
    loaded = load_model(args.model, config, on_step=step_counts.on_step)
    names = args.served_model_name or dict.fromkeys((loaded.name, args.model))
    return ServedModel(
        names=tuple(names),
        created_s=int(time.time()),
        engine=loaded.engine,
        tokenizer=loaded.tokenizer,
        chat_template=loaded.chat_template,
        max_model_len=max_tokens_in(loaded.info),
        vocab_size=loaded.info.vocab_size,
        step_counts=step_counts,
        enable_prefix_caching=config.engine.enable_prefix_caching,
    )


def config_of(args: argparse.Namespace) -> ModelConfig:
    """Raises ConfigError."""
    from headrace.core.config import EngineConfig, ModelConfig
    from headrace.core.errors import ConfigError
    from headrace.text.chat_template import read_template

    if not args.enable_chunked_prefill:
        raise ConfigError(
            "--no-enable-chunked-prefill: prompts are always computed in parts here, so that running answers "
            "go on meanwhile. Leave the flag out; --max-itl-ms sets how long those may wait"
        )
    engine = {
        name: value
        for name in ("max_num_seqs", "max_num_batched_tokens", "max_itl_ms", "scheduling_policy")
        if (value := getattr(args, name)) is not None
    }
    return ModelConfig(
        backend=args.backend,
        num_threads=args.threads,
        max_model_len=args.max_model_len,
        kv_cache_bytes=args.kv_cache_memory_bytes,
        packed_cache=args.packed_cache,
        chat_template=None if args.chat_template is None else read_template(args.chat_template),
        engine=EngineConfig(
            **engine,
            max_num_queued_reqs=args.max_num_queued_reqs,
            max_num_queued_tokens=args.max_num_queued_tokens,
            tenant_weights=_tenants(args),
            enable_prefix_caching=args.enable_prefix_caching,
        ),
    )


def _tenants(args: argparse.Namespace) -> tuple[tuple[str, float], ...]:
    """The weights by the names that requests' tenants have in the engine."""
    from headrace.api.http.origin import digest_of_key
    from headrace.core.errors import ConfigError

    weights: dict[str, float] = {}
    for place, (tenant, weight) in enumerate(args.tenant_weight, start=1):
        if args.api_key and tenant not in args.api_key:
            raise ConfigError(
                f"--tenant-weight number {place} names none of the API keys; with --api-key, tenants are keys"
            )
        weights[digest_of_key(tenant) if args.api_key else tenant] = weight
    if weights and args.scheduling_policy != "fair":
        raise ConfigError("--tenant-weight is for --scheduling-policy fair only")
    return tuple(weights.items())


def _filled(text: str) -> str:
    if not text.strip():
        raise argparse.ArgumentTypeError("it is empty")  # an unset variable; an empty key would fit anyone
    return text


def _tenant_weight(text: str) -> tuple[str, float]:
    """TENANT itself may hold "="."""
    tenant, _, number = text.rpartition("=")
    try:
        weight = float(number)
    except ValueError:
        weight = -1.0
    if not tenant or not 0 < weight < float("inf"):
        raise argparse.ArgumentTypeError("it must be TENANT=W with a positive number W")
    return tenant, weight


def _origins(text: str) -> list[str]:
    return [_filled(origin.strip()) for origin in text.split(",")]


def _port(text: str) -> int:
    if not text.isdecimal() or int(text) > 65535:
        raise argparse.ArgumentTypeError(f"{text!r} is no port: 0 to 65535 are")
    return int(text)


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return value
