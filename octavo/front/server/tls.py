"""TLS: paths of files to checked settings, and an ``ssl.SSLContext`` of them. HTTP and gRPC use the same."""

import logging
import os
import ssl
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from octavo.common.log import logger
from octavo.errors import ConfigError

#: Seconds between two looks at files that may have changed.
REFRESH_EVERY = 2.0
_log: logging.Logger = logger(__name__)
_BEGIN_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
#: Bytes of a file of certificates, keys or a passphrase.
_MOST = 4 << 20


@dataclass(frozen=True, kw_only=True)
class TLS:
    """Who the server is, and which clients it takes. Made by ``checked``; ``repr`` shows no passphrase.

    ``certfile``: the chain, leaf first. ``keyfile`` None: the key stands in ``certfile``. ``ca_certs``: authorities of
    clients' certificates, which ``cert_reqs`` asks for.
    """

    certfile: str
    keyfile: str | None = None
    password: str | None = field(default=None, repr=False)
    ca_certs: str | None = None
    cert_reqs: ssl.VerifyMode = ssl.CERT_NONE
    ciphers: str | None = None

    def context(self, alpn: Sequence[str] = ("http/1.1",)) -> ssl.SSLContext:
        """A fresh context for servers, TLS 1.2 or later. Raises ``ConfigError`` with one sentence."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(list(alpn))
        if self.ciphers is not None:
            try:
                context.set_ciphers(self.ciphers)
            except ssl.SSLError:
                raise ConfigError(f"--ssl-ciphers {self.ciphers[:80]!r} names no cipher that OpenSSL has") from None
        self.load(context)
        context.verify_mode = self.cert_reqs
        return context

    def load(self, context: ssl.SSLContext) -> None:
        """Read the files into ``context``; connections that are open keep what they have. Raises ``ConfigError``."""
        if _BEGIN_CERTIFICATE not in _read(self.certfile, "--ssl-certfile"):
            raise ConfigError(f"--ssl-certfile: {self.certfile} holds no certificate in PEM")
        flag, keyfile = ("--ssl-certfile", self.certfile) if self.keyfile is None else ("--ssl-keyfile", self.keyfile)
        if b"PRIVATE KEY-----" not in _read(keyfile, flag):
            more = "; --ssl-keyfile names the file that has it" if self.keyfile is None else ""
            raise ConfigError(f"{flag}: {keyfile} holds no private key in PEM{more}")
        asked = False

        def passphrase() -> str:
            nonlocal asked
            asked = True
            return self.password or ""

        try:
            context.load_cert_chain(self.certfile, self.keyfile, passphrase)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(self._why(error, keyfile, asked)) from None
        if self.ca_certs is not None:
            if _BEGIN_CERTIFICATE not in _read(self.ca_certs, "--ssl-ca-certs"):
                raise ConfigError(f"--ssl-ca-certs: {self.ca_certs} holds no certificate in PEM")
            try:
                context.load_verify_locations(self.ca_certs)
            except ssl.SSLError:
                raise ConfigError(f"--ssl-ca-certs: a certificate in {self.ca_certs} is broken") from None

    def _why(self, error: Exception, keyfile: str, asked: bool) -> str:
        if asked and self.password is None:
            return (
                f"the private key in {keyfile} is encrypted: its passphrase comes from --ssl-keyfile-password-file or "
                "OCTAVO_SSL_KEYFILE_PASSWORD"
            )
        reason = getattr(error, "reason", None) or ""
        if "MISMATCH" in reason:
            return f"the private key in {keyfile} does not belong to the certificate in {self.certfile}"
        if asked:
            return f"the passphrase does not open the private key in {keyfile}"
        if reason.endswith(("_TOO_SMALL", "_TOO_WEAK")):
            return f"the certificate in {self.certfile} is too weak for TLS: {reason.replace('_', ' ').lower()}"
        return f"the certificate in {self.certfile} or the private key in {keyfile} is broken"

    def pem(self) -> tuple[bytes, bytes, bytes | None]:
        """(private key, certificate chain, authorities) for a library that takes bytes and no passphrase.

        Raises ``ConfigError`` for a key that is encrypted.
        """
        chain = _read(self.certfile, "--ssl-certfile")
        key = chain if self.keyfile is None else _read(self.keyfile, "--ssl-keyfile")
        if b"ENCRYPTED" in key:
            raise ConfigError("the private key is encrypted, which gRPC does not take; decrypt it with openssl pkey")
        return key, chain, None if self.ca_certs is None else _read(self.ca_certs, "--ssl-ca-certs")

    @property
    def files(self) -> tuple[str, ...]:
        return tuple(file for file in (self.certfile, self.keyfile, self.ca_certs) if file is not None)


def checked(
    *,
    certfile: str | None,
    keyfile: str | None = None,
    password: str | None = None,
    password_file: str | None = None,
    password_otherwise: str | None = None,
    ca_certs: str | None = None,
    cert_reqs: int | None = None,
    ciphers: str | None = None,
) -> TLS | None:
    """What the ``--ssl-*`` flags ask for, proven by a context that loads; None where they ask for nothing.

    ``password_otherwise``: the passphrase where no flag says it, from the environment. Raises
    ``ConfigError`` with one sentence.
    """
    if cert_reqs not in (None, 0, 1, 2):
        raise ConfigError(f"--ssl-cert-reqs is 0 (none), 1 (optional) or 2 (required), got {cert_reqs}")
    if certfile is None:
        others = {
            "--ssl-keyfile": keyfile,
            "--ssl-keyfile-password": password,
            "--ssl-keyfile-password-file": password_file,
            "--ssl-ca-certs": ca_certs,
            "--ssl-cert-reqs": cert_reqs or None,
            "--ssl-ciphers": ciphers,
        }
        for flag, value in others.items():
            if value is not None:
                raise ConfigError(f"{flag} needs --ssl-certfile")
        return None
    if cert_reqs and ca_certs is None:
        raise ConfigError(f"--ssl-cert-reqs {cert_reqs} needs --ssl-ca-certs: who may vouch for a client")
    if ca_certs is not None and cert_reqs is None:
        raise ConfigError("--ssl-ca-certs checks nobody without --ssl-cert-reqs: 2 requires a certificate, 1 takes one")
    if password is not None and password_file is not None:
        raise ConfigError("--ssl-keyfile-password and --ssl-keyfile-password-file say the same thing twice")
    if password_file is not None:
        try:
            password = _read(password_file, "--ssl-keyfile-password-file").decode().rstrip("\r\n")
        except UnicodeDecodeError:
            raise ConfigError(f"--ssl-keyfile-password-file: {password_file} is not UTF-8") from None
    found = TLS(
        certfile=certfile,
        keyfile=keyfile,
        password=password_otherwise if password is None else password,
        ca_certs=ca_certs,
        cert_reqs=ssl.VerifyMode(cert_reqs or 0),
        ciphers=ciphers,
    )
    found.context()
    return found


class Refresher:
    """Loads changed files into a context that is in use: connections from then on get the new certificate.

    A new file that is broken changes nothing. What a new file of authorities no longer has stays trusted until the
    server is started again: OpenSSL only adds.
    """

    def __init__(self, tls: TLS, context: ssl.SSLContext):
        self._tls = tls
        self._context = context
        self._seen = self._look()

    def refresh(self) -> bool:
        """Whether something new was loaded."""
        now = self._look()
        if now == self._seen:
            return False
        self._seen = now
        try:
            self._tls.context()
            self._tls.load(self._context)
        except ConfigError as error:
            _log.warning("the new certificate is not taken: %s", error)
            return False
        _log.info("the certificate was loaded again")
        return True

    def _look(self) -> tuple[tuple[int, int, int] | None, ...]:
        return tuple(_state(file) for file in self._tls.files)


def _state(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino


def _read(path: str, flag: str) -> bytes:
    try:
        with Path(path).open("rb") as file:
            data = file.read(_MOST + 1)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{flag}: {path} cannot be read: {getattr(error, 'strerror', None) or error}") from None
    if len(data) > _MOST:
        raise ConfigError(f"{flag}: {path} is larger than {_MOST} bytes")
    return data
