"""A gRPC server on its own port, in the server's event loop."""

from __future__ import annotations

import os
import ssl
from collections.abc import Awaitable, Callable
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2

from octavo.common.log import logger
from octavo.errors import ConfigError
from octavo.front.grpc.messages import POOL, SERVICE
from octavo.front.grpc.service import Generate, Health, refuse
from octavo.front.server.errors import Unauthorized
from octavo.front.server.keys import Keys, bearer, caller
from octavo.front.server.service import Service
from octavo.front.server.tls import TLS

_log = logger(__name__)
_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
#: Seconds that a client has for the TLS handshake, between two pings of a silent connection, and to answer one.
HANDSHAKE, PING_EVERY, PING_TIMEOUT = 60, 60, 20
#: Bytes of a call's metadata.
MAX_METADATA = 64 << 10


class Server:
    """``start``, then ``port`` is open until ``stop``."""

    def __init__(self, service: Service, patience: float):
        options = service.options
        self.port = 0
        self._server = grpc.aio.server(
            interceptors=(_Auth(Keys(options.api_keys)),) if options.api_keys else (),
            options=(
                ("grpc.so_reuseport", 0),  # a port that somebody has is an error, not shared
                ("grpc.max_receive_message_length", options.max_body_size),
                ("grpc.max_send_message_length", -1),
                ("grpc.max_metadata_size", MAX_METADATA),
                ("grpc.server_handshake_timeout_ms", HANDSHAKE * 1000),
                ("grpc.keepalive_time_ms", PING_EVERY * 1000),
                ("grpc.keepalive_timeout_ms", PING_TIMEOUT * 1000),
            ),
        )
        self._server.add_generic_rpc_handlers((Generate(service, patience).handler(),))
        health_pb2_grpc.add_HealthServicer_to_server(Health(service), self._server)
        for file in (health_pb2, reflection_pb2):
            POOL.AddSerializedFile(file.DESCRIPTOR.serialized_pb)
        names = (SERVICE, _HEALTH, reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server, pool=POOL)

    async def start(self, host: str, port: int, tls: TLS | None, refresh: bool = False) -> None:
        """Listen. Raises ``ConfigError`` where the port is not to be had."""
        where = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        try:
            if tls is None:
                self.port = self._server.add_insecure_port(where)
            else:
                self.port = self._server.add_secure_port(where, credentials(tls, refresh))
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {where} for gRPC; choose another port with --grpc-port") from error
        await self._server.start()
        _log.info("gRPC at %s", where if port else f"port {self.port}")

    async def stop(self, grace: float) -> None:
        """End within ``grace`` seconds: calls that still run then are cancelled."""
        await self._server.stop(grace)


def credentials(tls: TLS, refresh: bool) -> grpc.ServerCredentials:
    """``tls`` as gRPC takes it; ``refresh``: files that change are read again for the next connection.

    Raises ``ConfigError`` for what gRPC cannot do.
    """
    if tls.cert_reqs is ssl.CERT_OPTIONAL:
        raise ConfigError("--ssl-cert-reqs 1 is not possible with gRPC, which takes 0 (none) or 2 (required)")
    if tls.ciphers is not None:
        os.environ["GRPC_SSL_CIPHER_SUITES"] = tls.ciphers
    required = tls.cert_reqs is ssl.CERT_REQUIRED
    key, chain, authorities = seen = tls.pem()
    authorities = authorities if required else None
    if not refresh:
        return grpc.ssl_server_credentials([(key, chain)], authorities, required)

    def configuration(found: tuple[bytes, bytes, bytes | None]) -> Any:
        return grpc.ssl_server_certificate_configuration([found[:2]], found[2] if required else None)

    def changed() -> Any:
        nonlocal seen
        try:
            now = tls.pem()
            if now == seen:
                return None
            tls.context()
        except ConfigError as error:
            _log.warning("the new certificate is not taken: %s", error)
            return None
        seen = now
        return configuration(now)

    return grpc.dynamic_ssl_server_credentials(configuration(seen), changed, required)


class _Auth(grpc.aio.ServerInterceptor):
    """Every call but health needs a key, as HTTP does: bearer token, or x-api-key."""

    def __init__(self, keys: Keys):
        self._keys = keys

        async def deny(requests: Any, context: Any) -> None:
            await refuse(
                context, Unauthorized("a valid API key is needed, as bearer token in authorization, or in x-api-key")
            )

        self._deny = grpc.stream_stream_rpc_method_handler(deny)

    async def intercept_service(
        self, continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Any]], details: Any
    ) -> Any:
        if details.method.startswith(f"/{_HEALTH}/"):
            return await continuation(details)
        given = dict(details.invocation_metadata or ())
        tokens = [bearer(_bytes(given.get("authorization"))), _bytes(given.get("x-api-key")).strip()]
        owner = self._keys.owner(*tokens)
        caller.set(owner)
        return await continuation(details) if owner is not None else self._deny


def _bytes(value: str | bytes | None) -> bytes:
    return value.encode("utf-8", "replace") if isinstance(value, str) else value or b""
