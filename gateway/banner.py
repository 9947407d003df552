"""What `enginehouse serve` prints once it is up: where to point a client, and two calls that work as pasted."""

from __future__ import annotations

import json
import shlex
import sys

from gateway.config import Config
from gateway.default import MODEL

__all__ = ["banner", "base_url", "curl_line", "loading", "python_snippet"]

# With these settings the small model, which rambles without a cap, answers "The capital of France is Paris."
QUESTION = "Name the capital of France."
KEY_VARIABLE = "ENGINEHOUSE_KEY"


def base_url(host: str, port: int) -> str:
    """The URL to give to a client on this machine: `http://127.0.0.1:8080/v1`."""
    if host in ("0.0.0.0", "localhost"):
        host = "127.0.0.1"
    host = "::1" if host == "::" else host
    return f"http://[{host}]:{port}/v1" if ":" in host else f"http://{host}:{port}/v1"


def loading(config: Config) -> str:
    """One line to print while the models load."""
    started = [pool.model for pool in config.pools if any(endpoint.launch for endpoint in pool.endpoints)]
    return f"Loading {', '.join(started)} ..." if started else "Starting ..."


def banner(config: Config, base_url: str) -> str:
    """The text for a terminal. `base_url` ends in `/v1`."""
    keyed = config.auth is not None
    model = config.pools[0].model
    lines = ["", "Enginehouse is ready.", "", f"  base URL  {base_url}"]
    lines += [f"  {'model ' if not n else '      '}    {pool.model}" for n, pool in enumerate(config.pools)]
    if model == MODEL:
        lines += [
            "            (135M parameters: a toy, to show that it works; serve yours: enginehouse serve MODEL.gguf)"
        ]
    if keyed:
        lines += [f"  API key   one from {config.auth.keys}; the examples read ${KEY_VARIABLE}"] if config.auth else []
    else:
        lines += ["  API key   none needed"]
    lines += ["", "Try it with curl:", "", curl_line(base_url, model, keyed)]
    lines += [
        "",
        f"or with Python ({shlex.quote(sys.executable)} -m pip install openai):",
        "",
        python_snippet(base_url, model, keyed),
        "",
    ]
    return "\n".join(lines)


def curl_line(base_url: str, model: str, keyed: bool = False) -> str:
    """One line for a shell that streams an answer."""
    body: dict[str, object] = {"model": model, "messages": [{"role": "user", "content": QUESTION}]}
    body |= {"temperature": 0, "max_tokens": 64, "stream": True}
    key = f' -H "Authorization: Bearer ${KEY_VARIABLE}"' if keyed else ""
    data = shlex.quote(json.dumps(body, ensure_ascii=False))
    url = shlex.quote(f"{base_url}/chat/completions")  # an IPv6 address holds brackets
    return f"curl -N {url} -H 'Content-Type: application/json'{key} -d {data}"


def python_snippet(base_url: str, model: str, keyed: bool = False) -> str:
    """A few lines for a file or an interactive Python, without blank lines or indentation."""
    key = f'os.environ["{KEY_VARIABLE}"]' if keyed else '"none"'
    message = json.dumps([{"role": "user", "content": QUESTION}])
    lines = ["import os"] if keyed else []
    lines += [
        "from openai import OpenAI",
        f"client = OpenAI(base_url={base_url!r}, api_key={key})",
        f"answer = client.chat.completions.create(model={model!r}, messages={message}, temperature=0, max_tokens=64)",
        "print(answer.choices[0].message.content)",
    ]
    return "\n".join(lines)
