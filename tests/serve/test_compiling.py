"""Constraints that take long to compile: streams go on, and there is an answer in time."""

import json
import os
import pickle
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from tests import tiny
from tests.serve.running import serving, wait_for

from ssdlm.constraints.words import ConstraintCompiler, TextConstraint, Wanted
from ssdlm.serve import compiling
from ssdlm.serve.compiling import CompilerProcess, GivenUp, answer, tidy

SLOW = {"regex": "(ab|cd|ef){2000}", "must_not": ["b"]}
"""Some seconds; with words that must not appear, nothing comes from a cache."""


def wanted(length=12, **constraint):
    words = {name: tuple(v) if isinstance(v, list) else v for name, v in constraint.items()}
    return [Wanted(TextConstraint(**words), (1,), length, True)]


@pytest.fixture
def compiler():
    """A compiler whose patience is short."""
    tokenizer = tiny.tokenizer()
    found = CompilerProcess(tokenizer, V=tokenizer.V, max_len=None, seconds=0.5)
    yield found
    found.stop()


@pytest.fixture(scope="module")
def patient():
    """A server that waits for long."""
    with serving(limits={"compile_seconds": 60.0}) as running:
        yield running


def begin(server, **body):
    """A request that is being compiled, and where its answer will be."""
    answers, before = [], len(server.server.worker.open)
    ask = threading.Thread(
        target=lambda: answers.append(server.post("/v1/completions", {"prompt": "ab"} | body))
    )
    ask.start()
    wait_for(lambda: len(server.server.worker.open) > before)
    wait_for(lambda: server.server.worker.compiler.process is not None)
    return ask, answers


def test_what_takes_too_long_is_refused_in_time_and_the_next_is_compiled():
    with serving(limits={"compile_seconds": 1.0}) as server:
        answer = server.post("/v1/completions", {"prompt": "ab", **SLOW})
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["type"] == "invalid_request_error" and error["param"] == "must_not"
        assert error["message"].startswith("must_not=['b'] and regex='(ab|cd|ef){2000}' took more")
        assert "than 1 s" in error["message"] and "simpler" in error["message"]
        assert server.post("/v1/generate", {"prompt": "ab", **SLOW}).json()["error"] == error
        streamed = server.post("/v1/completions", {"prompt": "ab", "stream": True, **SLOW})
        assert streamed.status_code == 400 and streamed.json()["error"] == error
        text = server.complete(prompt="ab", regex="a{3}b*")["choices"][0]["text"]
        assert text == server.model.generate("ab", regex="a{3}b*").text


def test_texts_are_written_while_constraints_are_compiled(patient):
    ask, answers = begin(patient, **SLOW)
    for number in range(5):
        text = patient.complete(prompt="ab", seed=number)["choices"][0]["text"]
        assert text == patient.model.generate("ab", seed=number).text
    assert patient.get("/health").status_code == 200
    assert not answers
    patient.server.worker.compiler.process.kill()
    ask.join(30)
    (answer,) = answers
    assert answer.status_code == 400 and "could not be compiled" in answer.text


def test_who_leaves_frees_the_compiler(patient):
    worker = patient.server.worker
    body = json.dumps({"prompt": "ab", **SLOW})
    raw = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: {len(body)}\r\n"
    with socket.create_connection(("127.0.0.1", patient.port), timeout=20) as client:
        client.sendall(f"{raw}content-type: application/json\r\n\r\n{body}".encode())
        wait_for(lambda: worker.open and worker.compiler.process is not None)
    wait_for(lambda: worker.compiler.process is None)
    assert patient.complete(prompt="ab", must=["cd"])["choices"][0]["text"].count("cd")


def test_a_server_ends_while_constraints_are_compiled():
    with serving(limits={"compile_seconds": 60.0, "grace": 0.1}) as server:
        ask, answers = begin(server, **SLOW)
        start = time.monotonic()
    assert time.monotonic() - start < 15
    ask.join(30)
    assert answers[0].status_code == 503
    assert server.server.worker.compiler.process is None


