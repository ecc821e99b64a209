"""The calls: Generate, GenerateStream, and health. Checks, limits and errors are those of HTTP."""

import asyncio
import re
import uuid
from collections.abc import AsyncIterator
from typing import Any

import grpc
from google.protobuf.message import DecodeError
from grpc_health.v1 import health_pb2, health_pb2_grpc

from octavo.common.log import logger
from octavo.errors import BadRequest, OctavoError
from octavo.front.grpc import translate
from octavo.front.grpc.messages import SERVICE, GenerateRequest, GenerateResponse
from octavo.front.server.errors import describe
from octavo.front.server.options import NAME
from octavo.front.server.service import Service, Terms, Work
from octavo.params import SamplingParams

_log = logger(__name__)
_SAFE_ID = re.compile(NAME)
#: Seconds between two looks at the engine, while somebody watches its health.
WATCH_EVERY = 0.5
#: HTTP's status -> gRPC's.
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    404: grpc.StatusCode.NOT_FOUND,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    501: grpc.StatusCode.UNIMPLEMENTED,
    503: grpc.StatusCode.UNAVAILABLE,
}


async def refuse(context: Any, error: Exception) -> None:
    """End the call with ``error``; the field at fault goes into the trailing metadata ``param``. A call that its client
    has left is over already (its task was cancelled), and what came of writing to it is no error."""
    task = asyncio.current_task()
    if context.cancelled() or (task is not None and task.cancelling()):
        raise asyncio.CancelledError
    info = describe(error)
    if not isinstance(error, OctavoError):
        _log.exception("a call failed", exc_info=error)
    if info.param is not None:
        context.set_trailing_metadata((("param", info.param.encode("ascii", "replace").decode()),))
    await context.abort(CODES.get(info.code, grpc.StatusCode.INTERNAL), info.message)


class Generate:
    """``vllm.Generate`` over ``service``. ``patience``: seconds that a client has to take a message of a stream."""

    def __init__(self, service: Service, patience: float):
        self._service = service
        self._patience = patience

    def handler(self) -> grpc.GenericRpcHandler:
        """Both calls, by name."""
        # Requests are read by ``_read``: gRPC's own answer to bytes that are none says UNKNOWN, and names classes.
        common = {"response_serializer": GenerateResponse.SerializeToString}
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                "Generate": grpc.unary_unary_rpc_method_handler(self.generate, **common),
                "GenerateStream": grpc.unary_stream_rpc_method_handler(self.generate_stream, **common),
            },
        )

    async def generate(self, data: bytes, context: Any) -> Any:
        """The whole answer; a call that is cancelled aborts its request."""
        try:
            request = _read(data)
            work = await self._submit(request, stream=False)
            try:
                output = await work.streams[0].final()
            finally:
                work.close()
            choices = sorted(output.outputs, key=lambda choice: choice.index)
            return translate.Teller(request).tell(output, choices)
        except Exception as error:
            return await refuse(context, error)

    async def generate_stream(self, data: bytes, context: Any) -> None:
        """The answer as it comes. What a slow client has not taken yet is merged; one that takes nothing is cut off."""
        try:
            request = _read(data)
            work = await self._submit(request, stream=True)
            teller = translate.Teller(request)
            try:
                async for output in work.streams[0]:
                    for choice in output.outputs:
                        await asyncio.wait_for(context.write(teller.tell(output, [choice])), self._patience)
            finally:
                work.close()
        except TimeoutError:
            await context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, "the client takes nothing of the answer")
        except Exception as error:
            await refuse(context, error)

    async def _submit(self, request: Any, stream: bool) -> Work:
        service = self._service
        service.model(request.model)
        if request.request_id and not _SAFE_ID.fullmatch(request.request_id):
            raise BadRequest("request_id must be 1 to 128 letters, digits, dots, dashes and underscores", "request_id")
        params: SamplingParams = translate.params(request, service.engine.config.text.generation_defaults, stream)
        terms = Terms(
            stream=stream,
            priority=request.priority,
            cache_salt=request.kv.cache_salt or None,
            truncate_prompt_tokens=request.truncate_prompt_tokens or None,
        )
        name = f"grpc-{request.request_id or uuid.uuid4().hex}"
        cap = not request.stopping.max_new_tokens
        return await service.submit(terms, name, [translate.prompt(request)], params, cap)


def _read(data: bytes) -> Any:
    try:
        return GenerateRequest.FromString(data)
    except DecodeError:
        raise BadRequest("the message is no GenerateRequest") from None


class Health(health_pb2_grpc.HealthServicer):
    """``grpc.health.v1``: SERVING exactly where HTTP's /health says 200."""

    def __init__(self, service: Service):
        self._service = service

    def _status(self, name: str) -> int | None:
        if name not in ("", SERVICE):
            return None
        try:
            self._service.check_alive()
        except OctavoError:
            return health_pb2.HealthCheckResponse.NOT_SERVING
        return health_pb2.HealthCheckResponse.SERVING

    async def Check(self, request: Any, context: Any) -> Any:
        status = self._status(request.service)
        if status is None:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service[:80]!r} is here")
        return health_pb2.HealthCheckResponse(status=status)

    async def List(self, request: Any, context: Any) -> Any:
        statuses = {name: health_pb2.HealthCheckResponse(status=self._status(name)) for name in ("", SERVICE)}
        return health_pb2.HealthListResponse(statuses=statuses)

    async def Watch(self, request: Any, context: Any) -> AsyncIterator[Any]:
        told = None
        while True:
            status = self._status(request.service)
            status = health_pb2.HealthCheckResponse.SERVICE_UNKNOWN if status is None else status
            if status != told:
                told = status
                yield health_pb2.HealthCheckResponse(status=status)
            await asyncio.sleep(WATCH_EVERY)
