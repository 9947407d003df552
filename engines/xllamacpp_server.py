"""llama.cpp's own server from the package `xllamacpp`, run as a program of its own with llama-server's option names.

It serves until SIGTERM, or until its standard input ends: then whoever started it is gone. The API key comes in
LLAMA_API_KEY, as with llama-server. Meant to be run by its path; imports nothing of this project.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any

__all__ = ["main", "parameters"]


def parameters(options: argparse.Namespace, api_key: str) -> Any:
    """The server's parameters (xllamacpp.CommonParams)."""
    import xllamacpp

    made = xllamacpp.CommonParams()
    made.model.path = options.model
    made.hostnames = [options.host]
    made.port = options.port
    made.n_parallel = options.parallel
    made.n_ctx = options.ctx_size
    made.cpuparams.n_threads = options.threads
    made.cpuparams_batch.n_threads = options.threads_batch or options.threads
    made.endpoint_metrics = True
    made.endpoint_slots = True
    made.use_jinja = True
    made.cache_ram_mib = options.cache_ram
    made.ui = False
    if options.alias:
        made.model_alias = {options.alias}
    if options.chat_template_file:
        with open(options.chat_template_file, encoding="utf-8") as stream:
            made.chat_template = stream.read()
    if options.embeddings:
        made.embedding = True
        pooling = options.pooling.upper()
        made.pooling_type = getattr(xllamacpp.llama_pooling_type, f"LLAMA_POOLING_TYPE_{pooling}")
    if api_key:
        made.api_keys = [api_key]
    return made


def main(arguments: list[str]) -> int:
    """Serve until the standard input ends. Exit code 1 where the server does not start."""
    parser = argparse.ArgumentParser(description="llama.cpp's server from xllamacpp")
    parser.add_argument("--model", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--parallel", type=int, default=4)
    parser.add_argument("--ctx-size", type=int, default=4096)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--threads-batch", type=int)
    parser.add_argument("--alias")
    parser.add_argument("--chat-template-file")
    parser.add_argument("--embeddings", action="store_true")
    parser.add_argument("--pooling", default="mean")
    parser.add_argument("--cache-ram", type=int, default=256)
    options = parser.parse_args(arguments)

    import xllamacpp

    try:
        server = xllamacpp.Server(parameters(options, os.environ.get("LLAMA_API_KEY", "")))
    except (RuntimeError, ValueError) as error:
        print(f"llama.cpp did not start: {error}", file=sys.stderr, flush=True)
        return 1
    print(f"serving at {server.listening_address}", flush=True)
    while os.read(sys.stdin.fileno(), 65536):
        pass
    # The server's threads are of no use to anybody now, and its destructor may wait for running calls.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
