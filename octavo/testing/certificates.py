"""Certificates for tests: an authority of their own, who issues what they need. Needs trustme."""

import ssl
from pathlib import Path
from typing import Any

import trustme
from cryptography.hazmat.primitives import serialization

PASSPHRASE = "open sesame"


class Papers:
    """PEM files in ``folder``: ``cert`` and ``key`` (or ``both`` in one) of a server that ``ca`` vouches for, its key
    under a passphrase (``locked``, and ``word`` with it), and a key that fits no certificate here (``foreign``)."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.authority, self.other = trustme.CA(), trustme.CA()
        self.server = self.authority.issue_cert("localhost", "127.0.0.1")
        self.ca = self.file("ca.pem", self.authority.cert_pem.bytes())
        self.cert = self.file("cert.pem", *[blob.bytes() for blob in self.server.cert_chain_pems])
        self.key = self.file("key.pem", self.server.private_key_pem.bytes())
        self.both = self.file("both.pem", self.server.private_key_and_cert_chain_pem.bytes())
        self.foreign = self.file("foreign.pem", self.other.issue_cert("localhost").private_key_pem.bytes())
        key = serialization.load_pem_private_key(self.server.private_key_pem.bytes(), None)
        locked = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(PASSPHRASE.encode()),
        )
        self.locked = self.file("locked.pem", locked)
        self.word = self.file("word", PASSPHRASE.encode() + b"\n")

    def file(self, name: str, *parts: bytes) -> str:
        path = self.folder / name
        path.write_bytes(b"".join(parts))
        return str(path)

    def client(self, by: trustme.CA | None = None, **more: Any) -> ssl.SSLContext:
        """A client's context; ``by``: who issued its certificate, None for a client without."""
        context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH)
        context.load_verify_locations(self.ca)
        if by is not None:
            by.issue_cert("client@example.org", **more).configure_cert(context)
        return context
