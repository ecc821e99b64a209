"""gRPC: the same engine, keys, limits and errors as HTTP."""

import asyncio
import contextlib
import os
import re
import signal
import socket
from pathlib import Path

import pytest
from ports import free_port

grpc = pytest.importorskip("grpc")
pytest.importorskip("grpc_health")
pytest.importorskip("grpc_reflection")

from google.protobuf.descriptor_pool import DescriptorPool  # noqa: E402
from grpc_health.v1 import health_pb2, health_pb2_grpc  # noqa: E402
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase  # noqa: E402

from octavo.front.grpc import messages, translate  # noqa: E402
from octavo.front.grpc.messages import GenerateRequest, GenerateResponse  # noqa: E402
from octavo.testing.served import ENDLESS, PATIENCE, VOCAB, Served, fake_model  # noqa: E402

KEY = (("authorization", "Bearer key"),)
Code = grpc.StatusCode
IDS = {"ids": [5, 9, 31]}


class Calls:
    """A server with gRPC, and the calls of a client."""

    def __init__(self, flags, **more):
        self.port = free_port()
        self.server = Served([*flags, "--grpc-port", str(self.port)], **more)

    @property
    def where(self):
        return f"127.0.0.1:{self.port}"

    def run(self, work, credentials=None):
        """What ``work(channel)`` gives."""

        async def inside():
            options = (("grpc.ssl_target_name_override", "localhost"),)
            open_channel = grpc.aio.insecure_channel(self.where)
            if credentials is not None:
                open_channel = grpc.aio.secure_channel(self.where, credentials, options)
            async with open_channel as channel:
                return await asyncio.wait_for(work(channel), PATIENCE)

        return asyncio.run(inside())

    def generate(self, metadata=KEY, **fields):
        async def work(channel):
            return await generate_of(channel)(GenerateRequest(**fields), metadata=metadata)

        return self.run(work)

    def stream(self, metadata=KEY, **fields):
        async def work(channel):
            return [one async for one in stream_of(channel)(GenerateRequest(**fields), metadata=metadata)]

        return self.run(work)

    def error(self, call=None, **fields):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            (call or self.generate)(**fields)
        return caught.value


def generate_of(channel):
    return channel.unary_unary(
        "/vllm.Generate/Generate", GenerateRequest.SerializeToString, GenerateResponse.FromString
    )


def stream_of(channel):
    return channel.unary_stream(
        "/vllm.Generate/GenerateStream", GenerateRequest.SerializeToString, GenerateResponse.FromString
    )


@pytest.mark.parametrize("data", [b"\x0a", b"\xff" * 40, b"\x0a\x05ab"])
@pytest.mark.parametrize("name", ["Generate", "GenerateStream"])
def test_bytes_that_are_no_message(calls, name, data):
    async def work(channel):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await channel.unary_unary(f"/vllm.Generate/{name}")(data, metadata=KEY)
        return caught.value

    error = calls.run(work)
    assert error.code() is Code.INVALID_ARGUMENT
    assert error.details() == "the message is no GenerateRequest"


@pytest.fixture(scope="module")
def calls(tmp_path_factory):
    # Slow enough that a call can be cancelled in its middle, and short of pages, so that leaked ones are missed.
    model = fake_model(tmp_path_factory.mktemp("model"), length=ENDLESS, latency=0.002)
    found = Calls([str(model), "--served-model-name", "tiny", "--api-key", "key", "--max-body-size", "64K",
                   "--max-n", "8", "--max-waiting", "1000"])  # fmt: skip
    try:
        found.server.ready()
        yield found
    finally:
        found.server.stop()


def http(calls, **body):
    status, answer = calls.server.post("/v1/completions", body, Authorization="Bearer key")
    assert status == 200, answer
    return answer["choices"]


