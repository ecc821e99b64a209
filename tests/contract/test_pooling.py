"""Routes of pooling models: there, behind the key, and 501 for a model that generates."""

import json

import pytest

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
