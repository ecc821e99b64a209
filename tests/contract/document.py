"""Answers of a server against its OpenAPI document: status, content type and body must be what the document says."""

import json
import re
import urllib.error
import urllib.request

from jsonschema import Draft202012Validator

from octavo.testing.served import PATIENCE


def loads(text):
    """JSON as strict clients read it."""

    def refuse(name):
        raise AssertionError(f"{name} is no JSON")

    return json.loads(text, parse_constant=refuse)


class Document:
    """``checked`` asks and holds the answer against the document. ``seen``: (verb, path, status, kind) so far.

    ``closed``: an answer may hold nothing that is not documented.
    """

    def __init__(self, server, key=None, closed=True):
        self.server = server
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        status, body = server.get("/openapi.json", **self.headers)
        assert status == 200
        self.whole = json.loads(body)
        self.seen = set()
        for schema in self.whole["components"]["schemas"].values():
            if closed and "properties" in schema:
                schema.setdefault("additionalProperties", False)
        self._patterns = [
            (re.compile(re.sub(r"\{\w+\}", "[^/]+", path) + "$"), path)
            for path in sorted(self.whole["paths"], key=lambda path: "{" in path)
        ]

    def operations(self):
        """(verb, path) of each."""
        return [(verb, path) for path, verbs in self.whole["paths"].items() for verb in verbs]

    def operation(self, verb, path):
        """(path as the document has it, the operation)."""
        path = path.partition("?")[0]
        path = next(whole for pattern, whole in self._patterns if pattern.match(path))
        return path, self.whole["paths"][path][verb.lower()]

    def valid(self, value, schema):
        """Raises where ``value`` is not as ``schema`` says."""
        Draft202012Validator(schema | {"components": self.whole["components"]}).validate(value)

    def checked(self, verb, path, body=None, headers=None):
        """(status, content) of the answer: JSON, text, or for a stream what its events hold."""
        data = None if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
        headers = self.headers | ({"Content-Type": "application/json"} if data is not None else {}) | (headers or {})
        request = urllib.request.Request(self.server.url + path, data, headers, method=verb.upper())
        try:
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return self.judge(verb, path, answer.status, answer.headers, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return self.judge(verb, path, error.code, error.headers, error.read())

    def judge(self, verb, path, status, headers, answer):
        """``checked``'s half behind the request."""
        path, operation = self.operation(verb, path)
        responses = operation["responses"]
        assert str(status) in responses, (verb, path, status, answer)
        content = responses[str(status)].get("content")
        kind = (headers.get("content-type") or "").partition(";")[0]
        self.seen.add((verb.lower(), path, status, kind))
        if content is None:
            assert answer == b"", (verb, path, answer)
            return status, None
        assert kind in content, (verb, path, status, kind)
        if kind == "text/event-stream":
            return status, [self._event(frame, content[kind]["itemSchema"]) for frame in answer.split(b"\n\n")[:-1]]
        if kind != "application/json":
            return status, answer.decode()
        value = loads(answer)
        self.valid(value, content[kind]["schema"])
        return status, value

    def _event(self, frame, schema):
        lines = [line.partition(": ") for line in frame.decode().split("\n")]
        event = {name: text for name, _, text in lines}
        assert len(event) == len(lines)
        self.valid(event, schema)
        data = schema["properties"]["data"]
        if event["data"] == "[DONE]":
            return "[DONE]"
        value = loads(event["data"])
        self.valid(value, data.get("anyOf", [data])[0]["contentSchema"])
        if "event" in event:
            assert event["event"] == value["type"]
        return value
