"""Known attacks on servers of this kind, each against a live server that must answer the next request as ever.

What is tested beside it: keys and heads (test_door), values out of range and bodies (test_errors), certificates
(flow/test_tls), templates (unit/front/test_chat).
"""

import json
import os
import pickle
import socket
import stat
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
import zmq
from fastapi.exceptions import RequestValidationError

from octavo.errors import BadRequest, EngineDead, RequestFailed
from octavo.front.server import errors
from octavo.testing.served import PATIENCE, VOCAB, Served, fake_model

CHAT = "/v1/chat/completions"
TEXT = "/v1/completions"
USER = {"role": "user", "content": "hi"}
CHECKOUT = str(Path(__file__).parents[2])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """It trusts the templates of requests: the sandbox is all that stands between them and the machine."""
    model = fake_model(tmp_path_factory.mktemp("model"), latency=0.001)
    found = Served([str(model), "--served-model-name", "tiny", "--trust-request-chat-template", "--block-size", "8"])
    try:
        yield found.ready()
    finally:
        found.stop()


@pytest.fixture(autouse=True)
def still_alive(server):
    yield
    assert server.post(TEXT, {"prompt": "a", "max_tokens": 1})[0] == 200
    assert server.process.poll() is None


def refused(answer, *statuses):
    status, body = answer
    assert status in (statuses or (400,)), body
    message = body["error"]["message"]
    assert len(message) < 2000
    for leak in ("0x", "Traceback", "site-packages", "octavo/", "/tmp/", "/home/", CHECKOUT, " object at "):
        assert leak not in message
    return message


# -- sockets --


