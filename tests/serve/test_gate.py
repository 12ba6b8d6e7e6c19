"""Who may come in, with what, and what is told of them."""

import http.client
import io
import json
import logging
import socket
import sys

import httpx2 as httpx
import pytest
from tests.serve.running import serving, wait_for

from ssdlm.serve.gate import check_origin, check_proxies, digest, host_in, is_loopback, read_keys
from ssdlm.serve.log import JsonFormatter, LineFormatter, RequestLog
from ssdlm.serve.pages import Pages

ASK = {"prompt": "ab", "max_tokens": 6}
KEY = "a-key-of-some-length"


@pytest.fixture(scope="module")
def locked():
    """A server that other machines may reach, with a key."""
    with serving(keys=frozenset({digest(KEY.encode())}), is_local=False) as running:
        yield running


@pytest.mark.parametrize(
    "host",
    [
        *("127.0.0.1", "127.9.9.9:80", "localhost", "LocalHost:8000", "[::1]", "[::1]:8000"),
        *("LOCALHOST.", "localhost.:8000", "localhost:", "localhost:65535", "[0:0:0:0:0:0:0:1]"),
        "[::ffff:127.0.0.1]",
    ],
)
def test_this_machine_has_these_names(server, host):
    assert server.get("/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        *("example.com", "localhost.example.com", "127.0.0.1.nip.io", "10.0.0.1", "[::2]", "", "["),
        *("localhost:80@evil.com", "evil.com@localhost", "localhost:80:80", "localhost:x"),
        *("localhost:65536", "localhost:-1", "localhost:\xb2", "localhost..", ".localhost"),
        *("localhost/evil.com", "localhost, evil.com", "localhost evil.com", "localhost#", "::1"),
        *("[::1%evil.com]", "[::1%25lo]", "[::1]evil.com", "[::1]:80@evil.com", "[::1", "::1]"),
        *("[127.0.0.1]", "[localhost]", "[[::1]]", "127.1", "127.0.0.01", "127.0.0.1:80@evil.com"),
    ],
)
def test_no_website_drives_the_server_under_its_own_name(server, host):
    answer = server.post("/v1/completions", ASK, headers={"host": host.encode("latin-1")})
    assert answer.status_code == 400
    assert "is not this machine" in answer.json()["error"]["message"]
    assert not is_loopback(host_in(host))


@pytest.mark.parametrize("kind", ["text/plain", "application/x-www-form-urlencoded", "", "json"])
def test_bodies_are_json_and_say_so(server, kind):
    answer = server.post("/v1/completions", content=json.dumps(ASK), headers={"content-type": kind})
    assert answer.status_code == 415
    assert "application/json" in answer.json()["error"]["message"]


@pytest.mark.parametrize("packed", ["gzip", "br", "identity, gzip", "\xff"])
def test_packed_bodies_are_refused_by_the_name_of_what_packed_them(server, packed):
    headers = {"content-encoding": packed.encode("latin-1")}
    answer = server.post("/v1/completions", ASK, headers=headers)
    assert answer.status_code == 415
    assert "content-encoding" in answer.json()["error"]["message"]
    assert server.post("/v1/completions", ASK, headers={"content-encoding": "identity"}).is_success


def test_two_words_for_where_a_body_ends_are_refused_and_the_connection_is_closed(server):
    lengths = "content-length: 5\r\ntransfer-encoding: chunked"
    head = f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\n{lengths}\r\n\r\n"
    hidden = b"0\r\n\r\nGET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=20) as connection:
        connection.sendall(head.encode() + hidden)
        told = b"".join(iter(lambda: connection.recv(1 << 16), b""))
    assert told.startswith(b"HTTP/1.1 400 ") and b"send one" in told
    assert told.count(b"HTTP/1.1 ") == 1


def test_a_website_is_not_told_that_it_may(server):
    origin = {"origin": "https://example.com", "access-control-request-method": "POST"}
    answer = server.post("/v1/completions", ASK, headers=origin)
    assert not [name for name in answer.headers if name.startswith("access-control")]


