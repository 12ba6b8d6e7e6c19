"""Where judges come from, and what is said when they are missing."""

import importlib.util

import pytest
from tests.evaluate.tiny_judge import MAX_LEN, hearing, save_judge

from ssdlm.evaluate import judge
from ssdlm.evaluate.judge import Judge, load_encoder, load_judge
from ssdlm.storage import builtin


def test_a_folder_is_loaded_with_its_limit(tmp_path):
    found = load_judge(save_judge(tmp_path), "cpu")
    assert found.max_len == MAX_LEN
    assert found.name == str(tmp_path)
    assert not found.model.training
    assert found.tokenizer.encode("the") == [found.tokenizer.convert_tokens_to_ids("the")]


def test_a_model_without_a_trained_head_is_no_judge(tmp_path):
    with pytest.raises(ValueError, match="no trained weights for") as error:
        load_judge(save_judge(tmp_path, "bert"), "cpu")
    assert "\n" not in str(error.value)


def test_a_model_that_sees_what_it_predicts_is_no_judge(tmp_path):
    with pytest.raises(ValueError, match="give a causal language model"):
        load_judge(save_judge(tmp_path, "masked"), "cpu")


def test_a_judge_that_is_not_there_is_an_error_of_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"there is no folder .*nowhere; give") as error:
        load_judge(str(tmp_path / "nowhere"), "cpu")
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["./nowhere", "../nowhere", "/nowhere", "no/such/folder"])
def test_what_cannot_be_a_hub_id_is_not_asked_for_there(monkeypatch, name):
    monkeypatch.setattr(judge, "load_trained", lambda *asked: pytest.fail("the Hub was asked"))
    with pytest.raises(ValueError, match=f"there is no folder {name}; give"):
        load_judge(name, "cpu")


@pytest.mark.parametrize(
    ("name", "near"), [("smolm2", "smollm2"), ("SmolLM2", "smollm2"), ("minlm", "minilm")]
)
def test_a_misspelt_name_is_told_the_nearest(monkeypatch, name, near):
    monkeypatch.setattr(judge, "load_trained", lambda *asked: pytest.fail("the Hub was asked"))
    with pytest.raises(ValueError, match=f"there is no model '{name}'; the nearest is '{near}'"):
        load_encoder(name, "cpu")


@pytest.mark.parametrize("name", ["gpt2", "distilgpt2", "bert-base-uncased", "me/smollm2"])
def test_other_names_are_asked_for_at_the_hub(monkeypatch, tmp_path, name):
    asked = []

    def load(auto, source):
        asked.append(source)
        raise OSError("no network.\nCheck the connection.")

    monkeypatch.setattr(judge, "load_trained", load)
    monkeypatch.setattr("huggingface_hub.snapshot_download", lambda *_, **__: str(tmp_path))
    with pytest.raises(ValueError, match=r"model \(no network\. Check the connection\.\); give"):
        load_judge(name, "cpu")
    assert asked == [name]


@pytest.mark.parametrize("name", ["", " "])
def test_an_empty_name_is_no_judge(name):
    with pytest.raises(ValueError, match=f"'{name}' names no model"):
        load_judge(name, "cpu")


def test_a_folder_without_a_model_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"has no config\.json; give the folder of a model$"):
        load_judge(str(tmp_path), "cpu")
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file is a file; give the folder"):
        load_judge(str(tmp_path / "file"), "cpu")


@pytest.mark.parametrize(
    ("kind", "load"), [("gpt2", load_judge), ("llama", load_judge), ("bert", load_encoder)]
)
def test_a_model_without_a_tokenizer_is_no_judge(tmp_path, kind, load):
    save_judge(tmp_path, kind)
    for path in tmp_path.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ValueError, match=f"the judge {tmp_path} has no tokenizer") as error:
        load(str(tmp_path), "cpu")
    assert "\n" not in str(error.value)


def test_an_id_that_the_model_does_not_know_is_an_error_of_one_line(tmp_path):
    small = load_judge(save_judge(tmp_path), "cpu")
    small.model.resize_token_embeddings(50)
    with pytest.raises(ValueError, match="gives the id 258, and its model knows 50 ids") as error:
        small.encode(["the"])
    assert "\n" not in str(error.value)


def test_loading_says_nothing_of_its_own(tmp_path, caplog):
    name = save_judge(tmp_path, "bert")
    with hearing(caplog.handler), pytest.raises(ValueError, match="no trained weights for"):
        load_judge(name, "cpu")
    assert caplog.messages == []


def test_a_missing_sentence_encoder_says_how_to_get_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    assert not judge.has_minilm()
    with pytest.raises(ValueError, match="make judge"):
        load_encoder("minilm")


def test_the_default_judge_is_the_model_smollm2(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    save_judge(tmp_path / "ssdlm" / "models" / builtin.FOLDER)
    assert load_judge(device="cpu").max_len == MAX_LEN


def test_a_judge_is_known_by_its_weights_and_not_by_its_folder(tmp_path):
    one, same = (load_judge(save_judge(tmp_path / name), "cpu") for name in ("one", "same"))
    other = load_judge(save_judge(tmp_path / "other", "llama"), "cpu")
    assert one.fingerprint == same.fingerprint != other.fingerprint
    half = Judge("half", one.model.half().float(), one.tokenizer, None)
    assert half.fingerprint == same.fingerprint
