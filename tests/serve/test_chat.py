"""OpenAI's chat: messages go through the model's own template, and answers are the library's."""

import pytest
from tests.serve.running import serving
from tests.talking import talking_model

from ssdlm.engine.chat import chat_text

PATH = "/v1/chat/completions"
HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def server():
    with serving(talking_model()) as running:
        yield running


def answer_to(server, **body):
    answer = server.post(PATH, {"messages": HELLO} | body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def contents(answer):
    return [choice["message"]["content"] for choice in answer["choices"]]


def test_an_answer_is_what_chat_gives(server):
    answer = answer_to(server, model="tiny", max_completion_tokens=9, seed=3)
    text = server.model.chat(HELLO, length=9, seed=3)
    assert contents(answer) == [text.text]
    assert answer["object"] == "chat.completion" and answer["id"].startswith("chatcmpl-")
    (choice,) = answer["choices"]
    assert choice["finish_reason"] == text.finish_reason
    assert choice["message"]["role"] == "assistant" and choice["index"] == 0
    read = len(server.model.context(chat_text(server.model.tokenizer, HELLO)))
    written = len(text.tokens)
    assert answer["usage"] == {
        "prompt_tokens": read,
        "completion_tokens": written,
        "total_tokens": read + written,
    }


def test_descriptions_steer_completions_answers_and_streams(server):
    by, model = {"control_by": "a letter", "control_by_weight": 3.0}, server.model
    answer = answer_to(server, max_completion_tokens=9, seed=3, **by)
    assert contents(answer) == [model.chat(HELLO, length=9, seed=3, **by).text]
    assert contents(answer) != [model.chat(HELLO, length=9, seed=3).text]
    expected = model.generate("ab", length=9, seed=3, **by)
    body = {"prompt": "ab", "seed": 3, **by}
    assert server.complete(**body, max_tokens=9)["choices"][0]["text"] == expected.text
    (*_, last) = server.events(**body, length=9)
    assert (last["text"], last["passes_per_token"]) == (expected.text, 2.0)
    told = server.post("/v1/explain", {"prompt": "ab", **by}).json()["explained"][0]
    assert told["controls"][0]["led_by"] == 3.0
    for wrong, why in (("<|end|>", "has the special token <|end|>"), ("a" * 10**5, "characters")):
        assert why in server.refusal("/v1/generate", prompt="a", control_by=wrong)["message"]


def test_an_answer_ends_with_its_turn(server):
    seed = next(
        seed
        for seed in range(200)
        if server.model.chat(HELLO, seed=seed, length=30).finish_reason == "stop"
    )
    answer = answer_to(server, max_tokens=30, seed=seed)
    assert answer["choices"][0]["finish_reason"] == "stop"
    assert "<|end|>" not in contents(answer)[0]


def test_developers_are_the_system_and_parts_are_lines(server):
    said = [
        {"role": "developer", "content": [{"type": "text", "text": "Be"}]},
        {"role": "user", "content": [{"type": "text", "text": t} for t in ("one", "two")]},
        {"role": "assistant", "content": "three", "refusal": None, "tool_calls": []},
        {"role": "user", "content": "four", "name": "me"},
    ]
    plain = [
        {"role": "system", "content": "Be"},
        {"role": "user", "content": "one\ntwo"},
        {"role": "assistant", "content": "three"},
        {"role": "user", "content": "four"},
    ]
    expected = server.model.chat(plain, seed=2).text
    assert contents(answer_to(server, messages=said, seed=2)) == [expected]


def test_who_says_how_to_draw_is_heard_and_else_the_model_may_be_greedy(server):
    tokenizer = server.model.tokenizer
    tokenizer.answers_greedily = True
    try:
        greedy = server.model.chat(HELLO, projection="greedy").text
        drawn = server.model.chat(HELLO, temperature=1.5, seed=4).text
        assert greedy != drawn
        assert contents(answer_to(server, seed=4)) == [greedy]
        assert contents(answer_to(server, seed=4, temperature=1.5)) == [drawn]
        assert contents(answer_to(server, seed=4, temperature=0, top_p=1)) == [greedy]
    finally:
        tokenizer.answers_greedily = False


def test_several_answers_and_a_stop_string(server):
    texts = server.model.chat(HELLO, num_samples=3, seed=1)
    assert contents(answer_to(server, n=3, seed=1)) == [text.text for text in texts]
    whole = texts[0].text
    answer = answer_to(server, seed=1, stop=whole[3:5])
    assert contents(answer) == [whole[: whole.index(whole[3:5])]]
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_a_stream_tells_who_speaks_then_the_text_then_why_it_ends(server):
    more = {"n": 2, "seed": 5, "stream_options": {"include_usage": True}}
    *chunks, last = server.chunks(PATH, messages=HELLO, **more)
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert last["choices"] == [] and last["usage"]["completion_tokens"] > 0
    texts = server.model.chat(HELLO, num_samples=2, seed=5)
    for index, text in enumerate(texts):
        own = [one for chunk in chunks for one in chunk["choices"] if one["index"] == index]
        assert own[0]["delta"] == {"role": "assistant", "content": ""}
        assert all("role" not in one["delta"] for one in own[1:])
        assert "".join(one["delta"]["content"] for one in own) == text.text
        assert [one["finish_reason"] for one in own[-2:]] == [None, text.finish_reason]


def test_logprobs_are_those_of_completions(server):
    prompt = str(chat_text(server.model.tokenizer, HELLO))
    own = {"max_tokens": 6, "seed": 2}
    rated = answer_to(server, logprobs=True, top_logprobs=3, **own)["choices"][0]["logprobs"]
    expected = server.complete(prompt=prompt, logprobs=3, stop_at_end=True, **own)
    found = expected["choices"][0]["logprobs"]
    assert [one["token"] for one in rated["content"]] == found["tokens"]
    assert [one["logprob"] for one in rated["content"]] == found["token_logprobs"]
    for one, top in zip(rated["content"], found["top_logprobs"], strict=True):
        assert {two["token"]: two["logprob"] for two in one["top_logprobs"]} == top
        assert bytes(one["bytes"]).decode() == one["token"]
    chunks = server.chunks(PATH, messages=HELLO, logprobs=True, **own)
    bare = chunks[-1]["choices"][0]["logprobs"]["content"]
    assert [one["logprob"] for one in bare] == found["token_logprobs"]
    assert all(one["top_logprobs"] == [] for one in bare)


def test_options_of_the_library_ride_in_the_same_body(server):
    own = {"must": ["cab"], "grid": "staggered", "B": 12, "T": 8}
    text = server.model.chat(HELLO, **own).text
    assert "cab" in text and contents(answer_to(server, **own)) == [text]


def test_an_answer_is_biased_as_the_library_would(server):
    body = {"presence_penalty": 1.5, "logit_bias": {"5": 4}, "top_k": 6, "seed": 3}
    own = {"presence_penalty": 1.5, "logit_bias": {5: 4.0}, "top_k": 6, "seed": 3}
    text = server.model.chat(HELLO, **own).text
    assert contents(answer_to(server, **body)) == [text] != [server.model.chat(HELLO, seed=3).text]


def test_what_asks_for_nothing_is_accepted(server):
    neutral = {
        "tools": [],
        "tool_choice": "none",
        "store": False,
        "user": "me",
        "top_logprobs": None,
    }
    neutral |= {"frequency_penalty": 0, "logit_bias": {}, "modalities": ["text"]}
    assert contents(answer_to(server, **neutral)) == [server.model.chat(HELLO).text]


@pytest.mark.parametrize(
    ("body", "name", "words"),
    [
        ({"messages": None}, "messages", 'give [{"role": "user"'),
        ({"messages": "Hello"}, "messages", "no list of messages"),
        ({"messages": []}, "messages", "no list of messages"),
        ({"messages": ["Hello"]}, "messages", "messages[0]='Hello' is no message"),
        ({"messages": [{"content": "x"}]}, "messages", "messages[0] has the role None"),
        ({"messages": [*HELLO, {"role": "tool", "content": "x"}]}, "messages", "the role 'tool'"),
        ({"messages": [{"role": ["user"], "content": "x"}]}, "messages", "the role ['user']"),
        ({"messages": [{"role": "user"}]}, "messages", "the content None; give a text"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages",
            "reads text alone",
        ),
        (
            {"messages": [{"role": "assistant", "content": "x", "tool_calls": [{"id": "1"}]}]},
            "messages",
            "has 'tool_calls', and this model reads text alone",
        ),
        ({"messages": [HELLO[0] | {"type": "reasoning"}]}, "messages", "the type 'reasoning'"),
        ({"messages": [HELLO[0] | {"name": 5}]}, "messages", "messages[0] has the name 5"),
        ({"messages": HELLO * 1001}, "messages", "messages has 1001 values"),
        ({"messages": [{"role": "user", "content": "a" * 3000}]}, "messages", "messages has 30"),
        ({"max_completion_tokens": 0}, "max_completion_tokens", "use 1 to 512"),
        ({"max_completion_tokens": 4, "max_tokens": 4}, "max_tokens", "the old name"),
        ({"max_completion_tokens": 4, "length": 4}, "length", "give max_completion_tokens"),
        ({"max_completion_tokens": 4, "length": 0}, "length", "give max_completion_tokens"),
        ({"batch_size": "x"}, "batch_size", "is not a whole number"),
        ({"logprobs": 3}, "logprobs", "is not true or false"),
        ({"top_logprobs": 3}, "top_logprobs", "set logprobs to true"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "use 0 to 20"),
        ({"n": 0}, "n", "use 1 to 64"),
        (
            {"logprobs": True, "top_logprobs": 20, "n": 10, "max_completion_tokens": 500},
            "logprobs",
            "logprobs would be 105000, and this server tells 100000",
        ),
        ({"tools": [{"type": "function"}]}, "tools", "is not supported; leave it out"),
        ({"store": True}, "store", "store=True is not supported"),
        ({"store": 0}, "store", "store=0 is not supported"),
        ({"reasoning_effort": "low"}, "reasoning_effort", "is not supported; leave it out"),
        ({"web_search_options": {}}, "web_search_options", "is not supported; leave it out"),
        ({"prompt": "x"}, "prompt", "there is no option 'prompt'; use messages, or /v1/compl"),
        ({"mesages": HELLO, "messages": None}, "mesages", "the nearest is messages"),
        ({"echo": True}, "echo", "there is no option 'echo'"),
        ({"top_k": -5}, "top_k", "top_k=-5 is out of range"),
        ({"logit_bias": {"5": -101}}, "logit_bias", "each with a bias from -100 to 100"),
        ({"presence_penalty": 3}, "presence_penalty", "presence_penalty=3.0 is out of range"),
    ],
)
def test_a_bad_field_is_answered_with_one_line_that_names_it(server, body, name, words):
    error = server.refusal(PATH, **{"messages": HELLO} | body)
    assert words in error["message"] and "\n" not in error["message"]
    assert error["param"] == name


def test_a_model_without_a_template_names_what_there_is():
    with serving() as running:
        error = running.refusal(PATH, messages=HELLO)
        assert error["code"] == "no_chat" and "use /v1/completions" in error["message"]
