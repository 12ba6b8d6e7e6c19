"""What a stream tells of a text on its way, token by token."""

import pytest
from tests import tiny
from tests.bpe import write_gpt2

from ssdlm.engine.plain import Engine
from ssdlm.engine.requests import Request
from ssdlm.engine.schedule import Job
from ssdlm.options import GenerateOptions
from ssdlm.serve.looks import DecidedText
from ssdlm.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def engine(tmp_path_factory):
    tokenizer = load_tokenizer(write_gpt2(tmp_path_factory.mktemp("bpe")))
    return Engine(tiny.block(V=tokenizer.V), tokenizer)


def told(engine, text, prompt="The", **options):
    """What is told when a text is decided one token after another."""
    assert engine.tokenizer is not None
    ids = engine.tokenizer.encode(text)
    options = GenerateOptions(length=len(ids) + 1, **options)
    request = Request(prompt, tuple(engine.tokenizer.encode(prompt)), options)
    look = DecidedText(engine, request)
    return [look(Job(request, ids[: count + 1])) for count in range(len(ids))]


def test_a_character_of_several_tokens_is_told_when_it_is_whole(engine):
    pieces = told(engine, "a\u00e9\u20ac\U0001f600b")
    assert [piece for new in pieces for piece in new] == [
        "a",
        "\u00e9",
        "\u20ac",
        "\U0001f600",
        "b",
    ]
    assert len(pieces) == 1 + 2 + 3 + 4 + 1


def test_what_may_become_a_stop_string_is_held_back(engine):
    assert told(engine, "ab..c", stop=("...",)) == [["a"], ["b"], [], [], ["..c"]]


def test_nothing_is_told_after_a_stop_string(engine):
    assert "".join(new for one in told(engine, "ab.cd", stop=(".",)) for new in one) == "ab"


def test_nothing_is_told_twice(engine):
    request = Request("The", (1,), GenerateOptions(length=9))
    look, job = DecidedText(engine, request), Job(request, [])
    assert look(job) == []
    job.tokens = [65, 66]
    first = look(job)
    assert len(first) == 1 and look(job) == []


def test_what_follows_a_gap_is_not_told(engine):
    pieces = told(engine, "abc", suffix="b")
    assert "".join(new for one in pieces for new in one) == "abc"
    ids = engine.tokenizer.encode("ab end")
    request = Request("The", (1,), GenerateOptions(length=2, suffix=" end"))
    assert DecidedText(engine, request)(Job(request, ids)) == ["ab"]
