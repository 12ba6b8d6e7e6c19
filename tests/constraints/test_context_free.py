"""Texts of context-free grammars are whole within their room, however they are written."""

import random
import re

import pytest
from tests import bpe, tiny
from tests.constraints.babbler import Babbler

from ssdlm import SSDLM, DecodeConfig
from ssdlm.cli import main
from ssdlm.tokenizer import load_tokenizer

BRACKETS = """
start: "(" start ")" start | "[" WORD "]" | "x"
WORD: /[a-c]{2,5}/
"""
PATHS = [
    {"mode": "autoregressive"},
    {"grid": "sliding", "width": 1.0, "returns": "w_0"},
    {"grid": "sliding", "width": 4.0, "returns": "w_0"},
    {"grid": "staggered", "width": 4.0},
    {"grid": "uniform", "T": 3},
]


def is_whole(text: str) -> bool:
    """Whether BRACKETS has a text, by rewriting it from the inside."""
    before = ""
    while text != before:
        before, text = text, re.sub(r"\[[a-c]{2,5}\]", "x", text)
        text = re.sub(r"\(x\)x", "x", text)
    return text == "x"


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    return load_tokenizer(bpe.write_gpt2(tmp_path_factory.mktemp("bytes")))


@pytest.fixture(scope="module")
def model(gpt2):
    return SSDLM(tiny.block(V=gpt2.V), gpt2, DecodeConfig(length=18, B=(6,), T=4))


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_texts_are_whole_on_every_path_in_any_room(model, path):
    rng = random.Random(str(path))
    for length in (1, 5, 6, 18):
        options = path | {"length": length, "seed": rng.randrange(99), "top_p": 0.9}
        for made in model.generate(["a", "b"], grammar=BRACKETS, num_samples=2, **options):
            assert is_whole(made.text), made.text
            assert len(made.tokens) <= length


def test_a_network_that_babbles_is_brought_to_an_end_in_time(gpt2):
    opening = gpt2.encode_plain(["("])[0]
    path = DecodeConfig(length=11, B=(11,), T=11, grid="staggered", width=1.0)
    babbler = SSDLM(Babbler(gpt2.V, wanted=opening), gpt2, path)
    longest = 0
    for seed in range(4):
        made = babbler.generate("a", grammar=BRACKETS, seed=seed)
        assert is_whole(made.text), made.text
        longest = max(longest, len(made.tokens))
    assert longest > 3


def test_the_least_room_is_enough_and_one_token_less_is_refused_with_it(model):
    grammar = 'start: "key" ": " value\nvalue: "<" value ">" | "[" /[0-9]{7}/ "]"'
    with pytest.raises(ValueError, match="takes at least") as caught:
        model.generate("a", grammar=grammar, length=2)
    least = int(re.search(r"at least (\d+) tokens, and there is room for 2", str(caught.value))[1])
    for seed in range(4):
        text = model.generate("a", grammar=grammar, length=least, seed=seed).text
        assert re.fullmatch(r"key: <*\[\d{7}\]>*", text), text
    with pytest.raises(ValueError, match=rf"at least {least} tokens, and .* for {least - 1};"):
        model.generate("a", grammar=grammar, length=least - 1)


def test_each_prompt_may_have_its_own_beside_others_and_a_stream_is_whole(model):
    grammars = [BRACKETS, 'root ::= "no" | "yes" root']
    first, second = model.generate(["a", "b"], grammar=grammars, must_not=["no"])
    assert is_whole(first.text)
    assert re.fullmatch("(yes)*no", second.text) and second.text != "no"
    assert is_whole(list(model.stream("a", grammar=BRACKETS))[-1].text)


def test_a_file_or_a_text_is_given_on_the_command_line(tmp_path, model, capsys):
    folder = str(tmp_path / "model")
    model.save_pretrained(folder)
    (tmp_path / "g.lark").write_text(BRACKETS)
    for given in (str(tmp_path / "g.lark"), BRACKETS):
        assert main(["generate", "a", "--model", folder, "--grammar", given]) == 0
        assert is_whole(capsys.readouterr().out.strip().removeprefix("a"))
    for given, said in (("none.lark", "No such file"), ("start: b", "b is not defined")):
        assert main(["generate", "a", "--model", folder, "--grammar", given]) == 2
        error = capsys.readouterr().err
        assert said in error and error.count("\n") == 1
    (tmp_path / "g.lark").write_bytes(b'start: "\xff"')
    with pytest.raises(ValueError, match="is not UTF-8"):
        model.generate("a", grammar=tmp_path / "g.lark")


def test_two_grammars_or_a_stop_beside_one_are_refused(model):
    for more in ({"regex": "a"}, {"json_schema": {"type": "null"}}, {"stop": ["x"]}):
        with pytest.raises(ValueError, match="grammar"):
            model.generate("a", grammar=BRACKETS, **more)
