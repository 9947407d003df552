"""The official OpenAI SDK, in both majors that are in use, against a real model behind the real gateway."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.conftest import MODEL
from tests.e2e.harness import ROOT, Gateway

SCRIPT = Path(__file__).with_name("sdk_checks.py")

INTERPRETERS = {
    "3": Path(sys.executable),
    "2": ROOT / ".venv-openai2" / "bin" / "python",
}
"""The SDK's major version -> an interpreter that should have it."""


def installed_major(interpreter: Path) -> str | None:
    if not interpreter.exists():
        return None
    if interpreter == Path(sys.executable):
        try:
            return importlib.metadata.version("openai").partition(".")[0]
        except importlib.metadata.PackageNotFoundError:
            return None
    ask = "import importlib.metadata as m; print(m.version('openai'))"
    answer = subprocess.run([interpreter, "-c", ask], capture_output=True, text=True, timeout=60, check=False)
    return answer.stdout.strip().partition(".")[0] or None


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("major", INTERPRETERS)
def test_the_openai_sdk_of_this_major_is_served_whole(embedded: Gateway, major: str) -> None:
    interpreter = INTERPRETERS[major]
    if installed_major(interpreter) != major:
        pytest.skip(f"no openai {major}.x in {interpreter.parent.parent.name}")
    ran = subprocess.run(
        [interpreter, SCRIPT, embedded.base_url, MODEL],
        capture_output=True,
        text=True,
        timeout=360,
        check=False,
    )
    report = f"{ran.stdout}{ran.stderr}\n{embedded.log_text()[-4_000:]}"
    assert ran.returncode == 0, report
    # A script that checked nothing would end with 0 as well.
    assert ran.stdout.count("ok ") >= 18, report
    assert "skip " not in ran.stdout, report
