"""`octavo chat`: its commands, what is typed, what is shown, over a source that says what a test gave it."""

import io
import json
import stat

import pytest

from octavo.cli import main, terminal
from octavo.cli.chat import COMMANDS, Session
from octavo.cli.source import Local, Piece, Remote, Usage
from octavo.cli.talk import OPTIONS, load, save
from octavo.errors import ConfigError, RequestError, RequestFailed


class Said:
    """Answers with what stands in ``answers``, one after another; ``asked``: what it got."""

    def __init__(self, *answers):
        self.answers, self.asked, self.usage = list(answers), [], None

    def chat(self, messages, options):
        self.asked.append(([dict(one) for one in messages], dict(options)))
        for piece in self.answers.pop(0):
            if isinstance(piece, BaseException):
                raise piece
            yield piece if isinstance(piece, Piece) else Piece(piece)
        self.usage = Usage(10, 3, 8)

    def close(self):
        pass


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


def screen(monkeypatch):
    """What is printed from here on goes to a terminal."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm")
    found = Terminal()
    monkeypatch.setattr("sys.stdout", found)
    return found


def talk(session, *lines):
    session.run(iter(lines))


def test_a_conversation_grows():
    source = Said(["Hel", "lo"], ["again"])
    talk(Session(source, {"top_p": 0.5}, "Be kind."), "hi", "more", "/exit", "never")
    system = {"role": "system", "content": "Be kind."}
    first = [system, {"role": "user", "content": "hi"}]
    assert source.asked[0] == (first, {"top_p": 0.5})
    assert source.asked[1][0] == [
        *first,
        {"role": "assistant", "content": "Hello"},
        {"role": "user", "content": "more"},
    ]


def test_commands_change_what_is_asked(capsys):
    source = Said(["a"], ["b"], ["c"], ["d"], ["/e"])
    session = Session(source, {})
    talk(session, "/system Be brief.", "/set temperature 0.25", "/set max-tokens 7", "/set stop END", "one")
    assert source.asked[-1][0][0] == {"role": "system", "content": "Be brief."}
    assert source.asked[-1][1] == {"temperature": 0.25, "max_tokens": 7, "stop": ["END"]}
    talk(session, "/set temperature", "/system -", "/clear", "two")
    assert source.asked[-1] == ([{"role": "user", "content": "two"}], {"max_tokens": 7, "stop": ["END"]})
    talk(session, "/retry")
    assert source.asked[-1] == source.asked[-2]
    assert session.messages[-1]["content"] == "c"
    talk(session, "/new", "//slash")
    assert source.asked[-1][0] == [{"role": "user", "content": "/slash"}]
    talk(session, "/stats", "/help")
    said = capsys.readouterr().out
    assert "3 tokens" in said
    assert "prompt 10 (8 cached)" in said
    assert all(f"/{name}" in said for name in COMMANDS)


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("/hlep", "did you mean 'help'"),
        ("/set temprature 1", "did you mean 'temperature'"),
        ("/set temperature hot", "takes a number"),
        ("/set seed 1.5", "takes a whole number"),
        ("/retry", "nothing to retry"),
        ("/save", "a file's name is needed"),
        ("/load /no/such/file", "cannot be read"),
        ("/save /no/such/folder/x", "cannot be written"),
        ("/stats maybe", "takes on or off"),
    ],
)
def test_what_cannot_be_done_is_told_and_the_talk_goes_on(capsys, line, told):
    source = Said(["fine"])
    talk(Session(source, {}), line, "hi")
    assert told in capsys.readouterr().err
    assert source.asked


def test_ctrl_c_stops_the_answer_and_keeps_what_was_said(capsys):
    source = Said(["half", KeyboardInterrupt()], [KeyboardInterrupt()], ["whole"])
    session = Session(source, {})
    talk(session, "one", "two", "three")
    assert [one["content"] for one in session.messages] == ["one", "half", "three", "whole"]
    assert "whole" in capsys.readouterr().out


def test_an_answer_that_fails_takes_its_question_back(capsys):
    session = Session(Said(["ha", RequestFailed("the engine is gone")], ["ok"], [RequestFailed("again")]), {})
    talk(session, "one", "two", "/retry")
    assert [one["content"] for one in session.messages] == ["two", "ok"]
    assert "the engine is gone" in capsys.readouterr().err


ANSWER = [Piece("\nhm \x1b]0;title\x07", "reasoning"), Piece("so", "reasoning"), Piece("\x1b[2Jyes\tand\n\x9bno")]


def test_a_terminal_shows_reasoning_dim_and_no_control_characters(monkeypatch):
    said = screen(monkeypatch)
    talk(Session(Said([*ANSWER, Piece("look", "call"), Piece('{"a"', "arguments")]), {}), "hi")
    assert said.getvalue() == (
        '\x1b[2mhm ]0;title\x1b[0m\x1b[2mso\x1b[0m\n[2Jyes\tand\nno\n\x1b[2mcalls look \x1b[0m\x1b[2m{"a"\x1b[0m\n'
    )


def test_a_pipe_gets_the_answer_alone(capsys):
    talk(Session(Said(ANSWER), {}), "hi")
    assert capsys.readouterr().out == ANSWER[-1].text + "\n"


@pytest.mark.parametrize(
    ("typed", "messages"),
    [
        ("one\n\n  \ntwo\n", ["one", "two"]),
        ("one \\\n and more\\\nend\nnext\n", ["one \n and more\nend", "next"]),
        ('"""\nfirst\n\n/exit\n"""\nnext\n', ["first\n\n/exit", "next"]),
        ('"""one line"""\n', ["one line"]),
        ('"""never\nclosed', ["never\nclosed"]),
        ("open\\", ["open"]),
    ],
)
def test_messages_of_many_lines(monkeypatch, typed, messages):
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    assert list(terminal.read_messages()) == messages


