"""What octavo's own clients of an HTTP server share: keys, TLS, and sentences about what went wrong."""

import argparse
import http.client
import json
import ssl
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from octavo.errors import ConfigError

#: What asking a server may raise where there is no answer.
FAILURES = (OSError, http.client.HTTPException)


@dataclass(frozen=True)
class Identity:
    """Whom a client trusts, and who it is: files in PEM. ``ca_certs`` None: whom this machine trusts. ``keyfile`` None:
    the private key stands in ``certfile``. ``password``: of the key. May be pickled, which a context may not."""

    ca_certs: str | None = None
    certfile: str | None = None
    keyfile: str | None = None
    password: str | None = field(default=None, repr=False)

    @cache  # noqa: B019 (a handful in a process)
    def context(self) -> ssl.SSLContext:
        """Raises ``ConfigError`` with one sentence."""
        try:
            context = ssl.create_default_context(cafile=self.ca_certs)
        except (OSError, ValueError) as error:
            raise ConfigError(_unread("--ssl-ca-certs", self.ca_certs, error)) from None
        if self.certfile is None:
            return context
        asked = False

        def passphrase() -> str:
            nonlocal asked
            asked = True
            return self.password or ""

        try:
            context.load_cert_chain(self.certfile, self.keyfile, passphrase)
        except (OSError, ValueError) as error:
            if asked:
                why = "a passphrase, OCTAVO_SSL_KEYFILE_PASSWORD," if self.password is None else "another passphrase"
                key = self.keyfile or self.certfile
                raise ConfigError(f"the private key in {key} needs {why} to open it") from None
            flag = "--ssl-certfile" if self.keyfile is None else "--ssl-certfile and --ssl-keyfile"
            both = self.certfile if self.keyfile is None else f"{self.certfile} and {self.keyfile}"
            raise ConfigError(_unread(flag, both, error, "no certificate with its private key in PEM")) from None
        return context


def _unread(flag: str, path: str | None, error: Exception, what: str = "no certificate in PEM") -> str:
    if isinstance(error, ssl.SSLError) or not isinstance(error, OSError):
        return f"{flag}: {path} holds {what}"
    return f"{flag}: {path} cannot be read: {error.strerror}"


def add_tls_flags(parser: Any) -> None:
    """The flags of ``identity``; ``parser`` may be a group."""
    parser.add_argument(
        "--ssl-ca-certs", metavar="FILE", help="PEM file with who may vouch for the server (whom this machine trusts)"
    )
    parser.add_argument("--ssl-certfile", metavar="FILE", help="PEM file with the certificate to show the server")
    parser.add_argument(
        "--ssl-keyfile",
        metavar="FILE",
        help="PEM file with its private key, where that is not in the certificate's (passphrase: "
        "OCTAVO_SSL_KEYFILE_PASSWORD)",
    )


def identity(parsed: argparse.Namespace, url: str, password: str | None) -> Identity | None:
    """What the flags say, proven by a context that loads; None where they say nothing. Raises ``ConfigError``."""
    said = {name: getattr(parsed, name) for name in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile")}
    flags = ["--" + name.replace("_", "-") for name, value in said.items() if value is not None]
    if not flags:
        return None
    if not url.startswith("https://"):
        raise ConfigError(f"{flags[0]} needs a server at https://, not {url}")
    if said["ssl_keyfile"] is not None and said["ssl_certfile"] is None:
        raise ConfigError("--ssl-keyfile needs --ssl-certfile")
    found = Identity(said["ssl_ca_certs"], said["ssl_certfile"], said["ssl_keyfile"], password)
    found.context()
    return found


def fetch(request: urllib.request.Request, timeout: float, who: Identity | None = None) -> Any:
    """The answer, a context manager to read from. Raises ``urllib.error.HTTPError`` or one of ``FAILURES``."""
    return urllib.request.urlopen(request, timeout=timeout, context=None if who is None else who.context())


def reason(error: Exception) -> str:
    """Why there was no answer, for people."""
    why = getattr(error, "reason", error)  # of URLError the error inside, of SSLError OpenSSL's name
    if isinstance(error, ssl.SSLError):
        why = error
    if isinstance(why, ssl.SSLCertVerificationError):
        return f"its certificate is not trusted ({why.verify_message}); --ssl-ca-certs names who vouches for it"
    if isinstance(why, ssl.SSLError) and ("CERTIFICATE" in (why.reason or "") or "UNKNOWN_CA" in (why.reason or "")):
        return "it refuses this client's certificate, or wants one: --ssl-certfile"
    if isinstance(why, ConnectionResetError):  # what a server does that wants a certificate, or HTTPS
        return "it closed the connection without an answer (does it want https://, or a certificate: --ssl-certfile?)"
    if isinstance(why, http.client.HTTPException) and not isinstance(why, OSError):
        return "what answers is no HTTP server"
    return str(why)


def refusal(error: urllib.error.HTTPError) -> str:
    """What the server says of a request that it refused: its message, or the status where there is none."""
    try:
        return json.load(error)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return f"the server says {error.code} {error.reason}"


def bearer(key: str | None) -> dict[str, str]:
    """The header with a key, its bytes UTF-8; none without one. Raises ``ConfigError`` for what no header can hold."""
    if not key:
        return {}
    if not key.isprintable():
        raise ConfigError("--api-key holds a control character, which no header can carry")
    return {"Authorization": f"Bearer {key}".encode().decode("latin-1")}
