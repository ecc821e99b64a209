"""`octavo chat`, `complete` and `top` against a live server."""

import io
import os
import select
import signal
import subprocess
import sys

import pytest

from octavo.cli.main import main
from octavo.testing.served import PATIENCE


@pytest.mark.parametrize("words", [["chat", "-q", "hi"], ["complete", "-q", "hi"]])
def test_one_answer(server, capsys, words):
    assert main([*words, "--url", server.url, "--max-tokens", "5", "--stats"]) == 0
    said = capsys.readouterr().out
    assert "to the first token" in said


def test_a_conversation(server, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("hi\nand now?\n/new\nonce more\n/exit\n"))
    assert (
        main(["chat", "--url", f"{server.url}/v1/", "--max-tokens", "3", "--stats", "--system-prompt", "be brief"]) == 0
    )
    assert capsys.readouterr().out.count("to the first token") == 3


def test_a_pipe(server, capsys, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.StringIO("the cat"))
    assert main(["complete", "--url", server.url, "--max-tokens", "3"]) == 0
    assert capsys.readouterr().out.startswith("the cat")


def test_what_the_server_refuses_is_told(server, capsys):
    assert main(["complete", "--url", server.url, "-q", "hi", "--max-tokens", "-3"]) == 1
    assert "max_tokens" in capsys.readouterr().err
    assert main(["chat", "--url", server.url, "-q", "hi", "--model-name", "other"]) == 1
    assert "does not exist" in capsys.readouterr().err
    assert main(["chat", "some/model", "--url", server.url, "-q", "hi"]) == 1
    assert "--model-name" in capsys.readouterr().err


def test_top_shows_a_running_server(server, capsys):
    assert server.post("/v1/completions", {"prompt": "hi", "max_tokens": 9, "ignore_eos": True})[0] == 200
    server.until("metrics of the request", lambda: server.metric("vllm:generation_tokens_total") >= 9)
    server.until("rest", lambda: server.metric("vllm:num_requests_running") == 0)
    assert main(["top", f"{server.url}/v1", "--once", "--interval", "0.1"]) == 0
    said = capsys.readouterr().out
    assert "tiny" in said
    assert "0 running" in said
    assert "ms" in next(line for line in said.splitlines() if "time to first token" in line)


def test_keys_of_any_letters(server, capsys):
    """A server without keys takes any; what cannot be sent is told."""
    for words in (["chat", "-q", "hi", "--max-tokens", "2", "--url"], ["top", "--once", "--interval", "0.1"]):
        assert main([*words, server.url, "--api-key", "ключ-é"]) == 0
        assert main([*words, server.url, "--api-key", "a\nb"]) == 1
        assert "control character" in capsys.readouterr().err


def test_top_says_what_is_wrong(server, capsys):
    for words, told in (
        (["http://127.0.0.1:9"], "no server answers"),
        (["ftp://nowhere"], "must begin with http://"),
        ([server.url, "--interval", "0"], "--interval must be from 0.1"),
    ):
        assert main(["top", *words, "--once"]) == 1
        assert told in capsys.readouterr().err


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
def test_a_terminal(server, tmp_path):
    """Ctrl-C at the prompt does not end; top shows its screen and goes at q."""
    import pty

    def drive(words, *typed):
        master, slave = pty.openpty()
        env = os.environ | {"XDG_STATE_HOME": str(tmp_path), "TERM": "xterm"}
        command = [sys.executable, "-m", "octavo", *words]
        child = subprocess.Popen(command, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True)
        os.close(slave)
        said = b""
        try:
            for awaited, data in typed:
                while awaited not in said:
                    assert select.select([master], [], [], PATIENCE)[0], said
                    said += os.read(master, 65536)
                said = said[said.index(awaited) + len(awaited) :]
                if data == b"\x03":
                    child.send_signal(signal.SIGINT)
                    # One that comes just before readline waits is seen with the next: Python looks only when it wakes.
                    while not select.select([master], [], [], 5)[0]:
                        child.send_signal(signal.SIGINT)
                else:
                    os.write(master, data)
            return child.wait(PATIENCE)
        finally:
            child.kill()
            child.wait()
            os.close(master)

    chat = ["chat", "--url", server.url, "--max-tokens", "3", "--stats"]
    typed = [(b"> ", b"\x03"), (b"/exit ends)\r\n> ", b"hi\n"), (b"to the first token", b""), (b"> ", b"/exit\n")]
    assert drive(chat, *typed) == 0
    assert (tmp_path / "octavo" / "chat_history").exists()
    assert drive(["top", server.url, "--interval", "0.1"], (b"latency", b""), (b"latency", b"q")) == 0