def test_a_website_that_was_named_may():
    with serving(cors="https://example.com", keys=frozenset({digest(KEY.encode())})) as server:
        headers = {"origin": "https://example.com", "access-control-request-method": "POST"}
        headers["access-control-request-headers"] = "authorization,content-type"
        asked = httpx.options(f"{server.url}/v1/completions", headers=headers, trust_env=False)
        assert asked.status_code == 200
        assert asked.headers["access-control-allow-origin"] == "https://example.com"
        headers["origin"] = "https://other.com"
        other = httpx.options(f"{server.url}/v1/completions", headers=headers, trust_env=False)
        assert "access-control-allow-origin" not in other.headers


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/generate", "/v1/models", "/v1/info"])
@pytest.mark.parametrize(
    "header", [None, "Bearer wrong", "Bearer", f"Basic {KEY}", KEY, "Bearer \xff\xfe"]
)
def test_a_key_guards_the_model(locked, path, header):
    headers = {} if header is None else {"authorization": header.encode("latin-1")}
    for answer in (locked.get(path, headers=headers), locked.post(path, ASK, headers=headers)):
        assert answer.status_code == 401
        assert answer.json()["error"]["code"] == "invalid_api_key"


@pytest.mark.parametrize("path", ["/metrics", "/docs", "/openapi.json", "/nothing", "/v1/models/x"])
def test_a_key_guards_the_rest(locked, path):
    assert locked.get(path).status_code == 401


def test_with_the_key_all_is_open(locked):
    key = {"authorization": f"Bearer {KEY}"}
    assert locked.post("/v1/completions", ASK, headers=key).status_code == 200
    assert locked.get("/v1/info", headers=key).json()["needs_key"] is True
    assert locked.get("/metrics", headers=key).status_code == 200


def test_health_and_the_page_need_no_key(locked):
    assert locked.get("/health").json() == {"status": "ok"}
    page = locked.get("/")
    assert page.status_code == 200 and page.headers["content-type"].startswith("text/html")


def test_without_a_key_the_clients_is_ignored(server):
    answer = server.post("/v1/completions", ASK, headers={"authorization": "Bearer any"})
    assert answer.status_code == 200


def test_a_key_may_have_any_characters(tmp_path):
    (tmp_path / "keys").write_text("schl\u00fcssel", encoding="utf-8")
    with serving(keys=read_keys(tmp_path / "keys"), is_local=False) as server:
        headers = {"authorization": "Bearer schl\u00fcssel".encode()}
        assert server.get("/v1/models", headers=headers).status_code == 200


def test_keys_are_the_lines_of_a_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text(f"{KEY}\n\n  other \n")
    assert read_keys(path) == {digest(KEY.encode()), digest(b"other")}
    path.write_text(" \n")
    with pytest.raises(ValueError, match="has no key"):
        read_keys(path)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(ValueError, match="keys is not UTF-8; write a key on each line"):
        read_keys(path)


def test_a_website_is_named_as_browsers_name_it():
    assert check_origin("https://Example.org:8443") == "https://example.org:8443"
    assert check_origin("*") == "*"
    for wrong in ("", "example.org", "null", "https://example.org/", "https://*.example.org"):
        with pytest.raises(ValueError, match="is no website as browsers name it"):
            check_origin(wrong)


def test_the_page_may_load_nothing_from_elsewhere(server):
    for name in ["", *(f"page/{name}" for name in Pages().names())]:
        answer = server.get(f"/{name}")
        assert answer.status_code == 200
        assert "default-src 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-content-type-options"] == "nosniff"
        tag = {"if-none-match": answer.headers["etag"]}
        assert server.get(f"/{name}", headers=tag).status_code == 304


@pytest.mark.parametrize(
    "path", ["/page/../app.py", "/page/..%2fapp.py", "/page/%2e%2e/app.py", "/page/", "/page/x.js"]
)
def test_nothing_but_the_page_is_served(server, path):
    assert server.get(path).status_code in (404, 405)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/chat/completions", "/v1/rewrite"])
def test_headers_and_paths_have_their_bound_however_they_come(server, path):
    for where, headers in ((path, {"x": "y" * 100_000}), (f"{path}?{'q' * 50_000}", {})):
        answer = server.post(where, ASK, headers=headers)
        assert answer.status_code == 431
        assert "and this server takes 32768; send fewer" in answer.json()["error"]["message"]
    many = {f"x{number}": "" for number in range(6000)}
    assert server.post(path, ASK, headers=many).status_code == 431


def test_a_client_that_listens_after_it_has_sent_all_hears_that_it_was_too_much():
    # More than the buffers of the two sockets hold.
    body = json.dumps({"prompt": "a" * 12_000_000}).encode()
    with serving(limits={"max_body": 1_000_000}) as server:
        client = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        client.request("POST", "/v1/completions", body, {"content-type": "application/json"})
        assert client.getresponse().status == 413
        client.close()