def test_an_answer_is_that_of_http(calls):
    found = calls.generate(
        text="the cat", temperature=0.8, sampling={"seed": 4, "top_p": 0.9, "num_sequences": 2},
        stopping={"max_new_tokens": 12, "ignore_eos": True}, response={"output_token_ids": True},
    )  # fmt: skip
    same = http(calls, prompt="the cat", temperature=0.8, seed=4, top_p=0.9, n=2, max_tokens=12, ignore_eos=True,
                return_token_ids=True)  # fmt: skip
    assert [(one.text, list(one.token_ids)) for one in found.outputs] == [(c["text"], c["token_ids"]) for c in same]
    assert found.prompt_info.num_prompt_tokens == len(same[0]["prompt_token_ids"])
    for one in found.outputs:
        assert one.finish_info.finish_reason == one.finish_info.LENGTH
        assert one.finish_info.num_output_tokens == one.num_tokens == 12


def test_a_stream_adds_up(calls):
    ask = {
        "token_ids": IDS,
        "sampling": {"seed": 2, "num_sequences": 2},
        "stopping": {"max_new_tokens": 15},
        "response": {"output_token_ids": True, "output_logprobs": True, "prompt_token_ids": True},
    }
    whole, pieces = calls.generate(**ask), calls.stream(**ask)
    assert [one.HasField("prompt_info") for one in pieces] == [True] + [False] * (len(pieces) - 1)
    assert list(pieces[0].prompt_info.token_ids) == IDS["ids"]
    assert all(len(one.outputs) == 1 for one in pieces)
    for output in whole.outputs:
        mine = [one.outputs[0] for one in pieces if one.outputs[0].index == output.index]
        assert "".join(one.text for one in mine) == output.text
        assert [token for one in mine for token in one.token_ids] == list(output.token_ids)
        assert [value for one in mine for value in one.logprobs] == list(output.logprobs)
        assert mine[-1].finish_info == output.finish_info
        assert not any(one.HasField("finish_info") for one in mine[:-1])


def test_defaults(calls):
    plain = calls.generate(token_ids=IDS, stopping={"ignore_eos": True})
    assert plain.outputs[0].num_tokens == 20
    assert translate.params(GenerateRequest(text="a"), {"temperature": 0.7}, False).greedy
    found = translate.params(GenerateRequest(text="a", sampling={"top_k": 5}), {"temperature": 0.7, "top_k": 9}, True)
    assert (found.temperature, found.top_k, found.top_p) == (0.7, 5, 1.0)
    assert translate.params(GenerateRequest(text="a", temperature=0.8), {}, True).temperature == 0.8
    silent = calls.generate(token_ids=IDS, response={"output_text": False})
    assert (silent.outputs[0].text, list(silent.outputs[0].token_ids)) == ("", [])


def test_logprobs(calls):
    found = calls.generate(
        token_ids=IDS, stopping={"max_new_tokens": 3},
        response={"output_logprobs": True, "output_candidates": {"top_n": 2}, "prompt_logprobs": True,
                  "prompt_candidates": {"top_n": 1}, "output_token_ids": True},
    )  # fmt: skip
    (output,) = found.outputs
    assert len(output.logprobs) == len(output.ranks) == len(output.candidate_tokens) == output.num_tokens
    assert all(len(one.tokens) >= 1 for one in output.candidate_tokens)
    assert len(found.prompt_info.logprobs) == 3
    assert found.prompt_info.ranks[0] == 0
    assert list(found.prompt_info.candidate_tokens[0].tokens) == []


def test_stops(calls):
    ask = {"token_ids": IDS, "response": {"output_token_ids": True}, "sampling": {"seed": 1}}
    ids = list(calls.generate(**ask, stopping={"ignore_eos": True}).outputs[0].token_ids)
    stop = next(token for token in ids[3:] if ids.index(token) >= 3)
    info = calls.generate(**ask, stopping={"ignore_eos": True, "stop_token_ids": [stop]}).outputs[0].finish_info
    assert (info.finish_reason, info.stop_token_id) == (info.STOP, stop)
    text = calls.generate(**ask, stopping={"ignore_eos": True, "max_new_tokens": 40}).outputs[0].text
    word = next(letter for letter in text if letter.isprintable() and letter != "\ufffd")
    found = calls.generate(**ask, stopping={"ignore_eos": True, "max_new_tokens": 40, "stop_strings": [word]})
    assert found.outputs[0].finish_info.stop_string == word
    assert word not in found.outputs[0].text


