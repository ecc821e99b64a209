"""HTTPS with certificates on both sides, on a live server."""

import http.client
import json
import os
import socket
import ssl
from urllib.parse import urlsplit

import pytest

from octavo.cli.main import main
from octavo.testing.certificates import PASSPHRASE, Papers
from octavo.testing.served import PATIENCE, Served, fake_model

KEY = "a-key-that-nobody-else-has"


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    return Papers(tmp_path_factory.mktemp("papers"))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return fake_model(tmp_path_factory.mktemp("model"), latency=0.001)


@pytest.fixture(scope="module")
def server(papers, model):
    flags = ["--ssl-certfile", papers.cert, "--ssl-keyfile", papers.locked, "--ssl-keyfile-password", PASSPHRASE]
    flags += ["--ssl-ca-certs", papers.ca, "--ssl-cert-reqs", "2", "--enable-ssl-refresh", f"--api-key={KEY}"]
    found = Served([str(model), *flags])
    try:
        yield found.ready()
    finally:
        found.stop()


def ask(server, context, path="/v1/models", body=None, **headers):
    where = urlsplit(server.url)
    line = http.client.HTTPSConnection(where.hostname, where.port, timeout=PATIENCE, context=context)
    try:
        headers |= {"Content-Type": "application/json"}
        line.request("GET" if body is None else "POST", path, None if body is None else json.dumps(body), headers)
        answer = line.getresponse()
        return answer.status, answer.read()
    finally:
        line.close()


def test_a_client_with_a_certificate_and_a_key(server, papers):
    good = papers.client(papers.authority)
    assert server.url.startswith("https://")
    assert ask(server, good, "/health") == (200, b"")
    assert ask(server, good)[0] == 401
    assert ask(server, good, Authorization=f"Bearer {KEY}")[0] == 200
    body = {"prompt": "a", "max_tokens": 30, "stream": True, "ignore_eos": True}
    status, said = ask(server, good, "/v1/completions", body, Authorization=f"Bearer {KEY}")
    assert status == 200
    assert said.endswith(b"data: [DONE]\n\n")


@pytest.mark.parametrize("who", ["nobody", "other", "old"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_others_do_not_get_as_far_as_a_request(server, papers, who):
    client = papers.client(papers.other if who == "other" else papers.authority if who == "old" else None)
    if who == "old":
        client.set_ciphers("ALL:@SECLEVEL=0")
        client.minimum_version = client.maximum_version = ssl.TLSVersion.TLSv1_1
    with pytest.raises((ssl.SSLError, ConnectionError, http.client.RemoteDisconnected)):
        ask(server, client, "/health")


@pytest.fixture(scope="module")
def client(papers):
    """Flags of a client whom the server takes."""
    mine = papers.authority.issue_cert("client@example.org")
    cert = papers.file("client.pem", *[blob.bytes() for blob in mine.cert_chain_pems])
    key = papers.file("client.key", mine.private_key_pem.bytes())
    return ["--ssl-ca-certs", papers.ca, "--ssl-certfile", cert, "--ssl-keyfile", key, "--api-key", KEY]


COMMANDS = {
    "top": (["top"], ["--once", "--interval", "0.1"]),
    "chat": (["chat", "--url"], ["-q", "a", "--max-tokens", "3"]),
    "complete": (["complete", "--url"], ["-q", "a", "--max-tokens", "3"]),
    "bench": (
        ["bench", "serve", "--base-url"],
        ["--num-prompts", "2", "--processes", "1", "--random-vocab-size", "300", "--random-input-len", "4"],
    ),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_our_own_clients_show_a_certificate(server, client, capsys, name):
    before, after = COMMANDS[name]
    assert main([*before, server.url, *client, *after]) == 0
    said = capsys.readouterr()
    assert said.out.strip()
    assert name != "bench" or "Failed requests:                         0" in said.out, said.out


@pytest.mark.parametrize("name", COMMANDS)
def test_our_own_clients_say_what_they_lack(server, papers, client, capsys, name):
    before, after = COMMANDS[name]
    for flags, words in (
        (["--api-key", KEY], "its certificate is not trusted"),
        (["--ssl-ca-certs", papers.ca], "certificate: --ssl-certfile"),
        (["--ssl-ca-certs", "/nope"], "--ssl-ca-certs: /nope cannot be read"),
        (["--ssl-ca-certs", papers.key], "holds no certificate in PEM"),
        (["--ssl-certfile", papers.cert, "--ssl-keyfile", papers.locked], "needs a passphrase"),
        (["--ssl-certfile", papers.cert, "--ssl-keyfile", papers.foreign], "no certificate with its private key"),
        (["--ssl-keyfile", papers.key], "--ssl-keyfile needs --ssl-certfile"),
    ):
        assert main([*before, server.url, *flags, *after]) == 1
        said = capsys.readouterr().err
        assert words in said
        assert said.count("\n") == 1
    assert main([*before, server.url.replace("https", "http"), *client, *after]) == 1
    assert "--ssl-ca-certs needs a server at https://" in capsys.readouterr().err


def test_plain_and_silent_connections_hold_up_nobody(server, papers):
    where = urlsplit(server.url)
    silent = [socket.create_connection((where.hostname, where.port), timeout=PATIENCE) for _ in range(50)]
    with socket.create_connection((where.hostname, where.port), timeout=PATIENCE) as line:
        line.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        try:
            assert b"200" not in line.recv(4096)
        except ConnectionError:
            pass
    assert ask(server, papers.client(papers.authority), "/health")[0] == 200
    for line in silent:
        line.close()
    assert "Traceback" not in server.log


def test_a_new_certificate_is_taken_while_it_serves(server, papers):
    where = urlsplit(server.url)

    def serial():
        line = socket.create_connection((where.hostname, where.port), timeout=PATIENCE)
        with papers.client(papers.authority).wrap_socket(line, server_hostname="localhost") as safe:
            return safe.getpeercert()["serialNumber"]

    before = serial()
    new = papers.authority.issue_cert("localhost", "127.0.0.1")
    papers.file("new.pem", new.private_key_pem.bytes())
    papers.file("new.cert.pem", *[blob.bytes() for blob in new.cert_chain_pems])
    # The files are changed one after the other, as whoever renews certificates does it.
    os.replace(papers.folder / "new.cert.pem", papers.cert)
    os.replace(papers.folder / "new.pem", papers.locked)
    server.until("new certificate", lambda: serial() != before)


def test_neither_key_nor_passphrase_is_seen(server):
    with open(f"/proc/{server.process.pid}/cmdline", "rb") as file:
        command = file.read()
    assert b"--api-key=***" in command
    for secret in (KEY, PASSPHRASE):
        assert secret.encode() not in command
        assert secret not in server.log


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--ssl-keyfile", "foreign"], "does not belong to the certificate"),
        (["--ssl-keyfile", "locked"], "the passphrase does not open the private key"),
    ],
)
def test_a_start_that_cannot_be(tmp_path, model, flags, words):
    own = Papers(tmp_path)
    flags = [str(getattr(own, flag, flag)) for flag in flags]
    wrong = {"OCTAVO_SSL_KEYFILE_PASSWORD": "a wrong word"}
    server = Served([str(model), "--ssl-certfile", own.cert, *flags], env=wrong)
    try:
        assert server.wait() == 1
        assert len(server.lines) == 1
        assert words in server.lines[0]
        assert "a wrong word" not in server.log
    finally:
        server.stop()
