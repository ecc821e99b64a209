"""TLS: what the flags ask for is proven at the start, and what they refuse is refused in a handshake."""

import datetime
import os
import ssl

import pytest

from octavo.errors import ConfigError
from octavo.front.server.tls import Refresher, checked
from octavo.testing.certificates import Papers

LONG_AGO = datetime.datetime(2001, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture(scope="module")
def papers(tmp_path_factory):
    return Papers(tmp_path_factory.mktemp("papers"))


def shake(server, client):
    """(version, certificate that the client saw) of a connection in memory, both ways used. Raises ``SSLError``."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    theirs = server.wrap_bio(up, down, server_side=True)
    ours = client.wrap_bio(down, up, server_hostname="localhost")
    for _ in range(8):
        for side in (ours, theirs):
            try:
                side.do_handshake()
            except ssl.SSLWantReadError:
                pass
    ours.write(b"ping")
    assert theirs.read(4) == b"ping"
    theirs.write(b"pong")
    assert ours.read(4) == b"pong"
    return ours.version(), ours.getpeercert(True)


def test_a_connection(papers):
    tls = checked(certfile=papers.cert, keyfile=papers.key)
    assert shake(tls.context(), papers.client())[0] == "TLSv1.3"
    assert shake(checked(certfile=papers.both).context(), papers.client())[0] == "TLSv1.3"
    with pytest.raises(ssl.SSLError):
        shake(tls.context(), ssl.create_default_context())  # knows other authorities
    assert checked(certfile=None) is None


@pytest.mark.parametrize(
    ("most", "fine"), [(ssl.TLSVersion.TLSv1, False), (ssl.TLSVersion.TLSv1_1, False), (ssl.TLSVersion.TLSv1_2, True)]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_versions(papers, most, fine):
    client = papers.client()
    client.set_ciphers("ALL:@SECLEVEL=0")
    client.minimum_version = ssl.TLSVersion.MINIMUM_SUPPORTED
    client.maximum_version = most
    context = checked(certfile=papers.both).context()
    if fine:
        assert shake(context, client)[0] == "TLSv1.2"
    else:
        with pytest.raises(ssl.SSLError):
            shake(context, client)


@pytest.mark.parametrize(
    ("reqs", "who", "fine"),
    [
        (0, None, True),
        (0, "other", True),
        (1, None, True),
        (1, "authority", True),
        (1, "other", False),
        (2, None, False),
        (2, "authority", True),
        (2, "other", False),
        (2, "expired", False),
    ],
)
def test_certificates_of_clients(papers, reqs, who, fine):
    tls = checked(certfile=papers.both, ca_certs=papers.ca, cert_reqs=reqs)
    if who == "expired":
        client = papers.client(papers.authority, not_before=LONG_AGO, not_after=LONG_AGO + datetime.timedelta(days=1))
    else:
        client = papers.client(getattr(papers, who) if who else None)
    if fine:
        shake(tls.context(), client)
    else:
        with pytest.raises(ssl.SSLError):
            shake(tls.context(), client)


def test_ciphers(papers):
    tls = checked(certfile=papers.both, ciphers="ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-RSA-AES256-GCM-SHA384")
    client = papers.client()
    client.maximum_version = ssl.TLSVersion.TLSv1_2
    shake(tls.context(), client)
    client.set_ciphers("ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-RSA-AES128-GCM-SHA256")
    with pytest.raises(ssl.SSLError):
        shake(tls.context(), client)


@pytest.mark.parametrize("how", ["password", "password_file", "password_otherwise"])
def test_a_passphrase(papers, how):
    word = papers.word if how == "password_file" else "open sesame"
    tls = checked(certfile=papers.cert, keyfile=papers.locked, **{how: word})
    shake(tls.context(), papers.client())
    assert "sesame" not in repr(tls)
    with pytest.raises(ConfigError, match="encrypted"):
        tls.pem()


def test_bytes_for_other_libraries(papers):
    key, chain, authorities = checked(certfile=papers.cert, keyfile=papers.key, ca_certs=papers.ca, cert_reqs=2).pem()
    assert b"PRIVATE KEY" in key
    assert b"CERTIFICATE" in chain
    assert authorities == papers.authority.cert_pem.bytes()
    assert checked(certfile=papers.both).pem()[2] is None


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        ({"keyfile": "key"}, "--ssl-keyfile needs --ssl-certfile"),
        ({"ca_certs": "ca"}, "--ssl-ca-certs needs --ssl-certfile"),
        ({"cert_reqs": 2}, "--ssl-cert-reqs needs --ssl-certfile"),
        ({"ciphers": "HIGH"}, "--ssl-ciphers needs --ssl-certfile"),
        ({"certfile": "cert"}, "holds no private key in PEM; --ssl-keyfile names"),
        ({"certfile": "key", "keyfile": "key"}, "holds no certificate in PEM"),
        ({"certfile": "cert", "keyfile": "cert"}, "--ssl-keyfile: .* holds no private key"),
        ({"certfile": "cert", "keyfile": "foreign"}, "does not belong to the certificate"),
        ({"certfile": "cert", "keyfile": "locked"}, "is encrypted: its passphrase comes from"),
        ({"certfile": "cert", "keyfile": "locked", "password": "shut"}, "the passphrase does not open"),
        ({"certfile": "cert", "keyfile": "locked", "password_file": "ca"}, "the passphrase does not open"),
        ({"certfile": "cert", "keyfile": "locked", "password": "a", "password_file": "word"}, "twice"),
        (
            {"certfile": "cert", "keyfile": "locked", "password_file": "nothing"},
            "--ssl-keyfile-password-file: .*No such",
        ),
        ({"certfile": "nothing"}, "--ssl-certfile: .*nothing.pem cannot be read: No such file"),
        ({"certfile": "."}, "cannot be read: Is a directory"),
        ({"certfile": "cert", "keyfile": "nothing"}, "--ssl-keyfile: .*cannot be read"),
        ({"certfile": "broken", "keyfile": "key"}, "is broken"),
        ({"certfile": "both", "ca_certs": "nothing", "cert_reqs": 1}, "--ssl-ca-certs: .*cannot be read"),
        ({"certfile": "both", "ca_certs": "key", "cert_reqs": 1}, "--ssl-ca-certs: .*no certificate"),
        ({"certfile": "both", "ca_certs": "broken", "cert_reqs": 1}, "--ssl-ca-certs: .*broken"),
        ({"certfile": "both", "ca_certs": "ca"}, "--ssl-ca-certs checks nobody without --ssl-cert-reqs"),
        ({"certfile": "both", "cert_reqs": 1}, "--ssl-cert-reqs 1 needs --ssl-ca-certs"),
        ({"certfile": "both", "cert_reqs": 3}, "--ssl-cert-reqs is 0 .*got 3"),
        ({"certfile": "both", "ciphers": "NO-SUCH-CIPHER"}, "names no cipher"),
    ],
)
def test_what_is_wrong_is_one_sentence(papers, flags, words):
    papers.file("broken.pem", b"-----BEGIN CERTIFICATE-----\nbm90IGEgY2VydGlmaWNhdGU=\n-----END CERTIFICATE-----\n")
    names = {name: str(papers.folder / f"{name}.pem") for name in ("key", "ca", "cert", "foreign", "locked", "both")}
    names |= {name: str(papers.folder / f"{name}.pem") for name in ("nothing", "broken")} | {"word": papers.word}
    given = {
        flag: names.get(value, value) if flag.endswith("file") or flag == "ca_certs" else value
        for flag, value in flags.items()
    }
    with pytest.raises(ConfigError, match=words) as refused:
        checked(**({"certfile": None} | given))
    assert "\n" not in str(refused.value)
    assert "open sesame" not in str(refused.value)


def test_new_files_are_taken_and_broken_ones_are_not(papers, tmp_path):
    own = Papers(tmp_path)
    own.authority, own.ca = papers.authority, papers.ca
    file = own.file("live.pem", papers.server.private_key_and_cert_chain_pem.bytes())
    tls = checked(certfile=file)
    context = tls.context()
    refresher = Refresher(tls, context)
    first = shake(context, papers.client())[1]
    assert not refresher.refresh()
    new = papers.authority.issue_cert("localhost")
    own.file("live.pem", new.private_key_and_cert_chain_pem.bytes())
    os.utime(file, ns=(1, 1))
    assert refresher.refresh()
    second = shake(context, papers.client())[1]
    assert second != first
    own.file("live.pem", new.cert_chain_pems[0].bytes())  # half of what was to be written
    assert not refresher.refresh()
    os.unlink(file)
    assert not refresher.refresh()
    assert shake(context, papers.client())[1] == second
