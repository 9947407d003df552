"""Types for options that name files; whoever reads a configuration makes such names absolute."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import inspect

__all__ = ["CommandName", "FileName", "ModelName", "file_fields"]

FileName = Annotated[str, msgspec.Meta(min_length=1, extra={"path": "file"})]
"""A file; relative to the folder of the configuration that names it."""

CommandName = Annotated[str, msgspec.Meta(min_length=1, extra={"path": "command"})]
"""A program: looked up on PATH if it is a bare word, else like a FileName."""

ModelName = Annotated[str, msgspec.Meta(min_length=1, extra={"path": "model"})]
"""A model by its name at a hub, such as `Qwen/Qwen3-8B`; or a folder, which begins with `.`, `/` or `~`."""


def file_fields(struct: type[msgspec.Struct]) -> list[str]:
    """The fields of a struct that name files which must be there."""
    info = inspect.type_info(struct)
    assert isinstance(info, inspect.StructType)
    return [field.name for field in info.fields if _is_file(field.type)]


def _is_file(kind: inspect.Type) -> bool:
    if isinstance(kind, inspect.UnionType):
        return any(_is_file(one) for one in kind.types)
    return isinstance(kind, inspect.Metadata) and (kind.extra or {}).get("path") == "file"
