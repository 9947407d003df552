"""Hugging Face's text-generation-inference. Its streams answer 200 whatever is wrong; the errors are inside."""

from __future__ import annotations

from engines.dialects import TGI
from engines.openai_http import OpenAIEngine, Options

__all__ = ["Options", "Tgi", "build"]


class Tgi(OpenAIEngine):
    """An `Engine`: one running text-generation-inference server."""

    kind = "tgi"
    dialect = TGI


def build(name: str, options: Options) -> Tgi:
    """The engine of the endpoint `name`."""
    return Tgi(name, options)
