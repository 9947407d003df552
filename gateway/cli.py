"""The command `enginehouse`. Faults are told in plain words on stderr, with exit code 2."""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import click
import msgspec

from engines.launch import LaunchError
from gateway.config import Config, ConfigError, Endpoint, check, load
from gateway.config_schema import schema
from gateway.default import default_config
from gateway.key_file import KeyFileProblem, add_key
from router import Endpoint as RoutedEndpoint
from router.ranks import on_cpu

__all__ = ["main"]

CONFIG_SUFFIXES = (".yaml", ".yml")


class Fault(click.ClickException):
    """What the user can mend."""

    exit_code = 2

    def show(self, file: Any = None) -> None:
        click.echo(f"enginehouse: {self.message}", err=True)


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="enginehouse", prog_name="enginehouse")
def main() -> None:
    """A gateway in front of vLLM, TGI, llama.cpp and TensorRT-LLM that routes by what it measures."""


@main.command()
@click.argument("what", required=False, type=click.Path(path_type=Path), metavar="[CONFIG.yaml | MODEL.gguf]")
@click.option("--host", help="Address to listen on, in place of the configured one (127.0.0.1).")
@click.option("--port", type=click.IntRange(0, 65535), help="Port, in place of the configured one (8080); 0: any.")
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), help="How much is logged.")
def serve(what: Path | None, host: str | None, port: int | None, log_level: str | None) -> None:
    """Serve what a configuration says, or one GGUF model, or, without either, a small embedded model."""
    try:
        config = _configuration(what, host, port)
    except ConfigError as error:
        raise Fault(_told(error)) from None
    except LaunchError as error:
        raise Fault(str(error)) from None
    if log_level:
        config = msgspec.structs.replace(config, log=msgspec.structs.replace(config.log, level=log_level))
    # Imported here: the server's libraries are of no use to the other commands.
    sys.exit(importlib.import_module("gateway.app").run(config))


@main.group("config")
def config_group() -> None:
    """Check a configuration, or give its schema."""


@config_group.command("check")
@click.argument("file", type=click.Path(path_type=Path))
def check_command(file: Path) -> None:
    """Say everything that is wrong with FILE, or what it would serve, and what routing takes each endpoint for."""
    if file.suffix.lower() == ".gguf":
        raise Fault(f"{file} is a model and not a configuration; serve it with `enginehouse serve {file}`")
    try:
        config = load(file, files=True)
    except ConfigError as error:
        raise Fault(_told(error)) from None
    for pool in config.pools:
        named = ", ".join(f"{endpoint.name} ({endpoint.engine}, {_place(endpoint)})" for endpoint in pool.endpoints)
        click.echo(f"{pool.model}: policy {pool.policy}; {named}")
    click.echo(f"{file} is good.")


@config_group.command("schema")
@click.option("--output", type=click.Path(path_type=Path), help="Write to this file in place of the terminal.")
def schema_command(output: Path | None) -> None:
    """Print the configuration's JSON Schema, for editors."""
    text = json.dumps(schema(), indent=2) + "\n"
    if output is None:
        click.echo(text, nl=False)
    else:
        output.write_text(text, "utf-8")


@main.group("keys")
def keys_group() -> None:
    """Make API keys."""


@keys_group.command("add")
@click.argument("name")
@click.option("--file", default="keys.yaml", show_default=True, type=click.Path(path_type=Path), help="The key file.")
@click.option("--admin", is_flag=True, help="The key may read /admin, too.")
def keys_add(name: str, file: Path, admin: bool) -> None:
    """Make an API key for NAME and add its hash to the key file. The key is shown once.

    A gateway that runs with the file takes the key within a second.
    """
    try:
        key = add_key(file, name, admin)
    except KeyFileProblem as error:
        raise Fault(str(error)) from None
    click.echo(f"The key of {name}, shown only now ({file} keeps only its hash):", err=True)
    click.echo(key)


def _configuration(what: Path | None, host: str | None, port: int | None) -> Config:
    """What to serve. Raises ConfigError or LaunchError."""
    if what is None or what.suffix.lower() not in CONFIG_SUFFIXES:
        if what is not None and what.suffix.lower() != ".gguf":
            raise LaunchError(f"{what} is neither a configuration (.yaml) nor a model (.gguf)")
        return default_config(what, host or "127.0.0.1", 8080 if port is None else port)
    config = load(what, files=True)
    changed = {key: value for key, value in (("host", host), ("port", port)) if value is not None}
    config = msgspec.structs.replace(config, listen=msgspec.structs.replace(config.listen, **changed))
    check(config)
    return config


def _place(endpoint: Endpoint) -> str:
    """Where routing takes it to run."""
    return "cpu" if on_cpu(RoutedEndpoint(name=endpoint.name, engine=endpoint.engine, tags=endpoint.tags)) else "gpu"


def _told(error: ConfigError) -> str:
    head = f"{error.source or 'the configuration'} is refused:"
    return "\n".join([head, *(f"  {problem}" for problem in error.problems)])


if __name__ == "__main__":
    main()
