"""schemathesis over the OpenAPI document: whatever it makes of it, the server answers as the document says."""

import pytest

from octavo.testing.scripted import Scripted
from tests.contract import agents
from tests.contract.document import Document

schemathesis = pytest.importorskip("schemathesis")
from schemathesis import engine  # noqa: E402
from schemathesis.config import SchemathesisConfig  # noqa: E402
from schemathesis.engine import events  # noqa: E402

KEY = "key"
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
#: Routes with bodies so large that to cover them takes thousands of requests; a part of them is enough each time.
FLAGS = ["--max-body-size", "256K", "--max-model-len", "256", "--api-key", KEY]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    with Scripted(agents.folder(tmp_path_factory.mktemp("agent")), FLAGS) as found:
        found.say("", agents.THOUGHT + "Sunny." + agents.CALL)
        yield found


def failures(server, phases, examples, key=KEY):
    """What is wrong with the answers, and the statuses of all of them."""
    config = {
        "base-url": server.url,
        "headers": {"Authorization": f"Bearer {key}"} if key else {},
        "cache": {"enabled": False},
        "seed": 1,
        "request-timeout": 240,
        "continue-on-failure": True,
        "warnings": False,
        "generation": {"max-examples": examples, "deterministic": True, "database": "none", "no-shrink": True},
        "phases": {name: {"enabled": name in phases} for name in ("examples", "coverage", "fuzzing", "stateful")},
        "checks": {"enabled": False} | {name: {"enabled": True} for name in CHECKS}
        | {"not_a_server_error": {"enabled": True, "expected-statuses": ["2xx", "4xx", "501"]}},
    }  # fmt: skip
    document = Document(server, KEY, closed=False).whole
    schema = schemathesis.openapi.from_dict(document, config=SchemathesisConfig.from_dict(config))
    found, statuses = [], []
    for event in engine.from_schema(schema).execute():
        if isinstance(event, events.NonFatalError | events.FatalError):
            found.append(event)
        if not isinstance(event, events.ScenarioFinished):
            continue
        statuses += [one.response.status_code for one in event.recorder.interactions.values() if one.response]
        for checks in event.recorder.checks.values():
            for check in checks:
                if check.failure_info is not None:
                    said = check.failure_info.failure
                    found.append(f"{event.label}: {said.title}: {said.message}\n{check.failure_info.code_sample}")
    return found, statuses


def test_examples_and_fuzzing(server):
    found, statuses = failures(server, ("examples", "fuzzing"), 8)
    assert not found, "\n\n".join(map(str, found[:5]))
    assert {200, 400, 404, 501} <= set(statuses)


def test_without_a_key(server):
    found, statuses = failures(server, ("examples", "fuzzing"), 1, key=None)
    assert not found, "\n\n".join(map(str, found[:5]))
    assert set(statuses) == {200, 401}


@pytest.mark.slow
def test_all_phases(server):
    found, statuses = failures(server, ("examples", "coverage", "fuzzing"), 40)
    assert not found, "\n\n".join(map(str, found[:5]))
    assert len(statuses) > 1000
