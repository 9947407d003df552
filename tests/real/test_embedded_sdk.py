"""The official OpenAI SDK against the embedded engine with the real llama-cpp-python, behind the real gateway."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.harness import ROOT, running
from tests.real.house import need_smollm2

MODEL = "smollm2-135m-instruct"


@pytest.mark.real
@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("slots", [1, 4])
def test_the_openai_sdk_is_served_whole(tmp_path: Path, slots: int) -> None:
    endpoint = {"name": "emb-0", "engine": "embedded", "model": str(need_smollm2()), "slots": slots, "threads": 1}
    with running(tmp_path, {"pools": [{"model": MODEL, "endpoints": [endpoint]}]}, seconds=120) as gateway:
        ran = subprocess.run(
            [sys.executable, ROOT / "tests" / "e2e" / "sdk_checks.py", gateway.base_url, MODEL],
            capture_output=True,
            text=True,
            timeout=350,
            check=False,
        )
        report = f"{ran.stdout}{ran.stderr}\n{gateway.log_text()[-4_000:]}"
        assert ran.returncode == 0, report
        # A script that checked nothing would end with 0 as well.
        assert ran.stdout.count("ok ") >= 18, report
