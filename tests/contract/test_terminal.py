"""`octavo chat` and `octavo complete` against a live server."""

import io

import pytest

from octavo.cli.main import main


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
