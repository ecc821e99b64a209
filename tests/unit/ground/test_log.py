"""What the log's lines look like, and what they never hold."""

import contextvars
import json
import logging
import subprocess
import sys

import pytest

from octavo.common import argv, log
from octavo.errors import ConfigError


def record(message, *args, exc_info=None):
    return logging.LogRecord("octavo.x", logging.WARNING, __file__, 1, message, args, exc_info)


def written(form, one, name=""):
    def write():
        log.request_id.set(name)
        log._Tag().filter(one)
        return (log._JSON() if form == "json" else log._Text()).format(one)

    return contextvars.Context().run(write)


@pytest.mark.parametrize("form", ["text", "json"])
@pytest.mark.parametrize(
    "text", ["a\n12:00:00 I octavo: forged", "a\r\nb", "\x1b[2Jgone", "\x9b31m", "a\u2028b", "\x00"]
)
def test_no_line_forges_another(form, text):
    said = written(form, record("%s asked", text))
    first, *rest = said.split("\n")
    assert all(line.startswith("    ") for line in rest)
    assert not {char for char in said if ord(char) < 32 or 127 <= ord(char) < 160 or char in "\u2028\u2029"} - {"\n"}
    if form == "json":
        assert not rest
        assert json.loads(first)["message"].endswith(" asked")


def test_an_object_a_line():
    try:
        raise ValueError("broken <object at 0x7f0000001234>")
    except ValueError:
        one = record("it %s", "failed", exc_info=sys.exc_info())
    line = json.loads(written("json", one, "request-7"))
    assert set(line) == {"time", "level", "logger", "process", "message", "request_id", "exception"}
    assert (line["level"], line["logger"], line["message"], line["request_id"]) == (
        "warning", "octavo.x", "it failed", "request-7",
    )  # fmt: skip
    assert line["time"].endswith("Z")
    assert "0x7f" not in line["exception"]


def test_a_request_is_named_and_addresses_and_places_are_not():
    try:
        log.setup("no such level")
    except ConfigError:
        said = written("text", record("failed at %s", hex(id(log)), exc_info=sys.exc_info()), "request-7")
    assert " octavo.x request-7: failed" in said
    assert hex(id(log)) not in said
    assert 'File "octavo/common/log.py"' in said
    assert str(sys.prefix) not in said


def test_the_access_log_leaves_out_what_is_asked_of_a_path():
    one = record('%s - "%s %s HTTP/%s" %d', "1.2.3.4:5", "GET", "/v1/models?api_key=s3cret", "1.1", 401)
    assert log.without_query(one)
    assert one.getMessage() == '1.2.3.4:5 - "GET /v1/models HTTP/1.1" 401'


def test_formats_that_are_none(monkeypatch):
    monkeypatch.setenv("OCTAVO_LOG_FORMAT", "xml")
    with pytest.raises(ConfigError, match="OCTAVO_LOG_FORMAT is 'xml'; possible: text, json"):
        log.setup()


def test_a_child_shows_what_its_parent_shows(monkeypatch):
    monkeypatch.delenv("OCTAVO_LOG_LEVEL", raising=False)
    monkeypatch.setattr(logging.getLogger("octavo"), "level", logging.NOTSET)
    logging.getLogger("octavo").manager._clear_cache()
    assert log.level() == logging.getLevelName(logging.getLogger().level)
    monkeypatch.setenv("OCTAVO_LOG_LEVEL", "debug")
    assert log.level() == "debug"


def test_secrets_leave_the_command_line():
    code = (
        "import sys; from octavo.common.argv import hide; hide(['s3cret', 'other one', 'a']);"
        "print(open('/proc/self/cmdline').read().replace(chr(0), '|'))"
    )
    words = ["--api-key", "s3cret", "--key=other one", "s3cret-not-whole", "a", "data"]
    said = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=True).stdout
    assert said.strip().endswith("|--api-key|******|--key=*********|s3cret-not-whole|*|data|")
    argv.hide([])
