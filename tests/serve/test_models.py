"""Several models in one server: each by its name, with what it can do."""

import threading
import time

import pytest
from tests.serve.running import serving, tiny_model, wait_for
from tests.talking import talking_model

from ssdlm.cli import main
from ssdlm.serve.worker import Turn, Turns

HELLO = [{"role": "user", "content": "Hello"}]


@pytest.fixture(scope="module")
def talking():
    return talking_model()


@pytest.fixture(scope="module")
def server(talking):
    with serving(tiny_model(), others={"talker": talking}) as running:
        yield running


def test_a_model_is_chosen_by_its_name_and_the_first_without_one(server, talking):
    first, second = server.model.generate("ab").text, talking.generate("ab").text
    assert first != second
    for body, text in (({}, first), ({"model": "tiny"}, first), ({"model": "talker"}, second)):
        answer = server.complete(prompt="ab", **body)
        assert answer["choices"][0]["text"] == text
        assert answer["model"] == body.get("model", "tiny")
    native = server.post("/v1/generate", {"prompt": "ab", "model": "talker"}).json()
    assert (native["model"], native["texts"][0]["text"]) == ("talker", second)


def test_texts_of_both_at_once_are_those_written_alone(server, talking):
    asked = [(name, seed) for seed in range(4) for name in ("tiny", "talker")]
    found = {}

    def ask(name, seed):
        body = {"prompt": "ab", "model": name, "seed": seed, "max_tokens": 12}
        found[name, seed] = server.complete(**body)["choices"][0]["text"]

    threads = [threading.Thread(target=ask, args=one) for one in asked]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    own = {"tiny": server.model, "talker": talking}
    assert found == {one: own[one[0]].generate("ab", seed=one[1], length=12).text for one in asked}


def test_only_the_one_with_a_template_answers(server, talking):
    path = "/v1/chat/completions"
    assert "has no chat template" in server.refusal(path, messages=HELLO)["message"]
    answer = server.post(path, {"messages": HELLO, "model": "talker"}).json()
    assert answer["choices"][0]["message"]["content"] == talking.chat(HELLO).text


def test_what_each_can_do_is_told(server):
    first, second = server.get("/v1/models").json()["data"]
    assert (first["id"], first["chat"], first["gaps"], first["guides"]) == ("tiny", False, True, [])
    assert (second["id"], second["chat"]) == ("talker", True)
    assert second["context_length"] == server.server.all["talker"].model.denoiser.max_len
    assert server.get("/v1/models/talker").json() == second
    assert server.get("/v1/info").json()["model"] == "tiny"
    assert server.get("/v1/info?model=talker").json()["model"] == "talker"


@pytest.mark.parametrize("name", ["other", 5, ["tiny"], ""])
def test_a_model_that_is_not_there_is_answered_with_those_that_are(server, name):
    answer = server.post("/v1/completions", {"prompt": "ab", "model": name})
    assert answer.status_code == 404
    assert "this server has 'tiny', 'talker'" in answer.json()["error"]["message"]
    assert answer.json()["error"]["param"] == "model"


def test_figures_are_of_each_model(server):
    server.complete(prompt="ab", model="talker", max_tokens=3)
    server.settle()
    page = server.get("/metrics").text
    assert 'ssdlm_tokens_total{model="talker"}' in page and '{model="tiny"}' in page


def test_a_turn_is_had_by_whoever_came_first():
    turns, order = Turns(), []

    def take(number):
        turn = Turn(turns)
        with turn:
            order.append(number)
        turn.end()

    threads = []
    with Turn(turns):
        for number in range(5):
            threads.append(threading.Thread(target=take, args=[number]))
            threads[-1].start()
            while turns.num_come < number + 2:
                time.sleep(0.001)
        assert order == []
    for thread in threads:
        thread.join()
    assert order == list(range(5))


def test_a_model_that_waits_for_work_keeps_nobody_waiting(server, monkeypatch):
    worker, slow = server.server.worker, Turn(server.server.worker.turn.turns)
    slow.takes = 1000.0  # so that the worker keeps its turn while it has work

    def take():
        with slow:
            pass
        slow.end()

    thread = threading.Thread(target=take)

    def load_next():
        if thread.ident is None:
            thread.start()
            wait_for(lambda: worker.turn.turns.is_awaited)
        return False

    monkeypatch.setattr(worker.guides, "load_next", load_next)
    server.complete(prompt="ab", max_tokens=3)
    wait_for(lambda: thread.ident is not None)
    thread.join(20)
    worker.turn.turns.all.remove(slow)
    assert not thread.is_alive()


def test_a_fast_model_does_several_passes_while_a_slow_one_does_one():
    turns, passes = Turns(), {0.002: 0, 0.05: 0}
    end = time.monotonic() + 0.6

    def work(seconds):
        turn = Turn(turns)
        while time.monotonic() < end:
            with turn:
                time.sleep(seconds)
                passes[seconds] += 1
        turn.end()

    threads = [threading.Thread(target=work, args=[seconds]) for seconds in passes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert passes[0.05] >= 2 and passes[0.002] > 3 * passes[0.05]
    assert turns.num_come == turns.num_gone


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--model", "a", "--model", "b", "--name", "c"], "--name is given 1 times for 2 models"),
        (["--model", "x/a", "--model", "x/a"], "two models are called x/a; give each a --name"),
    ],
)
def test_models_have_names_of_their_own(words, said, capsys):
    assert main(["serve", *words]) == 2
    assert said in capsys.readouterr().err
