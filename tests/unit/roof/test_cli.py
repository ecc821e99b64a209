"""The command line: finds its way quickly, and fails in a sentence."""

import io
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo import __version__
from octavo.cli.main import COMMANDS, main
from octavo.cli.terminal import waiting
from octavo.config.args import EngineArgs
from octavo.config.resolve import resolve
from octavo.launch.asked import bind
from octavo.launch.listening import everywhere, url_of
from octavo.launch.online import Announced, Clock
from octavo.testing.served import fake_model


def test_help_lists_every_command(capsys):
    assert main(["--help"]) == 0
    said = capsys.readouterr().out
    assert all(f"  {name} " in said for name in COMMANDS)
    assert main([]) == 2


def test_version(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"octavo {__version__}\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["srve"], "'serve'"),
        (["--versoin"], "unknown flag"),
        (["version"], "unknown command 'version' (did you mean '--version'?)"),
        (["serve", "--prot", "1"], "'--port'"),
        (["chat", "-m", "x"], "octavo takes it as MODEL, without a flag"),
        (["bench", "latency", "-m", "x"], "octavo calls it --model"),
        (["chat", "--system", "x"], "--system-prompt"),
        (["complete", "--modle-name", "x"], "--model-name"),
        (["bench", "latncy"], "'latency'"),
        (["bench", "latency", "--batch", "1"], "--batch-size"),
        (["env", "--dtyp", "x"], "--dtype"),
    ],
)
def test_what_is_not_known(words, hint, capsys):
    try:
        status = main(words)
    except SystemExit as end:
        status = end.code
    said = capsys.readouterr().err
    assert status == 2
    assert hint in said
    assert said.count("\n") == 1


@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_has_help(name, capsys):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert f"octavo {name}" in capsys.readouterr().out


def test_show_config(tmp_path, capsys):
    model = fake_model(tmp_path)
    words = ["--load-format", "dummy", "--port", "0", "--max-num-seqs", "3"]
    assert main(["serve", "--model", str(model), "--show-config", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.split() == ["schedule.max_num_seqs", "3", "#", "--max-num-seqs:", "as", "asked"] for line in lines)


def test_show_config_of_what_cannot_be(tmp_path, capsys):
    assert main(["serve", str(tmp_path), "--show-config"]) == 1
    said = capsys.readouterr().err
    assert "config.json" in said
    assert said.count("\n") == 1


def test_env_hides_secrets(monkeypatch, capsys, tmp_path):
    monkeypatch.setenv("OCTAVO_API_KEY", "hush")
    monkeypatch.setenv("HF_TOKEN", "hush")
    assert main(["env", str(fake_model(tmp_path))]) == 0
    said = capsys.readouterr().out
    assert "hush" not in said
    assert "octavo" in said
    assert "attention" in said


@pytest.mark.parametrize("command", ["chat", "complete"])
def test_a_server_that_is_not_there(command, capsys):
    assert main([command, "--url", "http://127.0.0.1:9", "-q", "hi"]) == 1
    assert "no server answers" in capsys.readouterr().err


def test_the_command_line_imports_nothing_heavy():
    code = (
        "import sys, octavo.cli.main as m; m.main(['--help']); import octavo.cli.serve as s; s.parser();"
        "heavy = {'torch', 'fastapi', 'pydantic', 'uvicorn', 'numpy', 'zmq', 'tokenizers', 'transformers'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stderr


def test_vllms_name_of_env(capsys, tmp_path):
    assert main(["collect-env", str(fake_model(tmp_path)), "--device", "tpu"]) == 0
    assert "unknown platform 'tpu'" in (said := capsys.readouterr().out)
    assert "known: cpu, cuda" in said


def test_tls_of_no_server(capsys):
    assert main(["chat", "--ssl-ca-certs", "x", "-q", "hi"]) == 1
    assert "--ssl-ca-certs is for a server: it needs --url" in capsys.readouterr().err


@pytest.mark.parametrize("terminal", [True, False])
def test_loading_is_told_to_a_terminal(monkeypatch, terminal):
    said = io.StringIO()
    monkeypatch.setattr(said, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr(sys, "stderr", said)
    monkeypatch.setenv("TERM", "xterm")
    with waiting("loading m ..."):
        assert said.getvalue() == ("loading m ..." if terminal else "")
    assert said.getvalue() == ("loading m ...\r\x1b[K" if terminal else "")


@pytest.mark.parametrize(
    ("host", "said"),
    [
        (None, " at http://127.0.0.1:{port} (all addresses; ready in "),
        ("127.0.0.1", " at http://127.0.0.1:{port} (ready"),
    ],
)
def test_where_a_server_is_said_to_be(host, said, tmp_path, capsys):
    with bind(host, 0) as listener:
        config = resolve(EngineArgs(model=str(fake_model(tmp_path)), device="cpu"))
        Announced(config, url_of(listener), everywhere(listener), 0.0, 0.0).say()
        assert said.format(port=listener.getsockname()[1]) in capsys.readouterr().out


@given(st.lists(st.floats(0, 100), min_size=3, max_size=6))
def test_phases_of_a_start_are_all_its_seconds(seconds):
    checks, server, *engine = seconds
    told = {str(index): value for index, value in enumerate(engine)}
    up = 5.0 + checks + 2.0 + sum(engine)
    phases = Clock(5.0, 5.0 + checks, up, told).phases(up + server)
    assert list(phases) == ["checks", "process and imports", *told, "server"]
    assert sum(phases.values()) == pytest.approx(up + server - 5.0)
