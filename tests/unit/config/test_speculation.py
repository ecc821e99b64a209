"""--speculative-config: what is taken, and the sentence for what is not."""

import pytest

from octavo.config.args import EngineArgs
from octavo.config.engine import Speculation
from octavo.config.resolve import resolve
from octavo.config.speculation import speculation_of
from octavo.core.engine.core import EngineCore
from octavo.errors import ConfigError
from octavo.testing.cores import fake_config
from octavo.testing.served import fake_model


@pytest.mark.parametrize(
    ("asked", "decided"),
    [
        ({"prompt_lookup_max": 4, "prompt_lookup_min": 2}, (2, 4)),
        ({"prompt_lookup_max": 4}, (4, 4)),
        ({"prompt_lookup_min": 3}, (3, 3)),
        ({"prompt_lookup_max": None}, (5, 5)),
    ],
)
def test_bounds_of_a_lookup_are_those_of_vllm(asked, decided):
    found = speculation_of({"method": "ngram", "num_speculative_tokens": 4, **asked})
    assert found == Speculation(method="ngram", tokens=4, shortest=decided[0], longest=decided[1])


def test_the_command_line_gives_json():
    text = '{"method": "grammar", "num_speculative_tokens": 9}'
    args = EngineArgs.of({"speculative-config": text}, "flag")
    assert speculation_of(args.speculative_config) == Speculation(method="grammar", tokens=9)
    with pytest.raises(ConfigError, match="takes a JSON object"):
        EngineArgs.of({"speculative-config": "ngram"}, "flag")


@pytest.mark.parametrize(
    ("asked", "sentence"),
    [
        ({}, "names no method; possible: grammar, ngram"),
        ({"method": "eagle", "num_speculative_tokens": 3}, "has the method 'eagle'"),
        ({"method": ["ngram"], "num_speculative_tokens": 3}, "has the method"),
        ({"method": "ngram"}, "needs num_speculative_tokens"),
        ({"method": "ngram", "num_speculative_token": 3}, "did you mean 'num_speculative_tokens'"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "from 1 to 32"),
        ({"method": "ngram", "num_speculative_tokens": 33}, "from 1 to 32"),
        ({"method": "grammar", "num_speculative_tokens": -1}, "from 0 to 32"),
        ({"method": "ngram", "num_speculative_tokens": True}, "a whole number"),
        ({"method": "ngram", "num_speculative_tokens": 2.0}, "a whole number"),
        ({"method": "ngram", "num_speculative_tokens": "4"}, "a whole number"),
        ({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 0}, "prompt_lookup_min 0"),
        ({"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_max": 2, "prompt_lookup_min": 3}, "3 over"),
        ({"method": "grammar", "num_speculative_tokens": 4, "prompt_lookup_max": 2}, "only the method 'ngram'"),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(asked, sentence):
    with pytest.raises(ConfigError) as caught:
        speculation_of(asked)
    assert sentence in str(caught.value)
    assert str(caught.value).startswith("--speculative-config ")


@pytest.mark.parametrize(("verifies", "sentence"), [(0, "steps verify no drafts yet"), (3, "at most 3 a request")])
def test_a_device_that_cannot_verify_them_is_told_at_the_start(verifies, sentence):
    core = EngineCore(fake_config({"drafts": verifies}, speculation=Speculation(method="ngram", tokens=4)))
    with pytest.raises(ConfigError, match=sentence):
        core.start()
    core.close()


def test_a_cpu_verifies_what_grammars_force_unless_told_otherwise(tmp_path):
    model = str(fake_model(tmp_path))
    found = resolve(EngineArgs.of({"model": model})).schedule.speculation
    assert (found.method, found.asked) == ("grammar", False)
    assert resolve(EngineArgs.of({"model": model, "async_scheduling": True})).schedule.speculation is None


def test_who_asks_for_drafts_has_no_step_in_flight_before_its_last_token_is_known(tmp_path):
    asked = {"model": str(fake_model(tmp_path)), "device": "cuda"}
    assert resolve(EngineArgs.of(asked)).schedule.depth == 2
    config = resolve(EngineArgs.of(asked | {"speculative_config": {"method": "ngram", "num_speculative_tokens": 3}}))
    assert config.schedule.depth == 1
    assert "last token" in config.why["schedule.depth"]
