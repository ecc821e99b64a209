"""The web page at /: a chat and a live board, as static files. They hold no data and no secret: what they show, the
page asks of the API with the key of its user. So the files are open to anybody; `--disable-web-ui` leaves them out.
"""

import hashlib
from pathlib import Path

from fastapi import APIRouter, Request
from starlette.responses import Response

_FOLDER = Path(__file__).parent / "web"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".svg": "image/svg+xml",
}
#: Path -> file. Each is a route of its own: no path that a client makes up is ever looked for on disk.
FILES = {"/": "index.html"} | {
    f"/web/{file.name}": file.name
    for file in sorted(_FOLDER.iterdir())
    if file.suffix in _KINDS and file.suffix != ".html"
}
#: Open without a key, as a browser that opens a page cannot send one.
OPEN_PATHS = frozenset(FILES)
#: The page may load from and talk to its own server only, run no inline script, and stand in nobody's frame.
_HEADERS = {
    "content-security-policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-cache",
}


def routes() -> APIRouter:
    """GET and HEAD of each file; the files are read once, here."""
    router = APIRouter(include_in_schema=False)
    for path, name in FILES.items():
        router.add_api_route(
            path, _answer((_FOLDER / name).read_bytes(), _KINDS[Path(name).suffix]), methods=["GET", "HEAD"]
        )
    return router


def _answer(body: bytes, kind: str):
    tag = f'"{hashlib.sha256(body).hexdigest()[:32]}"'
    headers = _HEADERS | {"content-type": kind, "etag": tag}

    async def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == tag:
            return Response(status_code=304, headers=headers)
        return Response(body, headers=headers)

    return answer
