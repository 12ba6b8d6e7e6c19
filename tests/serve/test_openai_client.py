"""The official client works unchanged."""

import asyncio
import inspect
from operator import attrgetter
from pathlib import Path

import pydantic
import pytest
from tests import tiny
from tests.bpe import write_gpt2
from tests.serve.running import OPTIONS, serving
from tests.talking import TEMPLATE, talking_model

from ssdlm import SSDLM
from ssdlm.tokenizer import load_tokenizer

openai = pytest.importorskip("openai")


VERBS = ("list", "count")
"""Calls of what is within chat.completions and responses."""
HELLO = [{"role": "user", "content": "Hello"}]


def settings(server):
    return {"base_url": f"{server.url}/v1", "api_key": "any", "max_retries": 0, "timeout": 60}


@pytest.fixture
def client(server):
    with openai.OpenAI(**settings(server)) as client:
        yield client


@pytest.fixture(scope="module")
def talker():
    """A server with a model that answers."""
    with serving(talking_model()) as running:
        yield running


@pytest.fixture
def talk(talker):
    with openai.OpenAI(**settings(talker)) as client:
        yield client


def test_completions(server, client):
    answer = client.completions.create(model="tiny", prompt="The river", max_tokens=8, seed=7)
    assert answer.choices[0].text == server.model.generate("The river", length=8, seed=7).text
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage is not None and answer.usage.total_tokens == 17


