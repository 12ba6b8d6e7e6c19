"""OpenAI's completions: its fields mean what they mean there, and texts are the library's own."""

import pytest
from tests import tiny
from tests.bpe import write_gpt2
from tests.closeness import assert_close
from tests.serve.running import OPTIONS, serving

from ssdlm import SSDLM
from ssdlm.diffusion.likelihood import text_nll
from ssdlm.tokenizer import load_tokenizer


def texts_of(answer):
    return [choice["text"] for choice in answer["choices"]]


def joined(chunks, index=0):
    """What a stream adds up to."""
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    return "".join(choice["text"] for choice in choices if choice["index"] == index)


def test_prompt_length_and_seed_alone_give_what_generate_gives(server):
    answer = server.complete(model="tiny", prompt="The river", max_tokens=9, seed=3)
    text = server.model.generate("The river", length=9, seed=3)
    assert texts_of(answer) == [text.text]
    assert answer["object"] == "text_completion" and answer["model"] == "tiny"
    assert answer["usage"] == {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18}
    assert answer["choices"][0]["finish_reason"] == "length"


def test_fields_left_out_take_the_models_own_settings(server):
    assert texts_of(server.complete(prompt="ab")) == [server.model.generate("ab").text]


def test_null_is_left_out(server):
    names = ("max_tokens", "temperature", "top_p", "n", "best_of", "seed", "stop", "suffix", "echo")
    names += ("logprobs", "stream", "stream_options", "user", "logit_bias", "model")
    answer = server.complete(prompt="ab", **dict.fromkeys(names))
    assert texts_of(answer) == [server.model.generate("ab").text]


def test_several_prompts_with_several_texts_each(server):
    answer = server.complete(prompt=["ab", "cd"], n=2, max_tokens=6, seed=1)
    texts = server.model.generate(["ab", "cd"], num_samples=2, length=6, seed=1)
    assert texts_of(answer) == [text.text for text in texts]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
    assert answer["usage"]["prompt_tokens"] == 4
    assert answer["usage"]["completion_tokens"] == 24


def test_prompts_may_be_token_ids(server):
    ids = server.model.tokenizer.encode("The river")
    expected = [server.model.generate("The river").text]
    assert texts_of(server.complete(prompt=ids)) == expected
    assert texts_of(server.complete(prompt=[ids])) == expected


def test_temperature_zero_is_greedy(server):
    greedy = server.model.generate("ab", projection="greedy").text
    assert texts_of(server.complete(prompt="ab", temperature=0, seed=5)) == [greedy]
    assert texts_of(server.complete(prompt="ab", temperature=0.0, top_p=1)) == [greedy]


@pytest.mark.parametrize("beside", [{"temperature": 0}, {"projection": "greedy"}])
def test_temperature_and_top_p_are_never_refused_where_they_have_no_effect(server, beside):
    greedy = texts_of(server.complete(prompt="ab", temperature=0))
    body = {"prompt": "ab", "temperature": 0.4, "top_p": 0.3} | beside
    assert texts_of(server.complete(**body)) == greedy
    assert server.refusal(**body | {"band": [0.1, 0.5]})["param"] == "band"


def test_temperature_and_top_p_are_the_librarys(server):
    text = server.model.generate("ab", temperature=0.5, top_p=0.7, seed=2).text
    assert texts_of(server.complete(prompt="ab", temperature=0.5, top_p=0.7, seed=2)) == [text]


def test_options_of_the_library_ride_in_the_same_body(server):
    changes = {"must": ["ab"], "B": 12, "T": 8, "grid": "staggered", "width": 2.0}
    text = server.model.generate("cd", **changes).text
    assert "ab" in text
    assert texts_of(server.complete(prompt="cd", **changes)) == [text]


def test_a_text_ends_before_a_stop_string(server):
    whole = server.model.generate("The river", length=12).text
    answer = server.complete(prompt="The river", max_tokens=12, stop=[whole[5:7], "zzzz"])
    assert texts_of(answer) == [whole[:5]]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_echo_repeats_the_prompt(server):
    text = server.model.generate("The river").text
    assert texts_of(server.complete(prompt="The river", echo=True)) == ["The river" + text]
    assert joined(server.chunks(prompt="The river", echo=True)) == "The river" + text


