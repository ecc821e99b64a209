"""--structured-outputs-config and --structured-outputs-backend."""

import pytest

from octavo.config.args import EngineArgs
from octavo.config.resolve import resolve
from octavo.errors import ConfigError
from octavo.testing.served import fake_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(fake_model(tmp_path_factory.mktemp("model")))


def section(model, **more):
    return resolve(EngineArgs.of({"model": model, **more})).grammar


def test_the_defaults(model):
    found = section(model)
    assert (found.backend, found.whitespace, found.closed) == ("auto", None, False)


def test_what_is_asked(model):
    given = {"backend": "guidance", "disable_any_whitespace": True, "disable_additional_properties": True}
    found = section(model, structured_outputs_config=given)
    assert (found.backend, found.whitespace, found.closed) == ("guidance", "", True)
    assert section(model, structured_outputs_config='{"whitespace_pattern": " ?"}').whitespace == " ?"
    assert section(model, structured_outputs_backend="guidance").backend == "guidance"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ({"structured_outputs_config": {"backnd": "auto"}}, "did you mean 'backend'"),
        ({"structured_outputs_config": {"backend": "guidence"}}, "did you mean 'guidance'"),
        ({"structured_outputs_config": {"backend": 3}}, "'backend' cannot be 3"),
        ({"structured_outputs_config": {"backend": "auto"}, "structured_outputs_backend": "guidance"}, "different"),
        ({"structured_outputs_config": {"disable_any_whitespace": True, "whitespace_pattern": " "}}, "exclude"),
        ({"structured_outputs_backend": "outlines"}, "possible: auto, guidance, xgrammar"),
    ],
)
def test_what_is_wrong(model, more, words):
    with pytest.raises(ConfigError, match=words):
        section(model, **more)


def test_a_backend_that_is_not_installed_is_told_at_start(model, monkeypatch):
    monkeypatch.setattr("octavo.config.structured.find_spec", lambda name: None)
    with pytest.raises(ConfigError, match="pip install"):
        section(model, structured_outputs_backend="xgrammar")