@pytest.mark.parametrize("size", [2000, 40_000])
def test_a_body_over_the_limit_is_not_kept(size):
    with serving(limits={"max_body": 1000}) as server:
        assert server.post("/v1/completions", {"prompt": "a" * size}).status_code == 413
        pieces = (b"x" * 100 for _ in range(size // 100))  # without a declared length
        kind = {"content-type": "application/json"}
        answer = server.post("/v1/completions", content=pieces, headers=kind)
        assert answer.status_code == 413
        assert "1000 bytes" in answer.json()["error"]["message"]
        assert server.post("/v1/completions", ASK).status_code == 200


@pytest.mark.parametrize(
    ("raw", "words"),
    [
        (b"", "is not JSON"),
        (b"{", "is not JSON"),
        (b"[]", "is a list"),
        (b"null", "is null"),
        (b'{"prompt": NaN}', "NaN"),
        (b'{"prompt": -Infinity}', "-Infinity"),
        (b'{"prompt": "a", "prompt": "b"}', "'prompt' twice"),
        (b'{"prompt": "a", "pin": {"1": "a", "1": "b"}}', "'1' twice"),
        (b'{"prompt": "\xff"}', "not UTF-8"),
        (b'{"prompt": "\\ud800"}', "'prompt' is not UTF-8"),
        (b'{"prompt": "a", "stop": ["\\udfff"]}', "'stop' is not UTF-8"),
        (b'{"prompt": ' + b"[" * 100_000, "too deep"),
        (b'{"prompt": ' + b"[" * 200 + b"]" * 200 + b"}", "too deep"),
        (b'{"seed": ' + b"9" * 10_000 + b"}", "too many digits"),
        (b'{"seed": ' + b"9" * 4_000 + b"}", "out of range"),
        (b'{"temperature": 1e999}', "1e999, which is too large a number"),
        (b'{"prompt": "a", "metadata": {"a": [-1e999]}}', "-1e999, which is too large"),
    ],
)
def test_what_is_no_json_is_said(server, raw, words):
    kind = {"content-type": "application/json; charset=utf-8"}
    answer = server.post("/v1/completions", content=raw, headers=kind)
    assert answer.status_code == 400, answer.text
    assert words in answer.json()["error"]["message"]


def test_whole_characters_may_be_escaped(server):
    kind = {"content-type": "application/json"}
    raw = b'{"prompt": "a\\ud83d\\ude00", "max_tokens": 0, "echo": true}'
    answer = server.post("/v1/completions", content=raw, headers=kind)
    assert answer.json()["choices"][0]["text"] == "a\U0001f600"


def test_unknown_paths_and_methods_are_answered_in_openais_form(server):
    assert server.get("/v1/embeddings").json()["error"]["type"] == "not_found_error"
    answer = server.get("/v1/completions")
    assert answer.status_code == 405 and "error" in answer.json()


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("/v1/chat/completion", "no path '/v1/chat/completion'; the nearest is /v1/chat/compl"),
        ("/completions", "there is no path '/completions'; the nearest is /v1/completions"),
        ("/v1/chat", "there is no path '/v1/chat'; the nearest is /v1/chat/completions"),
        ("/xyzzy%0a", r"there is no path '/xyzzy\n'; see /docs"),
    ],
)
def test_a_path_that_is_not_there_is_named_with_the_nearest(server, path, words):
    answer = server.post(path, {})
    assert answer.status_code == 404 and words in answer.json()["error"]["message"]


def test_a_method_that_a_path_has_not_is_told_with_those_that_it_has(server):
    message = server.get("/v1/completions").json()["error"]["message"]
    assert message == "'/v1/completions' takes POST, not 'GET'; see /docs"


def test_every_answer_is_one_line_of_the_log_without_prompts():
    with serving() as server:
        server.complete(prompt="secret words", max_tokens=6)
        server.get("/health%0d%0aforged%1b[31m")
        server.refusal(prompt=5)
        wait_for(lambda: server.log.getvalue().count("\n") >= 3)
        lines = server.log.getvalue().splitlines()
    assert len(lines) == 3
    assert "secret" not in "".join(lines)
    assert 'POST "/v1/completions" 200' in lines[0] and "tokens=6" in lines[0]


