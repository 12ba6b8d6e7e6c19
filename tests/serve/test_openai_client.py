"""The official client works unchanged."""

import asyncio

import pydantic
import pytest
from tests import tiny
from tests.bpe import write_gpt2
from tests.serve.running import OPTIONS, serving
from tests.talking import TEMPLATE, talking_model

from ssdlm import SSDLM
from ssdlm.tokenizer import load_tokenizer

openai = pytest.importorskip("openai")


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
        found = answer.choices[0].message.parsed
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