def test_streams_with_usage(server, client):
    chunks = list(
        client.completions.create(
            model="tiny",
            prompt="The river",
            n=2,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    texts = ["", ""]
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [text.text for text in server.model.generate("The river", num_samples=2)]
    assert chunks[-1].usage is not None and chunks[-1].usage.completion_tokens == 24


def test_options_of_the_library_in_extra_body(server, client):
    chunks = client.completions.create(
        model="tiny",
        prompt="ab",
        stream=True,
        extra_body={"diffusing": True, "grid": "staggered", "T": 8, "B": 6, "must": ["cab"]},
    )
    texts = [chunk.choices[0].text for chunk in chunks]
    assert "cab" in texts[-1] and len(texts) > 3
    expected = server.model.generate("ab", grid="staggered", T=8, B=6, must=["cab"])
    assert texts[-1] == expected.text


def test_logprobs(client):
    answer = client.completions.create(model="tiny", prompt="ab", max_tokens=4, logprobs=2)
    found = answer.choices[0].logprobs
    assert found is not None and found.token_logprobs is not None
    assert len(found.token_logprobs) == 4


def test_models(client):
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("other")


def test_errors_are_those_of_the_client(client):
    with pytest.raises(openai.BadRequestError, match=r"top_p=7\.0 is out of range") as caught:
        client.completions.create(model="tiny", prompt="ab", top_p=7)
    assert caught.value.param == "top_p"
    with pytest.raises(openai.BadRequestError, match="no chat template"):
        client.chat.completions.create(model="tiny", messages=[])
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="gpt-4", prompt="ab")


def test_chat(talker, talk):
    answer = talk.chat.completions.create(
        model="tiny",
        messages=[{"role": "developer", "content": "Be kind"}, *HELLO],
        max_completion_tokens=8,
        n=2,
        seed=7,
        logprobs=True,
        top_logprobs=2,
    )
    said = [{"role": "system", "content": "Be kind"}, *HELLO]
    texts = talker.model.chat(said, length=8, num_samples=2, seed=7)
    assert [one.message.content for one in answer.choices] == [text.text for text in texts]
    rated = answer.choices[0].logprobs.content
    assert len(rated) == len(texts[0].tokens) and len(rated[0].top_logprobs) == 2
    assert answer.usage.completion_tokens == sum(len(text.tokens) for text in texts)


def test_chat_in_a_stream(talker, talk):
    chunks = list(
        talk.chat.completions.create(
            model="tiny", messages=HELLO, stream=True, stream_options={"include_usage": True}
        )
    )
    text = talker.model.chat(HELLO)
    deltas = [chunk.choices[0].delta for chunk in chunks[:-1]]
    assert deltas[0].role == "assistant"
    assert "".join(delta.content or "" for delta in deltas) == text.text
    assert chunks[-2].choices[0].finish_reason == text.finish_reason
    assert chunks[-1].usage.completion_tokens == len(text.tokens)
    with talk.chat.completions.stream(model="tiny", messages=HELLO) as stream:
        assert stream.get_final_completion().choices[0].message.content == text.text


def test_chat_asynchronously(talker):
    async def both():
        async with openai.AsyncOpenAI(**settings(talker)) as client:
            create, own = client.chat.completions.create, {"model": "tiny", "messages": HELLO}
            answers = await asyncio.gather(*(create(**own, seed=seed) for seed in range(4)))
            parts = [
                chunk.choices[0].delta.content async for chunk in await create(**own, stream=True)
            ]
            return [answer.choices[0].message.content for answer in answers], "".join(parts)

    answers, streamed = asyncio.run(both())
    assert answers == [talker.model.chat(HELLO, seed=seed).text for seed in range(4)]
    assert streamed == answers[0]


class Weather(pydantic.BaseModel):
    """What an answer is to contain."""

    place: str = pydantic.Field(max_length=5)
    is_fine: bool | None


def test_parsed_answers(tmp_path):
    tokenizer = load_tokenizer(write_gpt2(tmp_path))
    tokenizer.settings["chat_template"] = TEMPLATE
    model = SSDLM(tiny.block(V=tokenizer.V), tokenizer, OPTIONS.change(length=60))
    with serving(model) as server, openai.OpenAI(**settings(server)) as client:
        answer = client.chat.completions.parse(
            model="tiny", messages=HELLO, response_format=Weather, max_completion_tokens=60
        )
        assert_weather(answer.choices[0].message.parsed)
        own = {"model": "tiny", "max_completion_tokens": 60, "messages": HELLO}
        with client.chat.completions.stream(**own, response_format=Weather) as stream:
            assert_weather(stream.get_final_completion().choices[0].message.parsed)
        own = {"model": "tiny", "max_output_tokens": 60, "input": "Hello", "text_format": Weather}
        assert_weather(client.responses.parse(**own).output_parsed)
        with client.responses.stream(**own) as stream:
            assert_weather(stream.get_final_response().output_parsed)
        asyncio.run(parse_asynchronously(server))


async def parse_asynchronously(server):
    """The same calls of the asynchronous client."""
    own = {"model": "tiny", "max_completion_tokens": 60, "messages": HELLO}
    own["response_format"] = Weather
    asked = {"model": "tiny", "max_output_tokens": 60, "input": "Hello", "text_format": Weather}
    async with openai.AsyncOpenAI(**settings(server)) as client:
        answer = await client.chat.completions.parse(**own)
        assert_weather(answer.choices[0].message.parsed)
        async with client.chat.completions.stream(**own) as stream:
            answer = await stream.get_final_completion()
            assert_weather(answer.choices[0].message.parsed)
        assert_weather((await client.responses.parse(**asked)).output_parsed)
        async with client.responses.stream(**asked) as stream:
            assert_weather((await stream.get_final_response()).output_parsed)


def assert_weather(found):
    assert isinstance(found, Weather) and len(found.place) <= 5


def test_responses(talker, talk):
    first = talk.responses.create(model="tiny", instructions="Be kind", input="Hello")
    said = [{"role": "system", "content": "Be kind"}, *HELLO]
    assert first.output_text == talker.model.chat(said).text
    more = [*HELLO, *first.output, {"role": "user", "content": "More"}]
    second = talk.responses.create(model="tiny", input=more)
    said = [*HELLO, {"role": "assistant", "content": first.output_text}, more[-1]]
    assert second.output_text == talker.model.chat(said).text
    with pytest.raises(openai.BadRequestError, match="send all that was said"):
        talk.responses.create(model="tiny", input="More", previous_response_id=first.id)


def test_responses_in_a_stream(talker, talk):
    text = talker.model.chat(HELLO, regex="[a-e]{4}")
    own = {"model": "tiny", "input": "Hello", "extra_body": {"regex": "[a-e]{4}"}}
    events = list(talk.responses.create(**own, stream=True))
    deltas = [one.delta for one in events if one.type == "response.output_text.delta"]
    assert "".join(deltas) == text.text
    assert events[-1].type == "response.completed"
    assert events[-1].response.output_text == text.text
    with talk.responses.stream(**own) as stream:
        assert stream.get_final_response().output_text == text.text


def test_responses_asynchronously(talker):
    async def both():
        async with openai.AsyncOpenAI(**settings(talker)) as client:
            whole = await client.responses.create(model="tiny", input="Hello")
            parts = await client.responses.create(model="tiny", input="Hello", stream=True)
            told = [one.delta async for one in parts if one.type == "response.output_text.delta"]
            return whole.output_text, "".join(told)

    assert asyncio.run(both()) == (talker.model.chat(HELLO).text,) * 2


def test_completions_and_models_asynchronously(server):
    async def all_of_them():
        async with openai.AsyncOpenAI(**settings(server)) as client:
            own = {"model": "tiny", "prompt": "The river", "max_tokens": 8, "seed": 7}
            whole = await client.completions.create(**own)
            raw = await client.completions.with_raw_response.create(**own)
            parts = await client.completions.create(**own, stream=True)
            told = [one.choices[0].text async for one in parts]
            names = [one.id async for one in client.models.list()]
            names.append((await client.models.retrieve("tiny")).id)
            return [whole.choices[0].text, raw.parse().choices[0].text, "".join(told)], names

    texts, names = asyncio.run(all_of_them())
    assert texts == [server.model.generate("The river", length=8, seed=7).text] * 3
    assert names == ["tiny", "tiny"]


def test_the_table_of_calls_has_every_call(client):
    page = (Path(__file__).parents[2] / "docs/serving.md").read_text()
    table = page.partition("### The openai client")[2].partition("\n## ")[0]
    for name in ("completions", "chat.completions", "responses", "models"):
        calls = attrgetter(name)(client)
        for call in (one for one in dir(calls) if not one.startswith(("_", "with_"))):
            found = getattr(calls, call)  # a method, or more of them in a folder
            inner = [] if inspect.ismethod(found) else [n for n in dir(found) if n in VERBS]
            for one in [f"{call}.{inner}" for inner in inner] or [call]:
                assert f"`{name}.{one}`" in table, one


@pytest.mark.parametrize(
    ("call", "arguments", "said"),
    [
        ("chat.completions.retrieve", {"completion_id": "x"}, "/v1/chat/completions/x"),
        ("chat.completions.update", {"completion_id": "x", "metadata": {}}, "/v1/chat/completions"),
        ("chat.completions.delete", {"completion_id": "x"}, "/v1/chat/completions/x"),
        ("chat.completions.list", {}, "/v1/chat/completions' takes POST"),
        ("responses.retrieve", {"response_id": "x"}, "/v1/responses/x"),
        ("responses.delete", {"response_id": "x"}, "/v1/responses/x"),
        ("responses.cancel", {"response_id": "x"}, "/v1/responses/x/cancel"),
        ("responses.compact", {"model": "tiny", "input": "a"}, "/v1/responses/compact"),
        ("responses.input_items.list", {"response_id": "x"}, "/v1/responses/x/input_items"),
        ("responses.input_tokens.count", {"input": "a"}, "/v1/responses/input_tokens"),
        ("chat.completions.messages.list", {"completion_id": "x"}, "completions/x/messages"),
        ("models.delete", {"model": "tiny"}, "/v1/models/tiny' takes GET"),
        ("embeddings.create", {"model": "tiny", "input": "a"}, "/v1/embeddings"),
        ("files.list", {}, "/v1/files"),
        ("moderations.create", {"input": "a"}, "/v1/moderations"),
    ],
)
def test_calls_that_are_refused_name_the_path(server, client, call, arguments, said):
    async def ask():
        async with openai.AsyncOpenAI(**settings(server)) as other:
            await attrgetter(call)(other)(**arguments)

    for make in (lambda: attrgetter(call)(client)(**arguments), lambda: asyncio.run(ask())):
        with pytest.raises(openai.APIStatusError, match=said) as caught:
            make()
        assert caught.value.status_code in (404, 405)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("tools", [{"type": "function", "function": {"name": "look", "parameters": {}}}]),
        ("store", True),
        ("modalities", ["text", "audio"]),
    ],
)
def test_fields_that_are_refused_are_named(talk, field, value):
    with pytest.raises(openai.BadRequestError, match=f"^Error code: 400.*{field}=") as caught:
        talk.chat.completions.create(model="tiny", messages=HELLO, **{field: value})
    assert caught.value.param == field


@pytest.mark.parametrize(
    "given",
    [
        {"background": True},
        {"previous_response_id": "x"},
        {"store": True},
        {"tools": [{"type": "web_search"}]},
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "x"}]}]},
    ],
)
def test_fields_of_responses_that_are_refused_are_named(talk, given):
    with pytest.raises(openai.BadRequestError, match=next(iter(given))):
        talk.responses.create(**{"model": "tiny", "input": "Hello"} | given)