def test_ctrl_c_at_the_prompt_does_not_end(monkeypatch, capsys):
    lines = iter(["half\\", KeyboardInterrupt(), "whole", EOFError()])

    def typed(prompt=""):
        found = next(lines)
        if isinstance(found, BaseException):
            raise found
        return found

    monkeypatch.setattr("builtins.input", typed)
    assert list(terminal.read_messages()) == ["whole"]


def test_a_saved_talk_comes_back(tmp_path):
    path = tmp_path / "talk.json"
    session = Session(Said(["a\u2028ü"], ["next"]), {"temperature": 0.5}, "Be kind.")
    talk(session, "hi", f"/save {path}", f"/save {path}")
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    other = Session(source := Said(["b"]), {})
    talk(other, f"/load {path}", "more")
    assert source.asked[0][0][:3] == [{"role": "system", "content": "Be kind."}, *session.messages]
    assert source.asked[0][1] == {"temperature": 0.5}


def test_other_files_are_neither_read_nor_overwritten(tmp_path):
    path = tmp_path / "x.json"
    good = {"system": None, "messages": [], "options": {}}
    wrong = [
        "no json", "[]", "{}", "[" * 100_000, json.dumps(good | {"system": 3}),
        json.dumps(good | {"options": {"x": 1}}),
        json.dumps(good | {"messages": [{"role": "root", "content": ""}]}), json.dumps(good | {"messages": [3]}),
        json.dumps(good | {"messages": [{"role": "user", "content": None}]}),
    ]  # fmt: skip
    for text in wrong:
        path.write_text(text)
        with pytest.raises(ConfigError, match="no saved conversation"):
            load(str(path))
        with pytest.raises(ConfigError, match="choose another name"):
            save(str(path), None, [], {})
        assert path.read_text() == text
    assert set(OPTIONS) >= {"temperature", "top_p", "max_tokens", "seed"}


