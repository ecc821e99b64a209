"""Every error octavo raises on purpose.

* OctavoError
  x RequestError              the request is at fault: a 4xx, the engine goes on
    - BadRequest                400: a value is wrong; ``param`` names it
    - NotFound                  404: no such model, adapter or response
    - PayloadTooLarge           413: the body is over the limit
    - Overloaded                429: a queue limit; ``retry_after`` seconds
    - Unsupported               501: a thing this model or build cannot do
  x ConfigError               the configuration is at fault: fails at start, in one sentence
    - CheckpointError           a file of the model is missing, broken or does not fit
    - OutOfMemory               what was asked does not fit; names the flag value that would
  x RequestFailed             the engine could not finish this request: a 500, the engine goes on
  x EngineDead                the engine is gone: a 503 and the server ends

Request and configuration errors are ``ValueError`` too, as Python users of ``LLM`` expect.
``assert`` is for octavo's own invariants, never for what a user gave.
"""


class OctavoError(Exception):
    """The root of the tree."""


class RequestError(OctavoError, ValueError):
    """A request is at fault. ``param`` is the dotted name of the field, where one is known."""

    status = 400
    type = "BadRequestError"

    def __init__(self, message: str, param: str | None = None):
        super().__init__(message)
        self.message = message
        self.param = param


class BadRequest(RequestError):
    """A value of the request is wrong."""


class NotFound(RequestError):
    """What the request names does not exist."""

    status = 404
    type = "NotFoundError"


class PayloadTooLarge(RequestError):
    """The body is over ``--max-body-size``."""

    status = 413
    type = "PayloadTooLargeError"


class Overloaded(RequestError):
    """A queue limit is reached; the client may come again after ``retry_after`` seconds."""

    status = 429
    type = "OverloadedError"

    def __init__(self, message: str, param: str | None = None, retry_after: float = 1.0):
        super().__init__(message, param)
        self.retry_after = retry_after


class Unsupported(RequestError):
    """The request asks for something that this model or build does not do."""

    status = 501
    type = "NotImplementedError"


class ConfigError(OctavoError, ValueError):
    """The configuration is at fault; raised before the engine is ready."""


class CheckpointError(ConfigError):
    """A file of the model is missing, broken, or does not fit its configuration."""


class OutOfMemory(ConfigError):
    """What was asked does not fit in memory; the message holds the table and the flag value that would fit."""


class RequestFailed(OctavoError):
    """The engine could not finish one request; others go on."""


class EngineDead(OctavoError):
    """The engine is gone; nothing can be served until it is started again."""
