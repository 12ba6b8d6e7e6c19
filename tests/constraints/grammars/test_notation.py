"""What is wrong with a grammar is said in one line, and nothing takes long."""

import time

import pytest
from tests import bpe

from ssdlm.constraints.grammars.grammar import SIZES, Grammar
from ssdlm.constraints.grammars.notation import COMMON, Token, read_grammar, unescaped
from ssdlm.storage.arrays import NO_CACHE
from ssdlm.tokenizer import load_tokenizer

CHAIN = "\n".join(f"a{n}: a{n + 1} a{n + 1}" for n in range(60))


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return load_tokenizer(bpe.write_gpt2(tmp_path_factory.mktemp("grammar")))


@pytest.mark.parametrize(
    ("grammar", "said"),
    [
        ('a: "x"', "grammar has no rule start, where texts begin; add it"),
        ("start: a\n", "grammar line 1: a is not defined"),
        ('root ::= "a" | b', "grammar line 1: b is not defined"),
        ('start: "a"\nstart: "b"', "grammar line 2: start is defined twice"),
        ('start: "a', "grammar line 1: '\"a' cannot be read"),
        ("start: A\nA: b\nb: /x/", "grammar line 2: a terminal refers to the rule b"),
        ("start: (a", "grammar line 1: ) is missing"),
        ('start: "a"~3..2', "3 is more than 2"),
        ('start: "a"~1000000000', "65536 repeats are the most"),
        ('start: "b".."a"', "a range is between two characters"),
        ("start: /a(?=b)/", "contains a lookahead"),
        ("start: /(/", "does not compile"),
        ("start: /^a/", "has ^, $ or another anchor"),
        ("%import .files.X\nstart: X", "a library is missing"),
        ("%import python.NAME\nstart: NAME", "only names of `common` can be imported"),
        ("%import common.NOPE\nstart: NOPE", "common has no 'NOPE'"),
        ("%declare X\nstart: X", "%declare is not supported"),
        (r'start: "\ud800"', "is no character"),
        ("start: " + "(" * 500 + '"a"' + ")" * 500, "more than 100 deep"),
        ("\n".join(f'a{n}: "x"' for n in range(600)), "500 rules are the most"),
        ('start: "a" start', "matches no text at all; correct it"),
        ("start: start", "matches no text at all; correct it"),
        (f"start: a0\n{CHAIN}\na60: /x/", "make it simpler"),
        ('start: ("a" | "b")* "a" ("a" | "b")~20', "make it simpler"),
        ('start: ("ab"~60000)~60000', "make it simpler"),
    ],
)
def test_a_bad_or_hostile_grammar_is_refused_in_one_line(tokenizer, monkeypatch, grammar, said):
    began = time.perf_counter()
    monkeypatch.setattr("ssdlm.constraints.grammars.grammar.SIZES", SIZES[-1:])
    with pytest.raises(ValueError) as caught:
        Grammar(grammar=grammar).compile(tokenizer, tokenizer.token_bytes(), NO_CACHE)
    assert said in str(caught.value) and "\n" not in str(caught.value)
    assert time.perf_counter() - began < 20


def test_every_name_of_common_can_be_imported():
    imports = "\n".join(f"%import common.{name} -> X{name}" for name in COMMON)
    rules = read_grammar(f"{imports}\n%import common (WS)\nstart: XINT WS", is_narrow=False)
    assert {f"X{name}" for name in COMMON} < set(rules)


def test_a_backslash_stands_for_itself_where_lark_says_so():
    token = Token("string", r'"\/\"\n\x41\d"', 1)
    assert unescaped(token) == '\\/"\nA\\d'
