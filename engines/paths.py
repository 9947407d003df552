"""Types for options that name files; whoever reads a configuration makes such names absolute."""

from __future__ import annotations

from typing import Annotated

import msgspec

__all__ = ["CommandName", "FileName", "ModelName"]

FileName = Annotated[str, msgspec.Meta(min_length=1, extra={"path": "file"})]
"""A file that must be there; relative to the folder of the configuration that names it."""

CommandName = Annotated[str, msgspec.Meta(min_length=1, extra={"path": "command"})]
"""A program: looked up on PATH if it is a bare word, else like a FileName."""

ModelName = Annotated[str, msgspec.Meta(min_length=1, extra={"path": "model"})]
"""A model by its name at a hub, such as `Qwen/Qwen3-8B`; or a folder, which begins with `.`, `/` or `~`."""