class Touch:
    """Unpickled, it leaves a file behind."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.system, (f"touch {self.path}",)


def processes(server):
    api = psutil.Process(server.process.pid)
    return [api, *api.children(recursive=True)]


def listening(server):
    """(addresses over the network, paths of sockets in the file system)"""
    addresses, paths = set(), set()
    for process in processes(server):
        for one in process.net_connections("inet"):
            if one.status == psutil.CONN_LISTEN or one.type == socket.SOCK_DGRAM:
                addresses.add((one.laddr.ip, one.laddr.port))
        paths |= {one.laddr for one in process.net_connections("unix") if isinstance(one.laddr, str) and one.laddr}
    return addresses, {path for path in paths if path.startswith("/")}


def test_only_the_api_listens_on_the_network(server):
    where = urlsplit(server.url)
    addresses, paths = listening(server)
    assert addresses == {(where.hostname, where.port)}
    assert paths
    for path in paths:
        folder = Path(path).parent
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700, path
        assert folder.stat().st_uid == os.getuid()


def test_a_pickle_is_never_read(server, tmp_path):
    mark = tmp_path / "mark"
    for protocol in (0, pickle.HIGHEST_PROTOCOL):
        data = pickle.dumps(Touch(mark), protocol)
        server.raw(TEXT, data)
        server.raw(TEXT, data, **{"Content-Type": "application/octet-stream"})
        addresses, paths = listening(server)
        targets = [(socket.AF_INET, address) for address in addresses] + [(socket.AF_UNIX, path) for path in paths]
        for family, target in targets:
            with socket.socket(family) as line:
                line.settimeout(5)
                try:
                    line.connect(target)
                    line.sendall(len(data).to_bytes(4, "big") + data)
                    line.recv(4096)
                except OSError:
                    pass
        with zmq.Context() as context:
            for path in paths:
                for name in (b"c\x00\x00\x00\x00", b"c\x07\x00\x00\x00"):  # the server's own name, and another
                    with context.socket(zmq.DEALER) as line:
                        line.setsockopt(zmq.IDENTITY, name)
                        line.setsockopt(zmq.LINGER, 200)
                        line.connect(f"ipc://{path}")
                        line.send(data)
                        line.send_multipart([b"", data])
    assert server.post(TEXT, {"prompt": "a", "max_tokens": 1})[0] == 200
    assert not mark.exists()


# -- templates --

ESCAPES = [
    "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "{{ ''['__class__'] }}",
    "{{ ''|attr('__class__') }}",
    "{{ ''|attr('\\x5f\\x5fclass\\x5f\\x5f') }}",
    "{{ ['']|map(attribute='__class__')|list }}",
    "{{ [['']]|sum(attribute='__class__', start=[]) }}",
    "{{ '{0.__class__}'.format('') }}",
    "{{ '{x.__class__}'.format_map({'x': ''}) }}",
    "{{ ('{0.__class__}'|safe).format('') }}",
    "{{ lipsum.__globals__.os.popen('id').read() }}",
    "{{ cycler.__init__.__globals__.os.popen('id').read() }}",
    "{{ joiner.__init__.__globals__ }}",
    "{{ namespace.__init__.__globals__ }}",
    "{{ raise_exception.__globals__ }}",
    "{{ raise_exception.__code__.co_filename }}",
    "{{ self._TemplateReference__context }}",
    "{{ self.__init__.__globals__ }}",
    "{{ messages.__class__.__base__ }}",
    "{{ messages[0].items.__self__.__class__ }}",
    "{{ (messages|groupby('role'))[0].__class__ }}",
    "{{ range.__class__.__subclasses__ }}",
    "{{ strftime_now.__globals__ }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}{{ os.environ }}",
    "{% extends '/etc/passwd' %}",
    "{% set ns = namespace() %}{% set ns.__class__ = 1 %}{{ ns.__init__ }}",
    "{{ config }}{{ request.environ }}{{ url_for.__globals__ }}",
    "{%- macro m() -%}{{ caller.__globals__ }}{%- endmacro -%}{% call m() %}{% endcall %}",
    "{{ __import__('os').system('id') }}",
    "{{ eval('1') }}{{ exec('1') }}{{ open('/etc/passwd').read() }}",
]


@pytest.mark.parametrize("template", ESCAPES)
def test_no_template_gets_out_of_its_sandbox(server, template):
    status, body = server.post("/tokenize", {"messages": [USER], "chat_template": "A" + template})
    if status == 200:
        text = server.post("/detokenize", {"tokens": body["tokens"]})[1]["prompt"]
        for leak in ("class", "uid=", "root:", "built-in", "function", "module", "0x", "/"):
            assert leak not in text
    else:
        refused((status, body), 400)


@pytest.mark.parametrize(
    "template",
    [
        "{% for i in range(10**9) %}x{% endfor %}",
        "{{ 'a' * 10**9 }}",
        "{{ ('a' * 10**6) * 10**6 }}",
        "{{ 'a'|center(10**9) }}",
        "{{ '%999999999d'|format(1) }}",
        "{{ 9**(9**9) }}",
        "{{ 10**(10**7) }}",
        "{{ [1] * 10**9 }}",
        "{{ range(10**12)|list }}",
        "{% macro m() %}{{ m() }}{{ m() }}{% endmacro %}{{ m() }}",
        "{% set ns = namespace(x='a') %}{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}{{ ns.x }}",
        "{{ lipsum(n=10**7) }}",
        "{% for a in range(999) %}{% for b in range(999) %}{% for c in 'abc' %}{% endfor %}{% endfor %}{% endfor %}",
    ],
)
def test_no_template_runs_for_ever(server, template):
    refused(server.post(CHAT, {"messages": [USER], "max_tokens": 1, "chat_template": template}))


@pytest.mark.parametrize(
    "name", ["chat_template", "messages", "tools", "documents", "tokenize", "add_generation_prompt"]
)
def test_template_arguments_that_are_the_servers(server, name):
    body = {"messages": [USER], "max_tokens": 1, "chat_template_kwargs": {name: "{{ 7 * 7 }}"}}
    assert name in refused(server.post(CHAT, body))


def test_text_of_users_is_no_template(server):
    text = "{{ 7 * 7 }}{% for x in y %}"
    tokens = server.post("/tokenize", {"messages": [USER | {"content": text}]})[1]["tokens"]
    assert text in server.post("/detokenize", {"tokens": tokens})[1]["prompt"]


# -- numbers, lists, depth --


@pytest.mark.parametrize("token", [VOCAB, VOCAB + 1, 2**31 - 1, 2**31, 2**32, 2**63, 2**64, -1, -(2**31), -(2**63)])
def test_ids_beyond_the_logits(server, token):
    for more in (
        {"prompt": [token]},
        {"prompt": [[1], [token]]},
        {"stop_token_ids": [token]},
        {"allowed_token_ids": [1, token]},
        {"logit_bias": {str(token): 1.0}},
    ):
        refused(server.post(TEXT, {"prompt": "a", "max_tokens": 1} | more))
    refused(server.post("/detokenize", {"tokens": [token]}))


MILLION = 1_000_000


@pytest.mark.parametrize(
    ("more", "statuses"),
    [
        ({"stop": ["x"] * MILLION}, (400,)),
        ({"stop": "x" * MILLION}, (400,)),
        ({"prompt": ["a"] * MILLION}, (400,)),
        ({"prompt": [5] * MILLION}, (400,)),
        ({"prompt": [[5]] * 200_000}, (400,)),
        ({"bad_words": ["x"] * MILLION}, (400,)),
        ({"stop_token_ids": [5] * MILLION}, (400,)),
        ({"logit_bias": {str(token): 1 for token in range(200_000)}}, (400,)),
        ({"n": MILLION}, (400,)),
        ({"n": 10**400}, (400,)),
        ({"best_of": MILLION}, (400, 501)),
        ({"max_tokens": 10**30}, (400,)),
        ({"logprobs": MILLION}, (400,)),
        ({"prompt_logprobs": MILLION}, (400,)),
        ({"request_id": "x" * MILLION}, (400,)),
        ({"model": "x" * MILLION}, (404,)),
        ({"priority": 2**70}, (400,)),
        ({"x" * 100: [{}] * 150_000}, (400,)),
        ({"logit_bias": {str(token): "x" for token in range(90_000)}}, (400,)),
        ({"logit_bias": {"x" * MILLION: "x"}}, (400,)),
    ],
    ids=lambda value: next(iter(value))[:20] if isinstance(value, dict) else "",
)
def test_much_of_anything(server, more, statuses):
    refused(server.post(TEXT, {"prompt": "a", "max_tokens": 1} | more), *statuses)


@pytest.mark.parametrize(
    "messages",
    [
        [USER] * 120_000,
        [USER | {"content": [{"type": "text", "text": "a"}] * 120_000}],
        [USER | {"content": "word " * MILLION}],
        [USER | {"tool_calls": [1] * MILLION}],
        [USER | {"role": "x" * MILLION}],
        [USER | {"content": [{"type": "x" * MILLION}]}],
    ],
    ids=["messages", "parts", "text", "calls", "role", "type"],
)
def test_much_of_a_conversation(server, messages):
    refused(server.post(CHAT, {"messages": messages, "max_tokens": 1}))


def test_as_many_errors_as_values():
    """A time that goes with the square of their number would not end."""
    wrong = [{"loc": ("body", "documents", index), "msg": "wrong"} for index in range(250_000)]
    info = errors.describe(RequestValidationError([*wrong, {"loc": ("body", "documents"), "msg": "no text"}]))
    assert info.param == "documents.0"
    assert "no text" not in info.message
    assert "249995 more" in info.message


@pytest.mark.parametrize("path", [TEXT, CHAT, "/tokenize", "/detokenize"])
@pytest.mark.parametrize("pair", [(b'{"a":', b"}"), (b"[", b"]"), (b'{"messages":[{"content":', b"}]}")])
def test_depth(server, path, pair):
    opened, closed = pair
    for depth in (2_000, 50_000, 1_000_000):
        refused(server.post(path, opened * depth + b"1" + closed * depth))
        refused(server.post(path, opened * depth))


@pytest.mark.parametrize("name", ["chat_template_kwargs", "documents", "metadata", "response_format"])
def test_depth_inside_a_field(server, name):
    deep: object = 1
    for _ in range(900):
        deep = {"a": deep}
    body = {"messages": [USER], "max_tokens": 1, name: [deep] if name == "documents" else deep}
    status, answer = server.post(CHAT, body)
    assert status in (200, 400, 501)
    if status != 200:
        refused((status, answer), status)


@pytest.mark.parametrize("name", ["text", "tool_choice", "reasoning", "metadata", "tools", "x"])
def test_depth_of_what_is_told_back(server, name):
    deep: object = 1
    for _ in range(300):
        deep = {"type": "text", "a": deep}
    answer = server.post(
        "/v1/responses", {"input": "a", "max_output_tokens": 1, name: [deep] if name == "tools" else deep}
    )
    assert "nested too deeply" in refused(answer)


# -- what one request tells of another --


def test_another_salt_shares_no_cache(server):
    prompt = [7 + index % 50 for index in range(200)]

    def cached(salt):
        body = {"prompt": prompt, "max_tokens": 1} | ({"cache_salt": salt} if salt else {})
        usage = server.post(TEXT, body)[1]["usage"]
        return usage["prompt_tokens_details"]["cached_tokens"]

    assert cached("mine") == 0
    assert cached("mine") > 100
    assert cached("yours") == 0
    assert cached(None) == 0
    assert cached("mine" + "\0") == 0


def test_no_credentials_for_every_origin(server):
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\nOrigin: http://evil\r\nConnection: close\r\n\r\n")
        said = b""
        while more := line.recv(65536):
            said += more
    assert b"access-control-allow-origin: *\r\n" in said.lower()
    assert b"access-control-allow-credentials" not in said.lower()
    assert b"set-cookie" not in said.lower()


@pytest.mark.parametrize("path", ["/version/", "/health/", "/docs/", "//evil/..", "/v1/chat/completions/", "//evil"])
def test_nobody_is_sent_where_the_host_header_says(server, path):
    where = urlsplit(server.url)
    with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as line:
        line.sendall(f"GET {path} HTTP/1.1\r\nHost: evil\r\nConnection: close\r\n\r\n".encode())
        said = b""
        while more := line.recv(65536):
            said += more
    assert b" 404 " in said.partition(b"\r\n")[0]
    assert b"evil" not in said
    assert b"location:" not in said.lower()


@pytest.mark.parametrize(
    "error",
    [
        RequestFailed("ValueError: <octavo.x.Y object at 0x7f00deadbeef> in /srv/models/secret/model.safetensors"),
        EngineDead("FileNotFoundError: [Errno 2] No such file: '/root/.cache/x.bin' at 0x7f00deadbeef"),
        BadRequest("<PIL.Image object at 0x7f00deadbeef> cannot be read"),
        ValueError("/srv/models/secret 0x7f00deadbeef a prompt"),
        KeyError("a prompt"),
    ],
)
def test_errors_tell_of_no_address_and_no_file(error):
    said = errors.describe(error).message
    for leak in ("0x7f", "/srv", "/root", "secret", "a prompt"):
        assert leak not in said


@pytest.mark.parametrize("unit", ["/a", "/", "a/", "0x", "at 0x1 ", "list[", "function-", "\\", "%", "{:", " at"])
def test_our_own_patterns_take_linear_time(unit):
    """A pattern that goes back and forth would not end."""
    text = unit * 600_000
    errors._bare(text)
    errors._clean(text)
    errors.field_path([text, text])


def test_a_line_of_the_log_is_one_line(server):
    before = len(server.lines)
    for path in ("/v1/%0a%0dforged", "/v1/%1b%5b31m", "/v1/%00"):
        server.get(path)
    server.raw(TEXT, b'{"model": "x\\n00:00:00 I octavo: forged"}')
    assert not [line for line in server.lines[before:] if line.startswith(("forged", "00:00:00")) or "\x1b" in line]


def test_the_cost_of_a_refusal_is_the_senders(server):
    """While many are refused, others are served."""
    body = json.dumps({"prompt": "a", "stop": ["x"] * 200_000}).encode()
    for _ in range(5):
        refused(server.post(TEXT, body))
        assert server.get("/health")[0] == 200
