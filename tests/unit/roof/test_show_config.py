"""`octavo serve --show-config`: the value of every flag, no secret, and a start's failures with no model in memory."""

import json
import logging
import socket
from dataclasses import fields

import pytest

from octavo.cli.main import main
from octavo.config.args import ServeArgs
from octavo.config.resolve import DECISIONS
from octavo.config.show import FLAGS
from octavo.testing.certificates import PASSPHRASE, Papers
from octavo.testing.served import fake_model


@pytest.fixture(autouse=True)
def nothing_said(monkeypatch):
    for name in ("OCTAVO_API_KEY", "VLLM_API_KEY", "OCTAVO_LOG_LEVEL", "OCTAVO_LOG_FORMAT"):
        monkeypatch.delenv(name, raising=False)
    octavo = logging.getLogger("octavo")
    level = octavo.level
    yield
    octavo.setLevel(level)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model that could be loaded, but for its weights."""
    return str(fake_model(tmp_path_factory.mktemp("model")))


@pytest.fixture
def show(model, capsys):
    """Flags -> (exit status, standard output, standard error)."""

    def run(*flags):
        status = main(["serve", model, "--load-format", "dummy", "--show-config", "--port", "0", *flags])
        said = capsys.readouterr()
        return status, said.out, said.err

    return run


def values(text):
    """Flag -> (value, why) of each line."""
    found = {}
    for line in text.splitlines():
        name_value, _, told = line.partition("  # ")
        flags, _, why = told.partition(": ")
        value = name_value.partition(" ")[2].strip()
        found |= dict.fromkeys(flags.split(", "), (value, why))
    return found


def test_every_flag_is_told(show):
    status, out, _ = show()
    assert status == 0
    assert set(values(out)) == {"--" + spec.name.replace("_", "-") for spec in fields(ServeArgs)}
    assert set(FLAGS) <= set(DECISIONS)


def test_what_was_asked_and_why(show, monkeypatch):
    monkeypatch.setenv("OCTAVO_API_KEY", "hush")
    monkeypatch.setenv("OCTAVO_LOG_LEVEL", "error")
    status, out, _ = show(
        "--host", "127.0.0.1", "--max-body-size", "1k", "--disable-web-ui", "--tool-call-parser", "hermes"
    )
    found = values(out)
    assert status == 0
    assert "hush" not in out
    assert found["--host"] == ("127.0.0.1", "as asked")
    assert found["--max-body-size"] == ("1000", "as asked")
    assert found["--disable-web-ui"] == ("true", "as asked")
    assert found["--tool-call-parser"] == ("hermes", "as asked")
    assert found["--write-timeout"] == ("60.0", "default")
    assert found["--api-key"] == ("1 key", "from OCTAVO_API_KEY")
    assert found["--log-level"] == ("error", "from OCTAVO_LOG_LEVEL")
    assert found["--reasoning-parser"][1].startswith("default; the model's template shows")


def test_what_only_a_start_can_tell_is_told_as_far_as_it_is_known(show):
    _, out, _ = show("--device", "cpu")
    found = values(out)
    assert found["--block-size"] == ("16", "the attention backend's choice")
    assert found["--kv-cache-memory-bytes"] == ("(chosen at start)", "50% of what is free then, 4.0 GiB at most")
    assert found["--max-model-len"][0] == "512"
    assert json.loads(found["--speculative-config"][0])["method"] == "grammar"
    _, out, _ = show("--device", "cpu", "--block-size", "8", "--kv-cache-memory", "1GiB")
    found = values(out)
    assert found["--block-size"] == ("8", "as asked")
    assert found["--kv-cache-memory-bytes"] == (str(1 << 30), "as asked")


def test_keys_and_passphrases_are_not_shown(show, tmp_path):
    papers = Papers(tmp_path)
    keys = papers.file("keys", b"a-key\nanother-key\n")
    flags = ["--ssl-certfile", papers.cert, "--ssl-keyfile", papers.locked, "--ssl-keyfile-password-file", papers.word]
    status, out, _ = show(*flags, "--api-key-file", keys, "--api-key", "third-key")
    found = values(out)
    assert status == 0
    assert found["--api-key"][0] == "3 keys"
    assert found["--ssl-certfile"] == (papers.cert, "as asked")
    assert found["--ssl-keyfile-password"][0] == "(hidden)"
    assert not [secret for secret in ("a-key", "another-key", "third-key", PASSPHRASE) if secret in out]


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--port", "99999"], "--port must be from 0 to 65535"),
        (["--grpc-port", "99999"], "--grpc-port must be from 0 to 65535"),
        (["--host", "no.such.host.invalid"], "--host"),
        (["--tool-call-parser", "nonsense"], "--tool-call-parser: unknown tool parser 'nonsense'"),
        (["--tool-call-parser", "hermes", "--reasoning-parser", "openai_gptoss"], "do not go together"),
        (["--ssl-certfile", "/nope.pem"], "--ssl-certfile: /nope.pem cannot be read"),
        (["--api-key-file", "/nope"], "--api-key-file: /nope cannot be read"),
        (["--device", "tpu"], "unknown platform 'tpu'"),
        (["--attention-backend", "nonsense"], "unknown attention backend 'nonsense'"),
        (["--device", "cpu", "--attention-backend", "triton"], "no attention backend serves this model: triton needs"),
        (["--load-format", "safetensors"], "safetensors"),
        (["--otlp-traces-endpoint", "nowhere"], "--otlp-traces-endpoint must be a URL"),
        (["--enable-control-routes", "--host", "0.0.0.0"], "--enable-control-routes needs a key"),
    ],
)
def test_it_fails_as_a_start_would(show, flags, words, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    status, out, err = show(*flags)
    assert (status, out) == (1, "")
    assert words in err
    assert err.count("\n") == 1


def test_a_broken_tokenizer_is_seen(tmp_path, capsys):
    folder = fake_model(tmp_path)
    (folder / "tokenizer.json").write_text(json.dumps({"model": 3}))
    assert main(["serve", str(folder), "--load-format", "dummy", "--show-config", "--port", "0"]) == 1
    assert "tokenizer" in capsys.readouterr().err


def test_a_port_in_use_is_told_and_no_failure(show):
    with socket.create_server(("127.0.0.1", 0)) as other:
        status, out, _ = show("--host", "127.0.0.1", "--port", str(other.getsockname()[1]))
    assert status == 0
    assert values(out)["--port"][1] == "as asked; in use by another program now"
