"""`octavo top`: figures from metrics, without a server."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from octavo.cli import top
from octavo.errors import ConfigError

TEXT = """# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m",engine="0"} 3.0
vllm:num_requests_running{model_name="m",engine="1"} 2.0
# TYPE vllm:kv_cache_usage_perc gauge
vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.5
vllm:kv_cache_usage_perc{model_name="m",engine="1"} 0.25
# TYPE vllm:generation_tokens counter
vllm:generation_tokens_total{model_name="m",engine="0"} 100.0
# TYPE vllm:request_success counter
vllm:request_success_total{model_name="m",engine="0",finished_reason="stop"} 4.0
vllm:request_success_total{model_name="m",engine="0",finished_reason="length"} 5.0
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_bucket{model_name="m",engine="0",le="0.01"} 2.0
vllm:time_to_first_token_seconds_bucket{model_name="m",engine="0",le="0.1"} 10.0
vllm:time_to_first_token_seconds_bucket{model_name="m",engine="0",le="+Inf"} 10.0
vllm:time_to_first_token_seconds_count{model_name="m",engine="0"} 10.0
vllm:time_to_first_token_seconds_sum{model_name="m",engine="0"} 0.5
"""
FIRST = "vllm:time_to_first_token_seconds"


def test_a_look_sums_over_engines_and_reasons():
    found = top.read(TEXT, 1.0)
    assert (found.model, found.running, found.output, found.answered, found.kv) == ("m", 5, 100, 9, 0.375)
    assert found.latencies[FIRST] == {0.01: 2, 0.1: 10, math.inf: 10}


@pytest.mark.parametrize(("text", "told"), [("", "none of a model"), ("<html> nothing\n", "not in Prometheus")])
def test_other_texts_are_refused(text, told):
    with pytest.raises(ConfigError, match=told):
        top.read(text, 0.0)


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("localhost:8000", "http://localhost:8000"),
        ("http://here/v1/", "http://here"),
        ("https://here:1", "https://here:1"),
        ("[::1]:80", "http://[::1]:80"),
    ],
)
def test_addresses(said, meant):
    assert top.address(said) == meant


def test_an_address_of_something_else():
    with pytest.raises(ConfigError, match="must begin with http"):
        top.address("ftp://here")


@pytest.mark.parametrize("words", [["--url", "127.0.0.1:9"], ["127.0.0.1:9"], ["127.0.0.1:9", "--url", "127.0.0.1:9"]])
def test_the_server_by_place_or_by_flag(words):
    with pytest.raises(ConfigError, match=r"no server answers at http://127\.0\.0\.1:9:"):
        top.main(words)


def test_two_servers(capsys):
    with pytest.raises(SystemExit):
        top.main(["here", "--url", "there"])
    assert "given twice" in capsys.readouterr().err


def test_speeds_and_latencies_are_those_between_looks():
    before = top.read(TEXT, 10.0)
    after = top.read(
        TEXT.replace(" 100.0\n", " 350.0\n")
        .replace('le="0.1"} 10.0', 'le="0.1"} 12.0')
        .replace('le="+Inf"} 10.0', 'le="+Inf"} 12.0'),
        12.0,
    )
    assert top.rates([before, after], "output") == [125.0]
    assert top.rates([after, before], "output") == [0.0], "a server that began anew"
    assert top.since(after.latencies[FIRST], before.latencies[FIRST]) == {0.01: 0, 0.1: 2, math.inf: 0}
    assert top.since(before.latencies[FIRST], before.latencies[FIRST]) == {0.01: 2, 0.1: 8, math.inf: 0}
    said = "\n".join(top.picture([before, after], "http://here"))
    for words in ("5 running", "125 output", "37.5%", "9 answered", "http://here"):
        assert words in said
    assert "55 ms" in next(line for line in said.splitlines() if "first token" in line)


def test_a_picture_of_a_fresh_server():
    said = "\n".join(top.picture([top.Look(0.0)], "u"))
    assert "nothing asked yet" in said
    assert "nan" not in said


@given(st.lists(st.integers(0, 1000), min_size=2, max_size=12), st.floats(0.01, 1.0))
def test_quantiles_lie_in_their_bucket(counts, q):
    bounds = [float(index + 1) for index in range(len(counts) - 1)] + [math.inf]
    found = top.quantile(dict(zip(bounds, counts, strict=True)), q)
    total = sum(counts)
    if not total:
        assert found is None
        return
    assert found is not None
    under = sum(count for bound, count in zip(bounds, counts, strict=True) if bound < found)
    within = (
        sum(count for bound, count in zip(bounds, counts, strict=True) if bound < found + 1)
        if found < bounds[-2]
        else total
    )
    assert under <= q * total + 1e-6
    assert within >= q * total - 1e-6
