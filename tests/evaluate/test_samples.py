"""What is read, and everything that is refused because it would give a wrong number."""

import gzip
import hashlib
import json

import pytest

from ssdlm.evaluate.samples import (
    Pool,
    Sample,
    has_tokens,
    load,
    read_gold,
    read_pools,
    refuse_mixed_lengths,
)


def row(prompt, text, tokens=None):
    line = {"prompt": prompt, "text": text}
    return line if tokens is None else {**line, "tokens": tokens}


def pool(prompt, *samples):
    return Pool(prompt, tuple(samples))


def write(path, rows):
    path.write_text("".join(json.dumps(line) + "\n" for line in rows), encoding="utf-8")
    return path


def test_samples_are_pooled_by_prompt_in_order_of_appearance(tmp_path):
    rows = [row("b", " 1", [1]), row("a", " 2", [2]), row("b", " 3", [3])]
    expected = [
        pool("b", Sample(" 1", (1,)), Sample(" 3", (3,))),
        pool("a", Sample(" 2", (2,))),
    ]
    assert read_pools(write(tmp_path / "g.jsonl", rows)) == expected
    assert read_pools(rows) == expected


def test_other_keys_blank_lines_and_line_separators_in_text_do_no_harm(tmp_path):
    line = {"prompt": "p", "text": "a\u2028b", "tokens": [1], "calls": 50, "seed": 0}
    path = tmp_path / "g.jsonl"
    path.write_text(json.dumps(line, ensure_ascii=False) + "\n\n", encoding="utf-8")
    assert read_pools(path) == [pool("p", Sample("a\u2028b", (1,)))]


@pytest.mark.parametrize("content", [b"", b"\n \n"])
def test_an_empty_file_is_refused(tmp_path, content):
    path = tmp_path / "g.jsonl"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"g\.jsonl is empty"):
        read_pools(path)


@pytest.mark.parametrize(
    ("second_line", "message"),
    [
        (b'{"prompt": "p", "text": "caf\xe9"}', r"line 2 is not UTF-8"),
        (b'{"prompt": "p", "te', r"line 2 is not JSON"),
        (b"[1, 2]", r"line 2 is a list and not a JSON object"),
        (b'{"prompt": "p"}', r"line 2 has no string 'text' \(it has prompt\)"),
        (b'{"prompt": 3, "text": "t"}', r"line 2 has no string 'prompt' \(it is 3\)"),
        (b'{"prompt": "p", "text": null}', r"line 2 has no string 'text' \(it is null\)"),
        (b'{"prompt": "p", "text": "\\ud800"}', r"line 2: text contains half a surrogate pair"),
        (b'{"prompt": "p", "text": "t", "tokens": "12"}', r"line 2: tokens is not a list"),
        (b'{"prompt": "p", "text": "t", "tokens": ""}', r"line 2: tokens is not a list"),
        (b'{"prompt": "p", "text": "t", "tokens": [9223372036854775808]}', r"line 2: .* 64 bits"),
        (b'{"prompt": "p", "text": "t", "n": ' + b"1" * 5000 + b"}", r"line 2 .* too many digits"),
        (b'{"prompt": "p", "text": "t", "tokens": [1.5]}', r"line 2: tokens is not a list"),
        (b'{"prompt": "p", "text": "t", "tokens": [true]}', r"line 2: tokens is not a list"),
        (b'{"prompt": "p", "text": "t"}', r"has tokens on 1 of 2 lines"),
    ],
)
def test_a_broken_line_is_named(tmp_path, second_line, message):
    path = tmp_path / "g.jsonl"
    path.write_bytes(b'{"prompt": "p", "text": "t", "tokens": [1]}\n' + second_line + b"\n")
    with pytest.raises(ValueError, match=message) as error:
        read_pools(path)
    assert "\n" not in str(error.value)


def test_the_largest_token_id_that_an_array_holds_is_read():
    rows = [row("p", "t", [2**63 - 1])]
    assert read_pools(rows) == [pool("p", Sample("t", (2**63 - 1,)))]


@pytest.mark.parametrize("others", [0, 1])
def test_texts_most_of_which_repeat_their_prompt_are_refused(others):
    prompts = ["The sky above", "A cat that I saw"]
    rows = [row(prompt, prompt + " was grey") for prompt in prompts]
    rows += [row("The sea below", " was grey")] * others
    with pytest.raises(ValueError, match=f"2 of {2 + others} texts of .* repeat their prompts"):
        read_pools(rows)


@pytest.mark.parametrize(
    ("prompt", "text"), [(" ", " hello there"), ("\n", "\nhello"), ("I", "Ivan came")]
)
def test_a_text_may_begin_with_a_short_prompt_by_itself(prompt, text):
    assert read_pools([row(prompt, text)]) == [pool(prompt, Sample(text, None))]


def test_a_text_may_repeat_its_prompt_now_and_then():
    pools = read_pools([row("no", "no no"), row("yes", "it is")])
    assert [len(pool.samples) for pool in pools] == [1, 1]


def test_gold_follows_the_order_of_the_pools_and_counts_what_is_left():
    pools = read_pools([row("b", " 1"), row("a", " 2")])
    gold, left = read_gold([row("a", " A"), row("c", " C"), row("b", " B")], pools)
    assert [(pool.prompt, pool.samples[0].text) for pool in gold] == [("b", " B"), ("a", " A")]
    assert left == 1


