"""Routes that control a running engine; only with --enable-control-routes. Names and parameters are vLLM's."""

import asyncio
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from pydantic import BaseModel
from starlette.responses import Response

from octavo.errors import BadRequest, RequestFailed, Unsupported
from octavo.front.server.control import info
from octavo.front.server.control.everywhere import SLEEPS
from octavo.front.server.options import Profiling
from octavo.front.server.routing import ERRORS, JSONRoute
from octavo.front.server.service import Service

#: Routes that need to know how the engine stands: of several processes one keeps that.
STEERING = frozenset({"/pause", "/resume", "/is_paused", "/sleep", "/wake_up", "/is_sleeping"})
#: abort: end what runs. wait: let it finish. keep: hold it, and go on with it later.
Mode = Literal["abort", "wait", "keep"]
Tag = Literal["weights", "kv_cache"]
#: Seconds that open requests have to finish with mode wait, and a command of the engine to end.
PATIENCE = 600.0
_ERRORS: dict[int | str, dict[str, Any]] = {status: ERRORS[status] for status in (400, 401, 500, 501, 503)}


class Sleeping(BaseModel):
    is_sleeping: bool


class Paused(BaseModel):
    is_paused: bool


class Forgotten(BaseModel):
    """``pages``: of the KV cache, whose content was forgotten."""

    pages: int


class Control:
    """What was asked of the engine, one thing after another."""

    def __init__(self, service: Service):
        self._service = service
        self._everywhere = service.everywhere
        self._lock = asyncio.Lock()

    @property
    def paused(self) -> bool:
        return self._service.engine.paused

    @property
    def asleep(self) -> int:
        """0 awake, else the level."""
        return self._everywhere.asleep

    async def reset(self) -> int:
        async with self._lock:
            return await self.call("reset_prefix_cache")

    async def pause(self, mode: Mode, clear: bool) -> None:
        async with self._lock:
            if self.asleep:
                raise BadRequest("the engine sleeps; wake it first")
            await self._pause(mode, clear)

    async def resume(self) -> None:
        async with self._lock:
            if self.asleep:
                raise BadRequest("the engine sleeps; POST /wake_up")
            await self._resume()

    async def sleep(self, level: int, mode: Mode) -> None:
        async with self._lock:
            if self.asleep >= level:
                return
            was_paused = self.paused
            await self._pause(mode, clear=False)
            try:
                await self.call("sleep", level)
            except BaseException:
                if not was_paused:
                    await self._resume()
                raise
            self._everywhere.asleep = level
            if mode == "abort":
                await self._everywhere.close(SLEEPS)

    async def wake(self, tags: list[Tag]) -> None:
        async with self._lock:
            if self.asleep and await self.call("wake", tags):
                self._everywhere.asleep = 0
                await self._resume()

    async def _pause(self, mode: Mode, clear: bool) -> None:
        all_of_them = self._everywhere
        was_closed = self._service.gate.closed
        await all_of_them.close()
        if mode == "abort":
            await all_of_them.abort()
        elif mode == "wait" and not self.paused and not await all_of_them.drain(PATIENCE):
            if not was_closed:
                await all_of_them.open()
            raise RequestFailed(f"requests did not finish within {PATIENCE:.0f} seconds; nothing is paused")
        await self.call("pause")
        await all_of_them.paused(True)
        if clear:
            await self.call("reset_prefix_cache")

    async def _resume(self) -> None:
        await self.call("resume")
        await self._everywhere.paused(False)
        await self._everywhere.open()

    async def call(self, command: str, *args: Any) -> Any:
        try:
            return await self._service.engine.call(command, *args, timeout=PATIENCE)
        except TimeoutError as error:
            raise RequestFailed(str(error)) from None
        except BadRequest:
            raise
        except ValueError:
            raise Unsupported(f"this engine's device cannot {command}") from None


def routes(service: Service) -> APIRouter:
    """The routes, over ``service``."""
    router = APIRouter(route_class=JSONRoute, tags=["control"])
    control = Control(service)

    @router.post("/reset_prefix_cache", responses=_ERRORS)
    async def reset_prefix_cache(reset_running_requests: bool = False, reset_external: bool = False) -> Forgotten:
        """Forget all cached prefixes. Requests that run keep what is theirs."""
        for name, asked in (("reset_running_requests", reset_running_requests), ("reset_external", reset_external)):
            if asked:
                raise Unsupported(f"{name} is not supported by this server", name)
        return Forgotten(pages=await control.reset())

    @router.post("/pause", responses=_ERRORS)
    async def pause(mode: Mode = "abort", clear_cache: bool = True) -> Paused:
        """Run no steps until /resume: requests wait. ``mode``: what becomes of those that run."""
        await control.pause(mode, clear_cache)
        return Paused(is_paused=True)

    @router.post("/resume", responses=_ERRORS)
    async def resume() -> Paused:
        """Go on."""
        await control.resume()
        return Paused(is_paused=False)

    @router.get("/is_paused", responses=_ERRORS)
    async def is_paused() -> Paused:
        """Whether /pause or /sleep holds the engine."""
        return Paused(is_paused=control.paused)

    @router.post("/sleep", responses=_ERRORS)
    async def sleep(level: Annotated[int, Query(ge=1, le=2)] = 1, mode: Mode = "abort") -> Sleeping:
        """Give the device's memory back: the KV cache, and the weights, which level 1 keeps in host memory and level 2
        loads again. Meanwhile requests are refused (mode abort) or wait."""
        await control.sleep(level, mode)
        return Sleeping(is_sleeping=True)

    @router.post("/wake_up", responses=_ERRORS)
    async def wake_up(tags: Annotated[list[Tag] | None, Query(max_length=8)] = None) -> Sleeping:
        """Bring weights and KV cache back, or one of them; once both are there the engine goes on."""
        await control.wake(tags or ["weights", "kv_cache"])
        return Sleeping(is_sleeping=bool(control.asleep))

    @router.get("/is_sleeping", responses=_ERRORS)
    async def is_sleeping() -> Sleeping:
        """Whether it sleeps."""
        return Sleeping(is_sleeping=bool(control.asleep))

    @router.get("/server_info", responses=_ERRORS)
    async def server_info(config_format: Literal["text", "json"] = "text") -> dict[str, Any]:
        """The configuration and the machine, without anything that is secret."""
        return await asyncio.to_thread(info.collect, service, config_format)

    return router


def profile_routes(service: Service, asked: Profiling) -> APIRouter:
    """The profiler's routes."""
    router = APIRouter(route_class=JSONRoute, tags=["control"])
    control = Control(service)

    @router.post("/start_profile", response_class=Response, responses=_ERRORS)
    async def start_profile() -> Response:
        """Begin a trace of the engine's steps."""
        await control.call("profile", "start", asked.folder, asked.with_stack, asked.record_shapes)
        return Response()

    @router.post("/stop_profile", response_class=Response, responses=_ERRORS)
    async def stop_profile() -> Response:
        """End the trace and write it."""
        await control.call("profile", "stop")
        return Response()

    return router