def test_a_suffix_is_not_repeated(server):
    whole = server.model.generate("ab", length=6, suffix=" end").text
    assert whole.endswith(" end")
    gap = whole.removesuffix(" end")
    answer = server.complete(prompt="ab", max_tokens=6, suffix=" end")
    assert texts_of(answer) == [gap] and answer["usage"]["completion_tokens"] == 6
    assert joined(server.chunks(prompt="ab", max_tokens=6, suffix=" end")) == gap


def test_a_gap_of_unknown_length_is_filled_as_the_library_fills_it(server):
    options = {"suffix": " end", "gap": "3-5"}
    texts = [
        text.text.removesuffix(" end")
        for text in server.model.generate("ab", num_samples=2, **options)
    ]
    answer = server.complete(prompt=["ab"], n=2, logprobs=0, **options)
    assert texts_of(answer) == texts
    assert [len(one["logprobs"]["tokens"]) for one in answer["choices"]] == list(map(len, texts))
    written = 2 * (3 + 4 + 5)
    assert answer["usage"] == {
        "prompt_tokens": 2,
        "completion_tokens": written,
        "total_tokens": 2 + written,
    }


def test_best_of_returns_the_likeliest_n_of_all(server):
    texts = server.model.generate("ab", num_samples=5, length=6)
    context = server.model.context("ab")
    rated = sorted(texts, key=lambda text: text_nll(server.model.denoiser, context, text.tokens))
    answer = server.complete(prompt="ab", n=2, best_of=5, max_tokens=6)
    assert texts_of(answer) == [text.text for text in rated[:2]]
    assert answer["usage"]["completion_tokens"] == 30


def test_logprobs_are_those_of_the_context_stream(server):
    choice = server.complete(prompt="ab", max_tokens=6, logprobs=3)["choices"][0]
    found = choice["logprobs"]
    assert "".join(found["tokens"]) == choice["text"]
    assert found["text_offset"] == [2, 3, 4, 5, 6, 7]
    text = server.model.generate("ab", length=6)
    expected = text_nll(server.model.denoiser, server.model.context("ab"), text.tokens)
    assert_close(-sum(found["token_logprobs"]) / 6, expected)
    for own, token, top in zip(
        found["token_logprobs"], found["tokens"], found["top_logprobs"], strict=True
    ):
        assert len(top) == 3
        assert own <= max(top.values())
        assert top.get(token, own) == own


def test_no_tokens_but_the_prompts_rated(server):
    answer = server.complete(prompt="abc", max_tokens=0, echo=True, logprobs=0)
    choice = answer["choices"][0]
    assert choice["text"] == "abc" and answer["usage"]["completion_tokens"] == 0
    assert choice["logprobs"]["tokens"] == ["a", "b", "c"]
    first, *others = choice["logprobs"]["token_logprobs"]
    assert first is None and all(value < 0 for value in others)
    assert choice["logprobs"]["top_logprobs"] is None
    chunks = server.chunks(prompt="abc", max_tokens=0, echo=True)
    assert joined(chunks) == "abc"
    assert chunks[-1]["choices"][0]["finish_reason"] == "length"


def test_a_stream_adds_up_to_the_text_and_ends_with_its_usage(server):
    chunks = server.chunks(
        prompt=["ab", "cd"], n=2, seed=4, stream_options={"include_usage": True}, logprobs=1
    )
    texts = server.model.generate(["ab", "cd"], num_samples=2, seed=4)
    assert [joined(chunks, index) for index in range(4)] == [text.text for text in texts]
    *parts, last = chunks
    assert last["choices"] == [] and last["usage"]["completion_tokens"] == 48
    assert all(part["usage"] is None for part in parts)
    ends = [c for part in parts for c in part["choices"] if c["finish_reason"]]
    assert sorted(end["index"] for end in ends) == [0, 1, 2, 3]
    assert all(len(end["logprobs"]["tokens"]) == 12 for end in ends)
    assert len(parts) > 8  # it came piece by piece


