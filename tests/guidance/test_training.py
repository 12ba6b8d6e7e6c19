"""A guide out of labelled text: it learns, it is the same again, it says no."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors import SafetensorError
from tests import tiny
from tests.closeness import NETWORK, assert_close

from ssdlm import SSDLM, cli
from ssdlm.config import BlockConfig
from ssdlm.data.labelled import read_labelled
from ssdlm.denoiser.block import BlockDenoiser
from ssdlm.guidance import builtin_guides, classifier_guide, load_text_classifier
from ssdlm.guidance.training import GuideConfig, configure, train_guide
from ssdlm.guidance.training.compatibility import check_trainable
from ssdlm.guidance.training.loop import blur_words, learning_rate_factor
from ssdlm.guidance.training.model import (
    add_frame_tokens,
    build_classifier,
    factor_embeddings,
    merge_embeddings,
    word_vectors,
)
from ssdlm.guidance.training.run import split
from ssdlm.storage.builtin import GUIDES

QUICK = GuideConfig(D=32, epochs=2, batch_size=16, max_len=40, lr=0.01, lam=300.0, holdout=0.2)


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Texts full of a's are `first`, texts full of z's `last`."""
    folder = tmp_path_factory.mktemp("labelled")
    generator = torch.Generator().manual_seed(0)
    rows = []
    for number in range(160):
        letters = ("aab ", "zzy ")[number % 2]
        picks = torch.randint(4, (12,), generator=generator).tolist()
        text = "".join(letters[i] for i in picks) + "cdefgh"[number % 6]
        rows.append({"text": text, "label": ("first", "last")[number % 2]})
    (folder / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tiny.tokenizer().save(folder / "tokenizer")
    return folder


def train(data, out, **options):
    given = {"tokenizer": data / "tokenizer", "config": QUICK} | options
    return train_guide([data / "a.jsonl"], out=out, **given)


@pytest.fixture(scope="module")
def made(data):
    return train(data, data / "guide", about="Letters, made up.")


def test_a_guide_learns_to_tell_labels_apart(made):
    assert made.held_out.accuracy > 0.9
    assert made.held_out.macro_f1 > 0.9
    assert set(made.held_out.recall) == {"first", "last"}
    assert made.test is None
    assert "held-out accuracy" in str(made)


def test_transformers_opens_the_folder(data, made):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(made.out, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(made.out)
    encoded = tokenizer([" aab", "zzyzzy"], return_tensors="pt", padding=True)
    assert encoded["input_ids"][:, 0].tolist() == [0, 0]
    assert encoded["input_ids"][0, 5:].tolist() == [65, 1, 1]
    with torch.no_grad():
        guesses = model(**encoded).logits.argmax(-1).tolist()
    assert [model.config.id2label[guess] for guess in guesses] == ["first", "last"]
    assert model.config.model_type == "roberta"


def test_our_reading_of_a_folder_is_that_of_transformers(made):
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    model = AutoModelForSequenceClassification.from_pretrained(made.out, dtype=torch.float32)
    texts = ["aabaab", "zz", "a z, then a"]
    encoded = AutoTokenizer.from_pretrained(made.out)(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        theirs = model(**encoded).logits.log_softmax(-1)
    assert_close(load_text_classifier(made.out).log_probs(texts), theirs, roundings=NETWORK)


def test_a_new_guide_steers_the_model_of_its_tokenizer(made):
    guide = classifier_guide(made.out, "last")
    assert guide.suggested("logits") == 300.0
    tokenizer = tiny.tokenizer()
    fitted = guide.fit(
        V=tiny.V, token_strings=tokenizer.token_strings(), end_of_text=tokenizer.end_of_text
    )
    context = torch.tensor([tokenizer.encode("c")])
    logits = torch.zeros(1, 4, tiny.V, requires_grad=True)
    (grad,) = torch.autograd.grad(fitted(context, logits).sum(), logits)
    a, z = tokenizer.encode("az")
    assert (grad[0, :, z] > grad[0, :, a]).all()


def test_the_card_says_what_it_is_and_how_good(made, data):
    card = (data / "guide" / "README.md").read_text()
    assert "Letters, made up." in card
    assert f"{100 * made.held_out.accuracy:.1f}" in card
    assert "seed=0" in card


def test_the_same_seed_gives_the_same_weights(data, made):
    state = torch.random.get_rng_state()
    train(data, data / "again")
    assert torch.equal(torch.random.get_rng_state(), state)
    files = [data / name / "model.safetensors" for name in ("guide", "again")]
    assert files[0].read_bytes() == files[1].read_bytes()


def test_a_test_file_is_measured_and_never_trained_on(data, made, tmp_path):
    lines = (data / "a.jsonl").read_text().splitlines()
    (tmp_path / "test.jsonl").write_text("\n".join(lines[:20]))
    report = train(data, tmp_path / "guide", test=tmp_path / "test.jsonl")
    assert report.test is not None
    assert report.test.texts == len({json.loads(line)["text"] for line in lines[:20]})
    assert report.train_texts < made.train_texts


def test_training_goes_on_from_another_model(data, tmp_path):
    start = tiny.save_classifier(tmp_path / "start", "bert")
    tiny.tokenizer().save(start)
    report = train(data, tmp_path / "guide", tokenizer=None, start=start)
    assert report.held_out.accuracy > 0.9
    assert load_text_classifier(report.out).labels == ["first", "last"]


def test_a_guide_from_a_model_of_independent_labels_has_one_label_a_text(data, tmp_path):
    start = tiny.save_classifier(tmp_path / "start", "bert")
    tiny.tokenizer().save(start)
    amend(start / "config.json", problem_type="multi_label_classification")
    report = train(data, tmp_path / "guide", tokenizer=None, start=start)
    told = json.loads((tmp_path / "guide" / "config.json").read_text())
    assert told["problem_type"] == "single_label_classification"
    assert load_text_classifier(report.out).log_probs(["aab"]).exp().sum().item() == pytest.approx(
        1.0
    )


def amend(path, **values):
    """Change a file of JSON."""
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


SMALL = {
    "bart": {"d_model": 32, "encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32},
    "canine": {"num_hash_buckets": 64},
    "longformer": {"attention_window": 8},
}


@pytest.mark.parametrize(
    ("kind", "settings", "words"),
    [
        ("gpt2", {}, "cannot be trained as a guide .it is a decoder"),
        ("gpt2", {"pad_token_id": None}, "cannot be trained as a guide .Cannot handle batch sizes"),
        ("llama", {}, "cannot be trained as a guide .it is a decoder"),
        ("bert", {"is_decoder": True}, "cannot be trained as a guide .it is a decoder"),
        ("bart", {}, "cannot be trained as a guide .Passing input embeddings"),
        ("longformer", {}, "cannot be trained as a guide"),
        ("fnet", {}, "cannot be trained as a guide .padding changes what it says"),
        ("canine", {}, "is no model to start from"),
    ],
)
def test_what_is_no_encoder_is_refused_in_one_line(data, tmp_path, kind, settings, words):
    start = save_start(tmp_path / "start", kind, **settings)
    with pytest.raises(ValueError, match=f"start {words}.*; give an encoder such as") as caught:
        train(data, tmp_path / "guide", tokenizer=None, start=start)
    assert "\n" not in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == ["start"]


def save_start(folder, kind, **settings):
    """Write a random classifier of a kind with the tiny tokenizer."""
    from transformers import AutoConfig, AutoModelForSequenceClassification

    torch.manual_seed(0)
    sizes = {"vocab_size": tiny.V, "max_position_embeddings": 66} | tiny.SIZES
    config = AutoConfig.for_model(kind, **sizes | SMALL.get(kind, {}) | settings)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    tiny.tokenizer().save(folder)
    return folder


@pytest.mark.parametrize(
    ("V", "settings", "words"),
    [
        (40, {}, "has embeddings of 40 tokens and a tokenizer of 64; give the tokenizer it was"),
        (64, {"eos_token_id": 99}, "names the special token 99; put"),
        (64, {"pad_token_id": -1}, "names the special token -1; put"),
    ],
)
def test_ids_without_an_embedding_are_refused(data, tmp_path, V, settings, words):
    start = tiny.save_classifier(tmp_path / "start", "bert", V=V)
    tiny.tokenizer().save(start)
    amend(start / "config.json", **settings)
    with pytest.raises(ValueError, match=words):
        train(data, tmp_path / "guide", tokenizer=None, start=start)
    assert [path.name for path in tmp_path.iterdir()] == ["start"]


@pytest.mark.parametrize("kind", ["roberta", "distilbert", "electra", "deberta-v2", "modernbert"])
def test_encoders_pass_the_trial_which_leaves_chance_alone(tmp_path, kind):
    start = save_start(tmp_path / "start", kind)
    classifier = build_classifier(QUICK, ["x", "y"], tokenizer=None, start=start)
    before = {key: value.clone() for key, value in classifier.model.state_dict().items()}
    state = torch.random.get_rng_state()
    check_trainable(classifier, start, QUICK)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert all(torch.equal(before[key], now) for key, now in classifier.model.state_dict().items())


def test_the_written_tokenizer_knows_how_much_the_model_reads(data, made, tmp_path):
    from transformers import pipeline

    start = tiny.save_classifier(tmp_path / "start", "bert")
    tiny.tokenizer().save(start)
    train(data, tmp_path / "guide", tokenizer=None, start=start, config=replace(QUICK, epochs=1))
    for folder, room in ((Path(made.out), 40), (tmp_path / "guide", 66)):
        told = json.loads((folder / "tokenizer_config.json").read_text())
        assert told["model_max_length"] == room
    (found,) = pipeline("text-classification", model=made.out)("zzy " * 100, truncation=True)
    assert found["label"] == "last"


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.csv", "text,label\nGood,pos\nGood number 3, but pricey,pos\n", "line 3 has 3 columns "
         "where the header has 2; quote texts that contain commas"),
        ("a.csv", "text,label,by\nGood,pos\n", "line 2 has 2 columns where the header has 3; give"),
        ("a.tsv", "text\tlabel\na\tb\tc\n", "has 3 columns where the header has 2; remove tabs"),
        ("a.jsonl", '{"text": "a", "label": 1.0}', "line 1 has the label 1.0; write a string or an "
         "integer"),
        ("a.jsonl", '{"text": "a", "label": true}', "line 1 has the label true; write a string"),
        ("a.jsonl", '{"text": "a", "label": null}', "line 1 has no label"),
        ("a.jsonl", '{"text": "a"', "line 1 is not JSON"),
        ("a.txt", "a", "of no known kind"),
    ],
)  # fmt: skip
def test_rows_that_would_be_misread_are_refused(data, tmp_path, name, content, words):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=words):
        train_guide([tmp_path / name], out=tmp_path / "g", tokenizer=data / "tokenizer")
    with pytest.raises(ValueError, match=words):
        train(data, tmp_path / "g", test=tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == [name]


def test_a_full_disk_is_an_error_of_the_system_and_leaves_nothing(data, tmp_path, monkeypatch):
    def save(model, folder):
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("transformers.PreTrainedModel.save_pretrained", save)
    with pytest.raises(OSError, match="No space left on device") as caught:
        train(data, tmp_path / "g", config=replace(QUICK, epochs=1))
    assert caught.value.errno == 28
    assert list(tmp_path.iterdir()) == []


def test_a_quoted_comma_and_an_integer_are_fine(tmp_path):
    (tmp_path / "a.csv").write_text('text,label\n"Good, but pricey",pos\n')
    (tmp_path / "a.jsonl").write_text('{"text": "a", "label": 1}\n')
    assert [(row.text, row.label) for row in read_labelled(tmp_path / "a.csv")] == [
        ("Good, but pricey", "pos")
    ]
    assert [row.label for row in read_labelled(tmp_path / "a.jsonl")] == ["1"]


def test_texts_with_two_labels_are_named_where_nothing_else_is_left(data, tmp_path):
    both = tmp_path / "both.jsonl"
    rows = [{"text": text, "label": label} for text in "ab" for label in ("first", "last")]
    both.write_text("\n".join(map(json.dumps, rows)))
    words = r"has 0 labels without the texts that occur with different labels \(2\)"
    with pytest.raises(ValueError, match=f"the data {words}, which are left out; give each"):
        train_guide([both], out=tmp_path / "g", tokenizer=data / "tokenizer")
    with pytest.raises(ValueError, match=rf"both\.jsonl {words}"):
        train(data, tmp_path / "g", test=both)


def test_the_frame_keeps_every_other_token(data):
    own, outer = tiny.tokenizer(), add_frame_tokens(tiny.tokenizer())
    strings = outer.token_strings()
    assert strings[:2] == ["<s>", "<pad>"]
    assert strings[2:-1] == own.token_strings()[:-1]
    assert outer.token_strings()[outer.end_of_text] == "</s>"
    assert outer.encode("the end") == [i + 2 for i in own.encode("the end")]
    assert add_frame_tokens(outer) is outer


def test_held_out_texts_do_not_depend_on_the_order(data):

    rows = read_labelled(data / "a.jsonl")
    assert {row.text for row in split(rows, 0.3, 1)[1]} == {
        row.text for row in split(rows[::-1], 0.3, 1)[1]
    }
    assert split(rows, 0.3, 1)[1] != split(rows, 0.3, 2)[1]


def test_blur_mixes_words_with_the_mean_word():
    embed = torch.nn.Embedding(5, 3)
    ids, unigram = torch.tensor([[1, 2]]), torch.full((5,), 0.2)
    generator = torch.Generator().manual_seed(0)
    assert torch.equal(blur_words(embed, ids, unigram, 0.0, generator), embed(ids))
    mixed, mean = blur_words(embed, ids, unigram, 1.0, generator), embed.weight.mean(0)
    word = embed(ids) - mean
    share = ((mixed - mean) * word).sum(-1, keepdim=True) / word.square().sum(-1, keepdim=True)
    assert_close(mixed, mean + share * word)
    assert ((share > 0) & (share < 1)).all()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model of ours to whose head a, b and c are alike, and z, y and x."""
    torch.manual_seed(0)
    tokenizer = tiny.tokenizer()
    denoiser = BlockDenoiser(BlockConfig(V=tiny.V, D=32, num_layers=1, num_heads=2))
    with torch.no_grad():
        denoiser.head.normal_()
        for alike in ("abc", "zyx"):
            denoiser.head[tokenizer.encode(alike)] = torch.randn(32) + 0.1 * torch.randn(3, 32)
    folder = tmp_path_factory.mktemp("model")
    SSDLM(denoiser, tokenizer).save_pretrained(folder)
    return folder


def test_what_some_words_teach_is_known_of_words_like_them(data, model, tmp_path):
    """c and x stand in no text; another model knows that they are like a and z."""
    data_without = tmp_path / "a.jsonl"
    text = (data / "a.jsonl").read_text().replace("c", "d")
    data_without.write_text(text)
    out = tmp_path / "guide"
    config = replace(QUICK, eps=1.0, epochs=6, patience=6)
    train_guide([data_without], tokenizer=data / "tokenizer", words=model, out=out, config=config)
    classifier = load_text_classifier(out)
    first = classifier.labels.index("first")
    probs = classifier.log_probs(["cccccc", "xxxxxx"]).exp()[:, first]
    assert probs[0] > 0.5 > probs[1]


def test_an_image_of_words_ends_as_an_ordinary_table(data, model, made):
    classifier = build_classifier(QUICK, ["x", "y"], tokenizer=data / "tokenizer", start=None)
    factor_embeddings(classifier, model)
    embed = classifier.model.get_input_embeddings()
    names = [name for name, _ in embed.named_parameters()]
    assert names == ["parametrizations.weight.original"]
    before = embed.weight.detach().clone()
    merge_embeddings(classifier)
    assert [name for name, _ in embed.named_parameters()] == ["weight"]
    assert torch.equal(embed.weight, before)
    assert torch.linalg.matrix_rank(before) > 30
    with pytest.raises(ValueError, match="no word embeddings that are known here"):
        word_vectors(["a"], Path(made.out))


def test_the_learning_rate_rises_and_falls():
    assert [learning_rate_factor(progress) for progress in (0.0, 0.1, 1.0)] == [0.0, 1.0, 0.0]
    assert learning_rate_factor(0.05) == pytest.approx(learning_rate_factor(0.55))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (["epochs=0"], "epochs=0 is out of range; use 1 or more"),
        (["D=33"], "D=33 is out of range; heads are 32 wide"),
        (["holdout=1"], "holdout=1.0 is out of range; use more than 0 and less than 1"),
        (["dropout=1"], "dropout=1.0 is out of range; use 0 or more and less than 1"),
        (["lr=0"], "lr=0.0 is out of range; use more than 0"),
        (["lr=inf"], "lr=inf is out of range; use more than 0 and at most"),
        (["lam=nan"], "lam=nan is out of range; use"),
        (["lam=-5"], "lam=-5.0 is out of range; use 0"),
        (["lam=1e9"], "lam=1000000000.0 is out of range; use 0"),
        (["max_len=2"], "max_len=2 is out of range; use 3 or more"),
        (["max_tokens=1"], "max_tokens=1 is out of range; use 3 or more"),
        (["max_tokens=2"], "max_tokens=2 is out of range; use 3 or more"),
        (["seed=99999999999999999999"], "seed=99999999999999999999 is out of range; use 0 or more"),
        (["D=99999999999999999999"], "D=99999999999999999999 is out of range; use 1 or more"),
        (["batch_size=99999999999999999999"], "batch_size=99999999999999999999 is out of range"),
        (["lr=1e9", "epochs=1"], "broke the guide; lower lr"),
        (["eps=0"], "eps=0.0 is out of range; use more than 0"),
        (["epoch=3"], "no setting 'epoch'; the nearest is 'epochs'"),
        (["epochs=many"], "epochs"),
    ],
)
def test_bad_settings_are_refused(data, tmp_path, settings, words):
    with pytest.raises(ValueError, match=words):
        train(data, tmp_path / "guide", config=configure(settings))
    assert list(tmp_path.iterdir()) == []


def test_bad_data_is_refused_and_leaves_nothing(data, tmp_path):
    one = tmp_path / "one.jsonl"
    one.write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": "x"}')
    with pytest.raises(ValueError, match="the data has 1 label"):
        train_guide([one], out=tmp_path / "g", tokenizer=data / "tokenizer")
    one.write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}')
    with pytest.raises(ValueError, match="no text of label"):
        train_guide([one], out=tmp_path / "g", tokenizer=data / "tokenizer")
    for text, label in (("\\ud800", "x"), ("a", "\\ud800")):
        one.write_text(f'{{"text": "{text}", "label": "{label}"}}')
        with pytest.raises(ValueError, match="line 1 is not UTF-8"):
            train_guide([one], out=tmp_path / "g", tokenizer=data / "tokenizer")
    one.write_text("[" * 100_000)
    with pytest.raises(ValueError, match=r"line 1 is not JSON \(nested too deep"):
        train_guide([one], out=tmp_path / "g", tokenizer=data / "tokenizer")
    one.write_text('{"text": "a", "label": "x"}\n{"text": "b", "label": "y"}')
    with pytest.raises(ValueError, match="holds all the texts of the data"):
        train_guide([one], out=tmp_path / "g", test=one, tokenizer=data / "tokenizer")
    one.write_text('{"text": "a", "label": "strange"}')
    with pytest.raises(ValueError, match="label 'strange' in the test is not in the training"):
        train(data, tmp_path / "g", test=one)
    with pytest.raises(ValueError, match="give the tokenizer of the model to steer"):
        train(data, tmp_path / "g", start=data)
    with pytest.raises(ValueError, match="exists already"):
        train(data, data / "tokenizer")
    assert [path.name for path in tmp_path.iterdir()] == ["one.jsonl"]


@pytest.mark.parametrize("name", builtin_guides())
def test_a_pipeline_cuts_a_long_text_for_a_builtin_guide(name):
    from transformers import pipeline

    (found,) = pipeline("text-classification", model=str(GUIDES / name))(
        "good " * 400, truncation=True
    )
    assert found["label"] in load_text_classifier(GUIDES / name).labels


def test_the_command_makes_a_guide(capsys, data, tmp_path):
    arguments = ["train-guide", data / "a.jsonl", "D=32", "epochs=1", "max_len=40", "lam=7"]
    arguments += ["--tokenizer", data / "tokenizer", "--out", tmp_path / "guide"]
    assert cli.main([str(argument) for argument in arguments]) == 0
    assert f"wrote {tmp_path / 'guide'}: held-out accuracy" in capsys.readouterr().out
    assert classifier_guide(tmp_path / "guide", "first").suggested("logits") == 7.0
