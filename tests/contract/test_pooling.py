"""Routes of pooling models: there, behind the key, and 501 for a model that generates."""

import json

import pytest

from octavo.errors import EngineDead, Unsupported
from octavo.front.server.errors import respond

PATHS = ["/v1/embeddings", "/v2/embed", "/pooling", "/classify", "/score", "/v1/score", "/rerank", "/v1/rerank",
         "/v2/rerank"]  # fmt: skip


@pytest.mark.parametrize("path", PATHS)
def test_says_what_is_missing(server, path):
    status, answer = server.post(path, {"model": "tiny", "input": "a", "query": "q", "documents": ["d"]})
    assert status == 501
    assert "pooling" in answer["error"]["message"]
    assert answer["error"]["type"] == "NotImplementedError"
    assert server.post(path, {"model": "other"})[0] == 404
    assert server.raw(path, b"[")[0] == 400


def test_the_document_has_them(server):
    paths = json.loads(server.get("/openapi.json")[1])["paths"]
    for path in PATHS:
        assert "501" in paths[path]["post"]["responses"]
        assert "200" not in paths[path]["post"]["responses"]


def test_nobody_asks_again_for_what_there_is_not():
    """OpenAI's clients try a 5xx again, unless they are told not to."""
    assert respond(Unsupported("no pooling"), "/v1/embeddings").headers["x-should-retry"] == "false"
    assert "x-should-retry" not in respond(EngineDead("gone"), "/v1/embeddings").headers