def test_a_stream_tells_no_part_of_a_stop_string(server):
    whole = server.model.generate("The river", length=12).text
    stop = whole[4:7]
    chunks = server.chunks(prompt="The river", max_tokens=12, stop=stop)
    assert joined(chunks) == whole[:4]
    # A string that begins like the text goes on, and does not come, is told after all.
    never = whole[4:6] + "\x00"
    assert joined(server.chunks(prompt="The river", max_tokens=12, stop=never)) == whole


def test_drafts_replace_each_other(server):
    changes = {"grid": "staggered", "B": 6, "T": 8, "width": 4.0, "length": 12}
    chunks = server.chunks(prompt="ab", diffusing=True, echo=True, **changes)
    drafts = [chunk["choices"][0]["text"] for chunk in chunks]
    assert drafts[-1] == "ab" + server.model.generate("ab", **changes).text
    assert len(set(drafts)) > 6
    assert [c["choices"][0]["finish_reason"] for c in chunks][-2:] == [None, "length"]


def test_no_stream_breaks_a_character(tmp_path):
    tokenizer = load_tokenizer(write_gpt2(tmp_path))
    model = SSDLM(tiny.block(V=tokenizer.V), tokenizer, OPTIONS)
    with serving(model) as server:
        for seed in range(4):
            chunks = server.chunks(prompt="ab", max_tokens=24, seed=seed)
            text = model.generate("ab", length=24, seed=seed).text
            pieces = [chunk["choices"][0]["text"] for chunk in chunks]
            assert "".join(pieces) == text
            assert len(pieces) > 4


@pytest.mark.parametrize(
    ("body", "name", "words"),
    [
        ({"max_tokens": 10**6}, "max_tokens", "use 0 to 512"),
        ({"max_tokens": "5"}, "max_tokens", "not a whole number"),
        ({"max_tokens": -1}, "max_tokens", "out of range"),
        ({"temperature": 1000}, "temperature", "out of range"),
        ({"temperature": True}, "temperature", "not a number"),
        ({"top_p": 2}, "top_p", "out of range"),
        ({"n": 0}, "n", "use 1 to"),
        ({"n": 65}, "n", "use 1 to 64"),
        ({"n": 3, "best_of": 2}, "best_of", "less than n=3"),
        ({"best_of": 2, "stream": True}, "best_of", "does not go with stream"),
        ({"seed": -1}, "seed", "out of range"),
        ({"seed": 2**70}, "seed", "out of range"),
        ({"logprobs": 6}, "logprobs", "use 0 to 5"),
        ({"logit_bias": {"5": 101}}, "logit_bias", "each with a bias from -100 to 100"),
        ({"logit_bias": {"x": 1}}, "logit_bias", "has the entry {'x': 1}; give token ids"),
        ({"logit_bias": {"64": 1}}, "logit_bias", "names token 64, and the model has 0 to 63"),
        ({"logit_bias": {"\u0665": 1}}, "logit_bias", "has the entry {'\u0665': 1}"),
        ({"logit_bias": [[5]]}, "logit_bias", "is not a dictionary"),
        ({"logit_bias": []}, "logit_bias", "logit_bias=[] is not a dictionary"),
        ({"frequency_penalty": 2.5}, "frequency_penalty", "use -2 to 2"),
        ({"presence_penalty": "1"}, "presence_penalty", "not a number; use -2 to 2"),
        ({"top_k": -1}, "top_k", "out of range; use 0"),
        ({"min_p": 1.5}, "min_p", "out of range; use 0"),
        ({"num_samples": 2}, "num_samples", "use n"),
        ({"stream_options": {"include_usage": True}}, "stream_options", "set stream to true"),
        ({"stream_options": {"wrong": 1}, "stream": True}, "stream_options", "include_usage"),
        ({"diffusing": True}, "diffusing", "set stream to true"),
        ({"prompt": 5}, "prompt", "neither a text nor"),
        ({"prompt": []}, "prompt", "neither a text nor"),
        ({"prompt": ["a", 1]}, "prompt", "neither a text nor"),
        ({"prompt": [1, 99]}, "prompt", "reach outside 0..63"),
        ({"prompt": ["ab"] * 65}, None, "65 texts are more than the 64"),
        ({"prompt": "a" * 3000}, "prompt", "prompt has 3000 tokens"),
        ({"suffix": "a" * 3000}, "suffix", "suffix has 3000 tokens"),
        ({"stop": ["a" * 2000]}, "stop", "2000 characters"),
        ({"T": 10**6}, "T", "use a lower T"),
        ({"reduction": "mean"}, "reduction", "leave it out"),
        ({"control": "sentiment=positive"}, None, "there is no guide 'sentiment'"),
        ({"control": ["/etc/passwd=1"]}, None, "there is no guide"),
        ({"must": ["zz"], "must_not": ["zz"]}, "must", "zz"),
        ({"mode": "autoregressive", "T": 5}, "T", "does not go with mode"),
        ({"max_token": 5}, "max_token", "no option 'max_token'; the nearest is max_tokens"),
        ({"Sed": 5}, "Sed", "the nearest is seed"),
        ({"response_fromat": {}}, "response_fromat", "the nearest is response_format"),
        ({"messages": []}, "messages", "use /v1/chat/completions"),
        ({"max_completion_tokens": 5}, "max_completion_tokens", "use max_tokens"),
        ({"prompt_logprobs": 1}, "prompt_logprobs", "use echo and logprobs"),
        ({"xyzzy": 1}, "xyzzy", "there is no option 'xyzzy'; see /docs"),
        ({"b" * 500_000: 1}, None, "...; see /docs"),
        ({"temperature": 0, "projection": "multi_hot"}, "temperature", "is greedy, and"),
        ({"streamer": 1}, "streamer", "object of Python"),
        ({"length": 4, "max_tokens": 4}, "length", "two names for one setting"),
        ({"gap": "3-5", "suffix": "x", "max_tokens": 4}, "gap", "gap and max_tokens both say"),
        ({"gap": "3-5", "suffix": "x", "stream": True}, "gap", "gap does not go with stream"),
        ({"gap": "3-5"}, "gap", "is what a suffix follows"),
        ({"gap": "1-60", "suffix": "x", "n": 2}, None, "120 texts are more than the 64"),
        ({"gap": "600-601", "suffix": "x"}, None, "length=601 is more than the 512 tokens"),
        ({"user": 5}, "user", "not a text"),
    ],
)
def test_a_bad_field_is_answered_with_one_line_that_names_it(server, body, name, words):
    error = server.refusal(**{"prompt": "ab"} | body)
    assert words in error["message"]
    assert "\n" not in error["message"] and len(error["message"]) < 1100
    assert error["type"] == "invalid_request_error"
    assert error["param"] == name


