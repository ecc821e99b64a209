"""What is asked of the server: wrong values are one sentence at the start, and secrets are in no text."""

from dataclasses import replace

import pytest

from octavo.cli.main import main
from octavo.config.args import ServeArgs
from octavo.config.engine import DeviceSection
from octavo.errors import ConfigError
from octavo.launch.asked import api_servers, server_options
from octavo.testing.cores import fake_config
from octavo.testing.served import fake_model


@pytest.fixture(autouse=True)
def no_keys(monkeypatch):
    for name in ("OCTAVO_API_KEY", "VLLM_API_KEY"):
        monkeypatch.delenv(name, raising=False)


def options(**asked):
    return server_options(ServeArgs.of(asked))


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"write_timeout": 0}, "--write-timeout must be at least 0.1, got 0"),
        ({"max_prompts": 0}, "--max-prompts must be at least 1, got 0"),
        ({"max_prompts": 5000}, "--max-prompts must be at most 1024, got 5000"),
        ({"max_body_size": -1}, "--max-body-size must be at least 0"),
        ({"isolate_keys": True}, "--isolate-keys needs keys"),
        ({"enable_ssl_refresh": True}, "--enable-ssl-refresh needs --ssl-certfile"),
        ({"ssl_cert_reqs": 2}, "--ssl-cert-reqs needs --ssl-certfile"),
        ({"tool_call_parser": "hermse"}, "--tool-call-parser: unknown tool parser 'hermse' (did you mean 'hermes'?)"),
        ({"reasoning_parser": "nonsense"}, "--reasoning-parser: unknown reasoning parser 'nonsense'"),
        ({"api_key": ["good", ""]}, "--api-key: a key must not be empty"),
    ],
)
def test_what_cannot_be(asked, words):
    with pytest.raises(ConfigError) as refused:
        options(**asked)
    assert words in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("name", ["auto", "none", "", "qwen3", "deepseek_v3"])
def test_names_of_parsers(name):
    assert options(reasoning_parser=name).reasoning_parser == name


def test_keys_of_the_environment(monkeypatch):
    assert options().api_keys == ()
    monkeypatch.setenv("VLLM_API_KEY", "theirs")
    assert options().api_keys == ("theirs",)
    monkeypatch.setenv("OCTAVO_API_KEY", "ours")
    assert options().api_keys == ("ours",)
    assert options(api_key=["flag"]).api_keys == ("flag",)


def test_no_text_of_ours_shows_a_secret(tmp_path, capsys):
    assert "s3cret" not in repr(options(api_key=["s3cret"]))
    with pytest.raises(ConfigError) as refused:
        options(api_key={"a": "s3cret"})
    assert "s3cret" not in str(refused.value)
    model = str(fake_model(tmp_path / "model"))
    asked = ["serve", model, "--load-format", "dummy", "--api-key", "s3cret", "--port", "0", "--show-config"]
    assert main(asked) == 0
    assert main([*asked, "--ssl-keyfile-password", "s3cret"]) == 1
    for words in (["--api-key", "s3cret", "--no-such-flag"], ["--api-keys=s3cret"]):
        with pytest.raises(SystemExit):
            main(["serve", model, *words])
    said = capsys.readouterr()
    assert "text.max_stop" in said.out
    assert "s3cret" not in said.out + said.err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--max-stop", "65"], "--max-stop must be at most 64, got 65"),
        (["--max-stop", "-1"], "--max-stop must be at least 0"),
        (["--max-waiting-tokens", "-1"], "--max-waiting-tokens must be at least 0"),
        (["--max-waiting-time", "-1"], "--max-waiting-time must be at least 0 seconds"),
    ],
)
def test_limits_that_are_none(tmp_path, capsys, words, why):
    assert main(["serve", str(fake_model(tmp_path / "model")), *words, "--show-config"]) == 1
    assert why in capsys.readouterr().err


@pytest.mark.parametrize(
    ("platform", "cores", "asked", "count"),
    [
        ("cuda", 2, None, 1), ("cuda", 7, None, 1), ("cuda", 8, None, 2), ("cuda", 16, None, 4), ("cuda", 128, None, 4),
        ("cpu", 128, None, 1), ("cpu", 2, 3, 3), ("cuda", 128, 1, 1), ("cuda", 2, 64, 64),
    ],
)  # fmt: skip
def test_how_many_processes_serve(platform, cores, asked, count):
    config = replace(fake_config(), device=DeviceSection(platform=platform))
    found, why = api_servers(ServeArgs(api_server_count=asked), config, cores)
    assert found == count
    assert (why == "as asked") == (asked is not None)


@pytest.mark.parametrize(("words", "why"), [([], "the model runs on the cores"), (["-asc", "2"], "as asked")])
def test_how_many_processes_serve_is_shown_with_its_reason(tmp_path, capsys, words, why):
    folder = str(fake_model(tmp_path))
    assert (
        main(["serve", folder, "--load-format", "dummy", "--show-config", "--port", "0", "--device", "cpu", *words])
        == 0
    )
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith("server.api_server_count"))
    assert line.split()[1] == (words[1] if words else "1")
    assert f"--api-server-count: {why}" in line
