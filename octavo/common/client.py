"""What octavo's own clients of an HTTP server share."""

from octavo.errors import ConfigError


def bearer(key: str | None) -> dict[str, str]:
    """The header with a key, its bytes UTF-8; none without one. Raises ``ConfigError`` for what no header can hold."""
    if not key:
        return {}
    if not key.isprintable():
        raise ConfigError("--api-key holds a control character, which no header can carry")
    return {"Authorization": f"Bearer {key}".encode().decode("latin-1")}
