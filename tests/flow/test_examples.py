"""Every example runs and says what its reader expects."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from octavo.testing.served import PATIENCE

EXAMPLES = Path(__file__).parents[2] / "examples"

EXPECTED = {
    "demo.py": "Paris",
    "offline.py": "Paris",
    "chat.py": "The capital of France is Paris.",
    "stream.py": "two: ",
    "structured.py": "{'city': ",
    "logprobs.py": "log-probability of the prompt: -",
}


def test_every_example_is_tried():
    by_server = {"openai_client.py"}
    assert {path.name for path in EXAMPLES.glob("*.py")} == EXPECTED.keys() | by_server


@pytest.mark.model
@pytest.mark.parametrize("name", EXPECTED)
def test_example(name):
    environment = os.environ | {"OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, str(EXAMPLES / name)], capture_output=True, text=True, timeout=PATIENCE, env=environment
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert EXPECTED[name] in done.stdout
