"""What a server does not do for a client."""

import time

import pytest

from ssdlm.options import GenerateOptions
from ssdlm.serve.body import parse
from ssdlm.serve.errors import ApiError
from ssdlm.serve.limits import Limits


def test_a_client_cannot_name_a_file_on_the_server():
    limits = Limits()
    limits.check_options(GenerateOptions().change(json_schema={"type": "null"}))
    with pytest.raises(ValueError, match="names a file, and a server opens none"):
        limits.check_options(GenerateOptions(json_schema="schema.json"))


def test_a_text_has_only_so_many_controls():
    controls = ["sentiment=positive"] * 65
    GenerateOptions(control=tuple(controls[1:]))
    with pytest.raises(ValueError, match=r"^control has 65 controls, and 64 are the most"):
        GenerateOptions().change(control=controls)
    limits = Limits(max_controls=3)
    limits.check_options(GenerateOptions().change(control=controls[:3], lam=[1.0] * 3))
    with pytest.raises(ValueError, match=r"^control has 4 values, and this server takes 3; give"):
        limits.check_options(GenerateOptions().change(control=controls[:4]))
    with pytest.raises(ValueError, match=r"^lam has 4 values, and this server takes 3; give fewer"):
        limits.check_options(GenerateOptions().change(control=controls[:3], lam=[1.0] * 4))


def test_a_grammar_has_a_longest_length():
    with pytest.raises(ValueError, match="regex, json_schema or grammar has 1000000 characters"):
        Limits().check_options(GenerateOptions(regex="a" * 10**6))


def test_a_string_that_never_ends_is_looked_through_once():
    body = b'{"prompt":"x","a":' + b"[" * 20_001 + b'"' + b'\\"' * 500_000
    began = time.monotonic()
    with pytest.raises(ApiError, match="more than 20000 lists and objects"):
        parse(body)
    assert time.monotonic() - began < 2  # with a search from every quote it takes hours