HOSTILE = "1.2.3.4\x85\x9b31m \x7f\xa0200 POST".encode("latin-1")


def logged(server, is_json, **headers):
    """The line of the log about a request with some headers."""
    server.get("/health%c2%85%7f%e2%80%a8", headers=headers)
    wait_for(server.log.getvalue)
    (line,) = server.log.getvalue().splitlines()
    assert line.isascii() and line.isprintable()
    return json.loads(line)["client"] if is_json else line.split(" ", 1)[1]


@pytest.mark.parametrize("is_json", [False, True])
def test_a_client_cannot_say_who_it_is(is_json):
    with serving(log={"is_json": is_json}) as server:
        assert logged(server, is_json, **{"x-forwarded-for": HOSTILE}).startswith("127.0.0.1")


@pytest.mark.parametrize("proxies", ["127.0.0.1", "*", "10.0.0.1, 127.0.0.0/8"])
def test_a_proxy_that_was_named_says_who_it_is(proxies):
    with serving(proxies=check_proxies(proxies)) as server:
        assert logged(server, False, **{"x-forwarded-for": "9.8.7.6"}).startswith("9.8.7.6 GET")


@pytest.mark.parametrize("is_json", [False, True])
def test_what_a_proxy_passes_on_is_escaped(is_json):
    with serving(proxies="127.0.0.1", log={"is_json": is_json}) as server:
        said = logged(server, is_json, **{"x-forwarded-for": HOSTILE})
    quoted = r'"1.2.3.4\u0085\u009b31m \u007f\u00a0200 POST"'
    assert said == HOSTILE.decode("latin-1") if is_json else said.startswith(f"{quoted} GET")


def test_messages_of_libraries_are_escaped_and_forge_no_line():
    try:
        raise ValueError("a\x9b31m\u2028\x7f\n2026-01-01 INFO all is well")
    except ValueError:
        about = ("ssdlm", logging.ERROR, "", 1, "b\x85", None, sys.exc_info())
    record = logging.LogRecord(*about)
    first, *others = LineFormatter("%(message)s").format(record).split("\n")
    assert first == r"b\x85" and all(line.startswith("    ") for line in others)
    assert all(line.isprintable() for line in others)
    assert JsonFormatter().format(record).isprintable()


def test_a_log_in_json_has_prompts_if_asked():
    with serving(log={"is_json": True, "has_prompts": True}) as server:
        server.complete(prompt="open words", max_tokens=6)
        wait_for(server.log.getvalue)
        line = json.loads(server.log.getvalue())
    assert line["prompts"] == ["open words"] and line["status"] == 200
    assert line["tokens"] == 6 and line["is_whole"] is True


def test_a_long_method_is_cut_in_the_log():
    log = RequestLog(file=io.StringIO())
    log.answered({"method": "A" * 3000, "path": "/", "state": {}}, 405, 0.0)
    assert len(log.file.getvalue()) < 300


def test_metrics_count(server):
    before = figures(server)
    server.complete(prompt="ab", max_tokens=6, n=2)
    server.get("/nowhere/at/all")
    server.settle()
    after = figures(server)
    assert (
        after['ssdlm_tokens_total{model="tiny"}'] - before['ssdlm_tokens_total{model="tiny"}'] == 12
    )
    assert (
        after['ssdlm_passes_total{model="tiny"}'] - before['ssdlm_passes_total{model="tiny"}'] == 12
    )
    name = 'ssdlm_requests_total{method="POST",path="/v1/completions",status="200"}'
    assert after[name] - before.get(name, 0) == 1
    assert 'ssdlm_requests_total{method="GET",path="other",status="404"}' in after
    assert (
        after['ssdlm_queue_texts{model="tiny"}'] == 0
        and after['ssdlm_running_texts{model="tiny"}'] == 0
    )
    assert (
        after['ssdlm_first_draft_seconds_count{model="tiny"}']
        > before['ssdlm_first_draft_seconds_count{model="tiny"}']
    )
    assert (
        after['ssdlm_last_token_seconds_count{model="tiny"}']
        > before['ssdlm_last_token_seconds_count{model="tiny"}']
    )


def figures(server):
    lines = server.get("/metrics").text.splitlines()
    pairs = [line.rsplit(" ", 1) for line in lines if not line.startswith("#")]
    return {name: float(value) for name, value in pairs}