def test_what_the_command_prompts_writes_is_gold():
    pools = read_pools([row("a", " 1 2", [1, 2])])
    line = {"prompt": "a", "gold": " A B", "gold_tokens": [3, 4], "source": "news"}
    assert read_gold([line], pools) == ([pool("a", Sample(" A B", (3, 4)))], 0)
    with pytest.raises(ValueError, match="row 1 has no string 'text'"):
        read_pools([line])


def test_what_is_loaded_is_described_as_it_was_read(tmp_path):
    path = write(tmp_path / "g.jsonl", [row("a", " 1")])
    content = path.read_bytes()
    loaded = load(path)
    path.unlink()
    assert read_pools(loaded) == [pool("a", Sample(" 1", None))]
    digest = hashlib.sha256(content).hexdigest()
    assert loaded.describe() == {"file": "g.jsonl", "sha256": digest}


def test_gold_beside_a_generated_text_is_the_gold():
    gold = {"gold": " A B", "gold_tokens": [3, 4]}
    rows = [row("a", " one two", [1, 2]) | gold, row("a", " six ten", [5, 6]) | gold]
    pools = read_pools(rows)
    assert [sample.text for sample in pools[0].samples] == [" one two", " six ten"]
    assert read_gold(rows, pools) == ([pool("a", Sample(" A B", (3, 4)))], 0)
    other = [rows[0], rows[1] | {"gold": " C D"}]
    with pytest.raises(ValueError, match="2 gold continuations"):
        read_gold(other, pools)


def test_a_mark_before_utf8_is_no_part_of_the_first_line(tmp_path):
    path = tmp_path / "g.jsonl"
    path.write_bytes(b"\xef\xbb\xbf" + json.dumps(row("a", " A")).encode())
    assert read_pools(path) == [pool("a", Sample(" A", None))]


def test_what_is_no_file_of_lines_is_refused_with_the_remedy(tmp_path):
    packed = tmp_path / "g.jsonl.gz"
    packed.write_bytes(gzip.compress(b"{}"))
    named = {tmp_path: "is a folder; give", tmp_path / "none": "there is no file", packed: "unpack"}
    for path, told in named.items():
        with pytest.raises(ValueError, match=told):
            read_pools(path)


def test_a_prompt_with_two_golds_is_refused():
    pools = read_pools([row("a", " 1")])
    with pytest.raises(ValueError, match="2 gold continuations for the prompt 'a'"):
        read_gold([row("a", " A"), row("a", " B")], pools)


def test_a_prompt_without_gold_is_refused_even_for_a_space():
    pools = read_pools([row("a", " 1"), row("b", " 2")])
    with pytest.raises(ValueError, match=r"no gold continuation for 1 of 2 prompts.*'b'"):
        read_gold([row("a", " A"), row("b ", " B")], pools)


def test_unequal_numbers_of_samples_are_refused():
    pools = read_pools([row("a", " 1"), row("a", " 2"), row("b", " 3")])
    with pytest.raises(ValueError, match="1 samples for some prompts and 2 for others"):
        refuse_mixed_lengths(pools, [], "the generations")


def test_continuations_of_unequal_length_are_refused():
    pools = read_pools([row("a", " 1", [1, 2]), row("b", " 3", [3])])
    with pytest.raises(ValueError, match="mixes continuations of 1 to 2 tokens"):
        refuse_mixed_lengths(pools, [], "the generations")


def test_gold_of_another_length_is_refused_by_tokens():
    pools = read_pools([row("a", " 1", [1, 2])])
    gold, _ = read_gold([row("a", " 1 2", [1, 2, 3])], pools)
    with pytest.raises(ValueError, match=r"gold continuations have 3 tokens, those of .* 2"):
        refuse_mixed_lengths(pools, gold, "the generations")


@pytest.mark.parametrize(("tokens", "gold_tokens"), [([1, 2], None), (None, [1, 2]), (None, None)])
def test_gold_of_another_length_is_refused_by_words_where_either_has_no_tokens(tokens, gold_tokens):
    pools = read_pools([row("a", " one two three", tokens)])
    gold, _ = read_gold([row("a", " one two three" * 3, gold_tokens)], pools)
    with pytest.raises(ValueError, match=r"4\.0 words per continuation, its gold 10\.0"):
        refuse_mixed_lengths(pools, gold, "the generations")


def test_texts_of_unequal_words_pass_where_nothing_has_tokens():
    pools = read_pools([row("a", " x"), row("b", " y" * 200)])
    assert refuse_mixed_lengths(pools, [], "the generations") is None


@pytest.mark.parametrize(
    ("rows", "gold"),
    [
        ([row("a", " 1", [1]), row("b", " 2", [1, 2])], []),
        ([row("a", " 1"), row("a", " 2"), row("b", " 3")], []),
        ([row("a", " 1", [1])], [row("a", " 1 2", [1, 2])]),
        ([row("a", " 1 2")], [row("a", " 1 2" * 9)]),
    ],
)
def test_refused_lengths_name_the_file_and_the_flag(rows, gold):
    pools = read_pools(rows)
    with pytest.raises(ValueError, match=r"g\.jsonl.*--mixed-lengths"):
        refuse_mixed_lengths(pools, read_gold(gold, pools)[0] if gold else [], "g.jsonl")


def test_equal_lengths_pass():
    pools = read_pools([row("a", " x y", [1, 2]), row("b", " u v", [3, 4])])
    gold, _ = read_gold([row("a", " k l"), row("b", " m n")], pools)
    refuse_mixed_lengths(pools, gold, "the generations")
    assert has_tokens(pools)
    assert not has_tokens(gold)