def test_neutral_values_of_what_is_missing_are_accepted(server):
    neutral = {"frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}, "user": "me"}
    answer = server.complete(prompt="ab", **neutral)
    assert texts_of(answer) == [server.model.generate("ab").text]


SHAPED = {"frequency_penalty": 1.0, "presence_penalty": 0.5, "top_k": 6, "min_p": 0.02}


def test_biases_and_penalties_are_those_of_the_library(server):
    body = {"prompt": "ab", "max_tokens": 12, "seed": 3}
    (text,) = texts_of(server.complete(**body, **SHAPED, logit_bias={"5": 4, "7": -100}))
    options = {"length": 12, "seed": 3, "logit_bias": {5: 4.0, 7: -100.0}}
    assert text == server.model.generate("ab", **options, **SHAPED).text
    assert text != server.model.generate("ab", length=12, seed=3).text
    # What clients send with every request has no effect beside temperature 0, and is not refused.
    (text,) = texts_of(server.complete(**body, temperature=0, top_k=6, min_p=0.02))
    assert [text] == texts_of(server.complete(**body, temperature=0))


def test_another_model_is_not_there(server):
    answer = server.post("/v1/completions", {"model": "gpt-4", "prompt": "ab"})
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "model_not_found"


def test_a_model_without_a_context_stream_has_no_logprobs_and_no_best_of():
    model = SSDLM(tiny.encoder(), tiny.tokenizer(), OPTIONS.change(grid="uniform", T=2, width=4.0))
    with serving(model) as server:
        for body in ({"logprobs": 1}, {"best_of": 2}):
            message = server.refusal(prompt="ab", **body)["message"]
            assert "context stream" in message
        changes = {"max_tokens": 6, "nucleus": "logits"}
        text = model.generate("ab", length=6, nucleus="logits").text
        assert texts_of(server.complete(prompt="ab", **changes)) == [text]
