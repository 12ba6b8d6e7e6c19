"""The official client works unchanged."""

import pytest

openai = pytest.importorskip("openai")


@pytest.fixture
def client(server):
    with openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="any", max_retries=0, timeout=60
    ) as client:
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
    with pytest.raises(openai.NotFoundError, match="no chat model"):
        client.chat.completions.create(model="tiny", messages=[])
    with pytest.raises(openai.NotFoundError, match="does not exist"):
        client.completions.create(model="gpt-4", prompt="ab")