@pytest.mark.parametrize(
    ("fields", "code", "param"),
    [
        ({}, Code.INVALID_ARGUMENT, "prompt"),
        ({"text": ""}, Code.INVALID_ARGUMENT, "prompt"),
        ({"token_ids": {}}, Code.INVALID_ARGUMENT, "prompt"),
        ({"token_ids": {"ids": [VOCAB]}}, Code.INVALID_ARGUMENT, "prompt"),
        ({"token_ids": {"ids": [2**32 - 1]}}, Code.INVALID_ARGUMENT, "prompt"),
        ({"text": "a", "stopping": {"max_new_tokens": ENDLESS}}, Code.INVALID_ARGUMENT, "max_tokens"),
        ({"text": "a", "model": "other"}, Code.NOT_FOUND, "model"),
        ({"text": "a", "request_id": "a b"}, Code.INVALID_ARGUMENT, "request_id"),
        ({"text": "a", "temperature": -1}, Code.INVALID_ARGUMENT, "temperature"),
        ({"text": "a", "temperature": float("nan")}, Code.INVALID_ARGUMENT, "temperature"),
        ({"text": "a", "sampling": {"num_sequences": 9}}, Code.INVALID_ARGUMENT, "n"),
        ({"text": "a", "sampling": {"top_p": 2.0}}, Code.INVALID_ARGUMENT, "top_p"),
        ({"text": "a", "stopping": {"max_new_tokens": 2 * ENDLESS}}, Code.INVALID_ARGUMENT, "max_tokens"),
        ({"text": "a", "stopping": {"stop_token_ids": [VOCAB]}}, Code.INVALID_ARGUMENT, "stop_token_ids"),
        ({"text": "a", "stopping": {"stop_strings": ["x"] * 100}}, Code.INVALID_ARGUMENT, "stop"),
        ({"text": "a", "decoding": {"logit_bias": {VOCAB: 1.0}}}, Code.INVALID_ARGUMENT, "logit_bias"),
        ({"text": "a", "decoding": {"choice": {}}}, Code.INVALID_ARGUMENT, "structured_outputs.choice"),
        ({"text": "a", "response": {"output_candidates": {"top_n": 99}}}, Code.INVALID_ARGUMENT, "logprobs"),
        ({"text": "a", "response": {"prompt_candidates": {"token_ids": IDS}}}, Code.UNIMPLEMENTED,
         "response.prompt_candidates"),
        ({"text": "a", "truncate_prompt_tokens": 10**6}, Code.INVALID_ARGUMENT, "truncate_prompt_tokens"),
        ({"text": "a", "kv": {"kv_transfer_params": {"x": 1}}}, Code.UNIMPLEMENTED, "kv.kv_transfer_params"),
        ({"text": "a", "priority": 3}, Code.INVALID_ARGUMENT, "priority"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(calls, fields, code, param):
    for call in (calls.generate, calls.stream):
        error = calls.error(call, **fields)
        assert (error.code(), dict(error.trailing_metadata()).get("param")) == (code, param), error.details()
        assert error.details()


def test_a_large_message_is_refused(calls):
    assert calls.error(text="a" * 100_000).code() is Code.RESOURCE_EXHAUSTED
    assert calls.generate(text="a").outputs


@pytest.mark.parametrize(
    "metadata",
    [(), (("authorization", "Bearer wrong"),), (("authorization", "Basic key"),), (("x-api-key", ""),)],
)
def test_a_key_is_needed(calls, metadata):
    for call in (calls.generate, calls.stream):
        assert calls.error(call, text="a", metadata=metadata).code() is Code.UNAUTHENTICATED


def test_both_ways_to_give_the_key(calls):
    assert calls.generate(text="a", metadata=(("x-api-key", "key"),)).outputs
    assert calls.generate(text="a", metadata=(("authorization", "bearer key"),)).outputs


def test_a_cancelled_call_frees_its_pages(calls):
    async def work(channel):
        ask = GenerateRequest(
            token_ids={"ids": [3] * 40}, stopping={"max_new_tokens": 100_000, "ignore_eos": True},
            sampling={"num_sequences": 4, "seed": 0},
        )  # fmt: skip
        for _ in range(8):
            streaming = stream_of(channel)(ask, metadata=KEY)
            async for _ in streaming:
                break
            streaming.cancel()
        await asyncio.to_thread(ended, 32)
        whole = generate_of(channel)(ask, metadata=KEY)
        await asyncio.to_thread(calls.server.until, "start", lambda: value("vllm:num_requests_running") == 4)
        whole.cancel()
        await asyncio.to_thread(ended, 36)
        with pytest.raises(grpc.aio.AioRpcError) as late:
            await generate_of(channel)(ask, metadata=KEY, timeout=0.5)
        return late.value.code()

    def ended(count):
        calls.server.until("end of all", lambda: value("vllm:request_success_total") == before + count)
        calls.server.until("rest", lambda: value("vllm:num_requests_running") == 0)

    def value(name):
        lines = calls.server.get("/metrics", Authorization="Bearer key")[1].decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name + "{"))

    before = value("vllm:request_success_total")
    assert calls.run(work) is Code.DEADLINE_EXCEEDED
    calls.server.until("rest", lambda: value("vllm:num_requests_running") == 0)
    calls.server.until("free pages", lambda: value("vllm:kv_cache_usage_perc") == 0)
    assert "a call failed" not in calls.server.log


def test_reflection_tells_the_file(calls):
    """Through a database that asks the server, as grpcurl does."""
    channel = grpc.intercept_channel(grpc.insecure_channel(calls.where), _WithKey())
    try:
        database = ProtoReflectionDescriptorDatabase(channel)
        assert {"vllm.Generate", "grpc.health.v1.Health"} <= set(database.get_services())
        found = DescriptorPool(database).FindServiceByName("vllm.Generate").methods_by_name["GenerateStream"]
        assert found.server_streaming
        assert found.input_type.fields_by_name["truncate_prompt_tokens"].number == 11
    finally:
        channel.close()
    channel = grpc.insecure_channel(calls.where)
    try:
        with pytest.raises(grpc.RpcError) as caught:
            ProtoReflectionDescriptorDatabase(channel).get_services()
        assert caught.value.code() is Code.UNAUTHENTICATED
    finally:
        channel.close()


class _WithKey(grpc.StreamStreamClientInterceptor):
    def intercept_stream_stream(self, continuation, details, requests):
        return continuation(details._replace(metadata=KEY), requests)


def test_health_needs_no_key(calls):
    async def work(channel):
        stub = health_pb2_grpc.HealthStub(channel)
        found = [await stub.Check(health_pb2.HealthCheckRequest(service=name)) for name in ("", "vllm.Generate")]
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Check(health_pb2.HealthCheckRequest(service="other"))
        return [one.status for one in found], caught.value.code()

    statuses, code = calls.run(work)
    assert statuses == [health_pb2.HealthCheckResponse.SERVING] * 2
    assert code is Code.NOT_FOUND


def test_a_dead_engine_turns_health_and_fails_calls(tmp_path):
    model = fake_model(tmp_path / "model", length=ENDLESS, latency=0.01)
    found = Calls([str(model)])
    try:
        server = found.server.ready()

        async def work(channel):
            watching = health_pb2_grpc.HealthStub(channel).Watch(health_pb2.HealthCheckRequest())
            first = (await watching.read()).status
            streaming = stream_of(channel)(
                GenerateRequest(text="a", stopping={"max_new_tokens": 100_000, "ignore_eos": True})
            )
            await streaming.read()
            os.kill(_engine_of(server.process.pid), signal.SIGKILL)
            second = (await watching.read()).status
            with contextlib.suppress(grpc.aio.AioRpcError):
                while await streaming.read() is not grpc.aio.EOF:
                    pass
            return first, second, await streaming.code()

        status = health_pb2.HealthCheckResponse
        assert found.run(work) == (status.SERVING, status.NOT_SERVING, Code.UNAVAILABLE)
        assert server.wait() == 1
    finally:
        found.server.stop()


def _engine_of(pid):
    """The engine's process: of the server's children the one that computes."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    named = {int(child): Path(f"/proc/{child}/cmdline").read_bytes() for child in children}
    return next(child for child, line in named.items() if b"resource_tracker" not in line)


def test_tls_and_client_certificates(tmp_path):
    trustme = pytest.importorskip("trustme")
    authority, stranger = trustme.CA(), trustme.CA()
    own = authority.issue_cert("localhost", "127.0.0.1")
    own.private_key_and_cert_chain_pem.write_to_path(tmp_path / "server.pem")
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    model = fake_model(tmp_path / "model")
    found = Calls([str(model), "--ssl-certfile", str(tmp_path / "server.pem"), "--ssl-ca-certs",
                   str(tmp_path / "ca.pem"), "--ssl-cert-reqs", "2"])  # fmt: skip

    def client(issuer):
        if issuer is None:
            return grpc.ssl_channel_credentials(authority.cert_pem.bytes())
        mine = issuer.issue_cert("client")
        chain = b"".join(blob.bytes() for blob in mine.cert_chain_pems)
        return grpc.ssl_channel_credentials(authority.cert_pem.bytes(), mine.private_key_pem.bytes(), chain)

    async def work(channel):
        return await generate_of(channel)(GenerateRequest(text="a", stopping={"max_new_tokens": 2}), timeout=PATIENCE)

    try:
        found.server.ready()
        assert found.run(work, client(authority)).outputs[0].num_tokens >= 1
        for issuer in (None, stranger):
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                found.run(work, client(issuer))
            assert caught.value.code() is Code.UNAVAILABLE
        with pytest.raises(grpc.aio.AioRpcError):
            found.run(work)
    finally:
        found.server.stop()


@pytest.mark.parametrize(
    ("flags", "word"),
    [
        (["--grpc-port", "70000"], "--grpc-port"),
        (["--grpc-port", "used"], "in use"),
        (["--grpc-port", "free", "--ssl-cert-reqs", "1"], "--ssl-cert-reqs 1 is not possible with gRPC"),
    ],
)
def test_a_start_that_cannot_work_says_why(model, tmp_path, flags, word):
    trustme = pytest.importorskip("trustme")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        names = {"used": str(taken.getsockname()[1]), "free": str(free_port())}
        if "--ssl-cert-reqs" in flags:
            trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(tmp_path / "all.pem")
            path = str(tmp_path / "all.pem")
            flags = [*flags, "--ssl-certfile", path, "--ssl-ca-certs", path]
        server = Served([str(model), *(names.get(one, one) for one in flags)])
        try:
            assert server.wait() == 1
            assert word in server.log.splitlines()[-1]
        finally:
            server.stop()


def test_without_the_extra_the_start_says_so(monkeypatch, tmp_path):
    import importlib.util

    from octavo.config.args import ServeArgs
    from octavo.errors import ConfigError
    from octavo.launch import online

    real = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "grpc" else real(name, *rest))
    with pytest.raises(ConfigError, match=r"octavo\[grpc\]"):
        online.serve(ServeArgs(model=str(fake_model(tmp_path)), host="127.0.0.1", port=0, grpc_port=free_port()))


def test_the_file_and_its_descriptors_agree():
    """Every line of the file that declares a field is in the descriptor, and nothing else is."""
    text = re.sub(r"//.*", "", Path(messages.__file__).with_name(messages.FILE).read_text(encoding="utf-8"))
    declared = set(re.findall(r"(\w+) = (\d+);", text))
    found = set()
    pending = list(messages.POOL.FindFileByName(messages.FILE).message_types_by_name.values())
    while pending:
        message = pending.pop()
        pending += message.nested_types
        if not message.GetOptions().map_entry:
            found |= {(field.name, str(field.number)) for field in message.fields}
        found |= {(value.name, str(value.number)) for enum in message.enum_types for value in enum.values}
    assert found == declared


def test_a_key_shares_no_cache_with_another(model):
    calls = Calls([str(model), "--api-key", "one", "two", "--isolate-keys"])
    try:
        calls.server.ready()
        ids = {"ids": [7 + index % 50 for index in range(200)]}

        def hits():
            text = calls.server.get("/metrics", Authorization="Bearer one")[1].decode().splitlines()
            return sum(float(line.split()[-1]) for line in text if line.startswith("vllm:prefix_cache_hits_total{"))

        for key, cached in (("one", 0), ("one", 196), ("two", 196), ("two", 392)):
            calls.generate((("x-api-key", key),), token_ids=ids, stopping={"max_new_tokens": 1})
            calls.server.until("hits", lambda cached=cached: hits() == cached)
    finally:
        calls.server.stop()