def test_the_history_is_kept_short_and_private(monkeypatch, tmp_path):
    readline = pytest.importorskip("readline")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.stdin", Terminal())
    monkeypatch.setattr(terminal, "LINES", 5)
    readline.clear_history()
    with terminal.History():
        for index in range(20):
            readline.add_history(f"line {index}")
    path = tmp_path / "octavo" / "chat_history"
    assert [one for one in path.read_text().splitlines() if one.startswith("line")] == [
        f"line {index}" for index in range(15, 20)
    ]
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    readline.clear_history()
    with terminal.History(keep=False):
        readline.add_history("secret")
    assert "secret" not in path.read_text()
    with terminal.History():
        found = [readline.get_history_item(at + 1) for at in range(readline.get_current_history_length())]
        assert "line 19" in found
    readline.clear_history()


def test_what_a_server_streams_is_told_by_its_kind(monkeypatch):
    call = {"index": 0, "id": "c", "type": "function", "function": {"name": "look", "arguments": ""}}
    deltas = [
        {"role": "assistant", "content": ""}, {"reasoning": "hm"}, {"reasoning_content": "so"}, {"content": "yes"},
        {"tool_calls": [call]}, {"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]},
    ]  # fmt: skip
    chunks = [{"choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    usage = {"prompt_tokens": 9, "completion_tokens": 6, "prompt_tokens_details": {"cached_tokens": 8}}
    chunks.append({"choices": [], "usage": usage})
    text = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks) + ": a comment\n\ndata: [DONE]\n\n"
    asked = []

    def answer(self, path, body):
        asked.append((path, body))
        return io.BytesIO(text.encode())

    monkeypatch.setattr(Remote, "_open", answer)
    source = Remote("http://x/v1", "key", "m")
    pieces = list(source.chat([{"role": "user", "content": "hi"}], {"top_k": 3}))
    assert pieces == [
        Piece("hm", "reasoning"), Piece("so", "reasoning"), Piece("yes"), Piece("look", "call"),
        Piece("{}", "arguments"),
    ]  # fmt: skip
    assert source.usage == Usage(9, 6, 8)
    assert asked[0][0] == "/v1/chat/completions"
    assert (asked[0][1]["model"], asked[0][1]["stream"], asked[0][1]["top_k"]) == ("m", True, 3)


def test_an_engine_here_tells_reasoning_apart_too(monkeypatch, tmp_path):
    from octavo.config import resolve
    from octavo.config.args import EngineArgs
    from octavo.testing import scripted, tokenizer

    template = tokenizer.CHAT_TEMPLATE + "{% if false %}<think></think><tool_call></tool_call>{% endif %}"
    folder = scripted.model(tmp_path, template, specials=("<think>", "</think>", "<tool_call>", "</tool_call>"))
    scripted.Script(folder).say("", "<think>\nHm.\n</think>\n\nSunny.")
    real = resolve.resolve
    monkeypatch.setattr(resolve, "resolve", lambda args: real(args, worker=scripted.WORKER))
    source = Local(EngineArgs(model=str(folder)))
    try:
        pieces = list(source.chat([{"role": "user", "content": "hi"}], {}))
        whole = {kind: "".join(one.text for one in pieces if one.kind == kind) for kind in ("reasoning", "content")}
        assert whole == {"reasoning": "\nHm.\n", "content": "Sunny."}
        assert source.usage is not None
        assert source.usage.output > 8
        assert "".join(source.complete("hi", {"max_tokens": 5}))
    finally:
        source.close()


@pytest.mark.parametrize("word", ["chat", "complete"])
def test_what_a_user_gets_wrong_is_a_sentence(word, capsys, monkeypatch):
    assert main.main([word, "The capital of France is"]) == 1
    assert "goes behind -q" in capsys.readouterr().err

    def refuse(self, path, body):
        raise RequestError("a valid API key is needed")

    monkeypatch.setattr(Remote, "_open", refuse)
    assert main.main([word, "-q", "x", "--url", "http://127.0.0.1:9"]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "a valid API key is needed" in said
    monkeypatch.setattr(Remote, "_open", lambda *_: io.BytesIO(b'{"data": []}'))
    assert main.main([word, "-q", "x", "--url", "http://127.0.0.1:9"]) == 1
    assert "--model-name" in capsys.readouterr().err
