"""The house's shape: who may import whom, how long things get, and that what is stated about the project is true."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PACKAGES = ("engines", "router", "gateway")
SOURCES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
MAY_IMPORT = {"engines": {"engines"}, "router": {"router", "engines"}, "gateway": {"gateway", "router", "engines"}}
HTTP_CLIENTS = {"httpx", "httpx_aiohttp", "aiohttp", "requests", "httpcore"}
SERVERS = {"litestar", "uvicorn"}
MODULES = [".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__") for file in SOURCES]


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text("utf-8"))


def imports(file: Path) -> set[str]:
    """The top-level names of everything that a file imports, also inside functions."""
    found: set[str] = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            found |= {name.name.split(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}: relative import"
            found.add((node.module or "").split(".")[0])
    return found


def exported(file: Path) -> list[str] | None:
    for node in tree(file).body:
        if isinstance(node, ast.Assign) and any(isinstance(t, ast.Name) and t.id == "__all__" for t in node.targets):
            names: list[str] = ast.literal_eval(node.value)
            return names
    return None


def label(file: Path) -> str:
    return str(file.relative_to(ROOT))


def test_imports_go_one_way() -> None:
    wrong = {
        label(file): against
        for file in SOURCES
        if (against := imports(file) & {*PACKAGES, "tests"} - MAY_IMPORT[label(file).split("/")[0]])
    }
    assert wrong == {}


def test_http_clients_are_known_to_one_file_only() -> None:
    assert [label(file) for file in SOURCES if imports(file) & HTTP_CLIENTS] == [
        "engines/connector.py",
        "engines/upstream.py",
    ]


def test_servers_are_known_to_the_edge_only() -> None:
    edge = re.compile(r"gateway/(api/.*|app|server)\.py")
    assert [label(file) for file in SOURCES if imports(file) & SERVERS and not edge.fullmatch(label(file))] == []


@pytest.mark.parametrize(
    ("package", "unwanted"),
    [
        ("router", ["httpx", "aiohttp", "tritonclient", "grpc", "llama_cpp", "xllamacpp", "litestar", "asyncio"]),
        ("engines", ["httpx", "aiohttp", "tritonclient", "grpc", "llama_cpp", "xllamacpp", "litestar", "router"]),
        ("gateway", ["tritonclient", "grpc", "llama_cpp", "xllamacpp", "vllm"]),
    ],
)
def test_importing_a_package_loads_nothing_heavy(package: str, unwanted: list[str]) -> None:
    code = f"import sys, {package}; print(*[name for name in {unwanted} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


def test_a_file_is_one_idea_and_ends_before_300_lines() -> None:
    lengths = {label(file): len(file.read_text("utf-8").splitlines()) for file in SOURCES}
    assert {name: length for name, length in lengths.items() if length > 300} == {}


def test_a_function_has_at_most_50_statements() -> None:
    long = [
        f"{label(file)}: {node.name}"
        for file in SOURCES
        for node in ast.walk(tree(file))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and sum(isinstance(part, ast.stmt) for part in ast.walk(node)) - 1 > 50
    ]
    assert long == []


def test_every_module_says_what_it_is() -> None:
    assert [label(file) for file in SOURCES if not ast.get_docstring(tree(file))] == []


def test_every_module_exports_what_it_says() -> None:
    wrong = []
    for file, module in zip(SOURCES, MODULES, strict=True):
        names = exported(file)
        if names is None:
            wrong += [] if file.name == "__init__.py" else [f"{module} has no __all__"]
            continue
        loaded = importlib.import_module(module)
        wrong += [f"{module}.{name} is not there" for name in names if not hasattr(loaded, name)]
        wrong += [f"{module}.{name} stands twice" for name in set(names) if names.count(name) > 1]
    assert wrong == []


def test_imports_use_public_names_only() -> None:
    """What begins with an underscore stays in its module."""
    wrong = [
        f"{label(file)}: {name.name}"
        for file in SOURCES
        for node in ast.walk(tree(file))
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in PACKAGES
        for name in node.names
        if name.name.startswith("_")
    ]
    assert wrong == []


def test_a_run_says_which_tests_it_left_out_and_what_runs_them() -> None:
    asked = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q", "-m", "not bench"]
    done = subprocess.run([*asked, "tests/bench"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert re.search(r"^left out: \d+ bench \(make bench\)$", done.stdout, re.MULTILINE), done.stdout + done.stderr


def test_the_version_is_the_changelogs_newest() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    newest = re.search(r"^## \[([^\]]+)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert newest is not None
    assert newest[1] == version


def test_every_folder_of_tests_is_a_package() -> None:
    """Or `tests/gateway` would shadow `gateway`."""
    folders = {file.parent for file in (ROOT / "tests").rglob("test_*.py")}
    assert [str(folder) for folder in folders if not (folder / "__init__.py").exists()] == []


def test_constraints_are_plain_pins_that_the_project_asks_for() -> None:
    lines = (ROOT / "deploy" / "constraints.txt").read_text().splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    assert pins
    assert [pin for pin in pins if not re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.!+]+", pin)] == []
    names = [re.sub(r"[-_.]+", "-", pin.split("==")[0]).lower() for pin in pins]
    assert names == sorted(set(names))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = [*project["dependencies"], *project["optional-dependencies"]["dev"]]
    wanted = {re.sub(r"[-_.]+", "-", re.split(r"[^A-Za-z0-9._-]", one)[0]).lower() for one in asked}
    assert wanted <= set(names)


def test_the_project_names_no_path_of_a_developers_machine() -> None:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    found = []
    for name in listed.stdout.split("\n"):
        file = ROOT / name
        if (
            name
            and file.is_file()
            and file.suffix in (".py", ".md", ".yaml", ".toml", ".json", "")
            and name != label(Path(__file__))
        ):
            text = file.read_text("utf-8", "replace")
            found += [f"{name}: {match[0]}" for match in re.finditer(r"/work/\w+|/root/\w+|/home/\w+", text)]
    assert found == []
