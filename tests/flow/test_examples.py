"""Every example runs and says what its reader expects."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
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


def run(name):
    command = [sys.executable, str(EXAMPLES / name)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    return subprocess.run(command, capture_output=True, text=True, timeout=2 * PATIENCE, env=environment)


@pytest.fixture(scope="module")
def runs():
    """Two at a time: most of an example's time is its start, which has use for one processor."""
    with ThreadPoolExecutor(2) as pool:
        yield {name: pool.submit(run, name) for name in EXPECTED}


@pytest.mark.model
@pytest.mark.parametrize("name", EXPECTED)
def test_example(runs, name):
    done = runs[name].result()
    assert done.returncode == 0, done.stderr[-2000:]
    assert EXPECTED[name] in done.stdout