def test_prompts_of_one_request_have_their_own_constraints(patient):
    must = [["ab"], ["cd"], ["ab"]]
    choices = patient.complete(prompt=["ab", "cd", "e"], must=must)["choices"]
    expected = patient.model.generate(["ab", "cd", "e"], must=must)
    assert [one["text"] for one in choices] == [one.text for one in expected]


def test_a_compiler_is_given_up_when_nobody_waits(compiler):
    with pytest.raises(GivenUp):
        compiler.compile(wanted(**SLOW), lambda: True)
    assert compiler.process is None


def test_a_refusal_leaves_the_process_as_it_is(compiler):
    compiler.seconds = 30.0
    with pytest.raises(ValueError, match=r"regex='a\{20\}' takes at least 20 tokens"):
        compiler.compile(wanted(regex="a{20}"))
    process = compiler.process
    (placement,) = compiler.compile(wanted(must=["ab"]))
    assert placement.is_feasible and compiler.process is process


def test_time_that_others_take_from_the_compiler_does_not_count(compiler):
    compiler.start(lambda: False)
    process = compiler.process
    process.send_signal(signal.SIGSTOP)  # as where others have the processors
    threading.Timer(2 * compiler.seconds, process.send_signal, [signal.SIGCONT]).start()
    (placement,) = compiler.compile(wanted(must=["ab"]))
    assert placement.is_feasible and compiler.process is process


def test_who_waits_too_long_beside_others_is_told_so(compiler):
    compiler.start(lambda: False)
    compiler.process.send_signal(signal.SIGSTOP)
    compiler.seconds = 0.05
    with pytest.raises(ValueError, match=r"not compiled within 0\.3 s, since this machine is busy"):
        compiler.compile(wanted(must=["ab"]))
    assert compiler.process is None


def test_a_script_that_runs_a_server_is_not_run_twice(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from ssdlm.constraints.words import TextConstraint, Wanted\n"
        "from ssdlm.serve.compiling import CompilerProcess\n"
        "from ssdlm.tokenizer import load_tokenizer\n"
        "print('begun')\n"
        "tokenizer = load_tokenizer('builtin:mini')\n"
        "compiler = CompilerProcess(tokenizer, V=tokenizer.V, max_len=None, seconds=30.0)\n"
        "wanted = [Wanted(TextConstraint(must=('river',)), (1,), 12, True)]\n"
        "print(compiler.compile(wanted)[0].is_feasible)\n"
    )
    run = subprocess.run([sys.executable, str(script)], capture_output=True, text=True)
    assert (run.returncode, run.stdout, run.stderr) == (0, "begun\nTrue\n", "")


def test_signals_are_the_servers_to_follow(compiler):
    compiler.seconds = 30.0
    compiler.compile(wanted(must=["ab"]))
    for number in (signal.SIGINT, signal.SIGTERM):
        os.kill(compiler.process.pid, number)
    assert compiler.compile(wanted(must=["cd"]))


def test_a_large_automaton_is_refused(monkeypatch):
    compiler = ConstraintCompiler(tiny.tokenizer(), V=64, max_len=None)
    (placement,) = pickle.loads(answer(wanted(regex="a{9}"), compiler))
    assert placement.is_feasible
    monkeypatch.setattr(compiling, "MOST_BYTES", 1000)
    refusal = pickle.loads(answer(wanted(regex="a{9}"), compiler))
    assert refusal.startswith("regex='a{9}' needs an automaton of ") and "simpler" in refusal


def test_who_asks_for_the_same_waits_for_it_once():
    compiler = ConstraintCompiler(tiny.tokenizer(), V=64, max_len=None)
    for number in range(compiling.MOST_KEPT + 3):
        (first,) = pickle.loads(answer(wanted(must_not=["a" * (number + 1)]), compiler))
        tidy(compiler)
        kept = dict(compiler.automata)
        (other,) = pickle.loads(answer(wanted(7, must_not=["a" * (number + 1)]), compiler))
        assert compiler.automata == kept and len(kept) <= compiling.MOST_KEPT
        assert (len(first.slots), len(other.slots)) == (12, 7)
        tidy(compiler)
        assert not any(automaton.cache for automaton in compiler.automata.values())


def test_the_process_has_no_torch_in_it():
    code = "import sys, ssdlm.serve.compiling; print('torch' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
