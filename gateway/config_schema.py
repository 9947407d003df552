"""The JSON Schema of the configuration file, for editors that complete and check while one types.

Made from the same structs that decode the file, engine by engine.
"""

from __future__ import annotations

import copy
from typing import Any

import msgspec

import engines
from engines import launch
from gateway.config import Config, Endpoint
from gateway.config_endpoint import common_fields
from router import policies

__all__ = ["schema"]

_VARIABLE = {"type": "string", "pattern": r"\$\{[A-Za-z_][A-Za-z0-9_]*(:-[^}]*)?\}"}
_REF = "#/$defs/{name}"


def schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12."""
    _, parts = msgspec.json.schema_components([Config], ref_template=_REF)
    for definition in parts.values():
        _describe(definition)
    config, parts = parts["Config"], {name: part for name, part in parts.items() if name not in ("Config", "Endpoint")}
    for name in ("policy", "policies"):
        place = parts["Pool"]["properties"][name]
        (place if name == "policy" else place["items"])["enum"] = list(policies.names())
    for kind in engines.available():
        parts[f"endpoint_{kind}"] = _endpoint(kind, parts)
    parts["Endpoint"] = {"oneOf": [{"$ref": _REF.format(name=f"endpoint_{kind}")} for kind in engines.available()]}
    made = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        **config,
        "title": "Enginehouse configuration",
        "$defs": dict(sorted(parts.items())),
    }
    closed: dict[str, Any] = _with_variables(made)
    return closed


def _endpoint(kind: str, parts: dict[str, Any]) -> dict[str, Any]:
    """One engine's endpoint: the keys of all, its own options, and how to start it where it can be."""
    names = common_fields()
    launch_type, options_type = launch.launch_type(kind), engines.options_type(kind)
    types = [Endpoint, options_type] + ([launch_type] if launch_type else [])
    _, found = msgspec.json.schema_components(types, ref_template=_REF)
    common, options = found.pop("Endpoint"), found.pop(options_type.__name__)
    if launch_type:
        parts[f"launch_{kind}"] = _describe(found.pop(launch_type.__name__))
    for name, part in found.items():
        if name in parts and parts[name] != _describe(copy.deepcopy(part)):
            raise ValueError(f"two structs of the configuration have the name {name}")
        parts[name] = _describe(part)
    properties = {
        "name": common["properties"]["name"],
        "engine": {"const": kind},
        **options["properties"],
        **{name: part for name, part in common["properties"].items() if name in names},
    }
    required = ["name", "engine", *(name for name in options.get("required", ()) if name != "url")]
    made = {"type": "object", "properties": properties, "required": required, "additionalProperties": False}
    if "url" not in options["properties"]:  # the gateway runs it itself
        del properties["url"]
        return made
    properties["url"] = {"type": "string"}
    if launch_type:
        properties["launch"] = {"$ref": _REF.format(name=f"launch_{kind}")}
        made["oneOf"] = [{"required": ["url"]}, {"required": ["launch"]}]
    else:
        required.append("url")
    return made


def _describe(part: Any) -> Any:
    """Close an object against unknown keys."""
    if part.get("type") == "object" and "properties" in part:
        part["additionalProperties"] = False
        part.pop("title", None)
    return part


def _with_variables(part: Any) -> Any:
    """Let a `${VARIABLE}` stand wherever a number, a truth value or a word from a list may."""
    if isinstance(part, list):
        return [_with_variables(item) for item in part]
    if not isinstance(part, dict):
        return part
    kind = part.get("type")
    if kind in ("integer", "number", "boolean") or (("enum" in part or "pattern" in part) and kind != "object"):
        rest = {key: part[key] for key in ("default", "description") if key in part}
        return {**rest, "anyOf": [{key: one for key, one in part.items() if key not in rest}, dict(_VARIABLE)]}
    return {key: one if key in ("default", "const") else _with_variables(one) for key, one in part.items()}
