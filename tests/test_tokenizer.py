"""Text <-> ids for every layout we open, and the nested vocabulary."""

import json
import pickle
import random

import numpy as np
import pytest
import tokenizers
from tokenizers import models, normalizers, pre_tokenizers

from ssdlm.tokenizer import Tokenizer, load_tokenizer, nested
from tests import bpe, tiny


@pytest.fixture
def gpt2(tmp_path):
    return load_tokenizer(bpe.write_gpt2(tmp_path / "gpt2"))


@pytest.fixture
def roberta(tmp_path):
    return load_tokenizer(bpe.write_roberta(tmp_path / "roberta"))


def write_bert(folder):
    """A tokenizer.json as the Hub has it for BERT, set to pad and to cut."""
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "river", "##s", "had"]
    vocab = {word: number for number, word in enumerate(words)}
    backend = tokenizers.Tokenizer(models.WordPiece(vocab, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = tokenizers.decoders.WordPiece()
    backend.add_special_tokens(words[:5])
    backend.enable_truncation(2)
    backend.enable_padding(length=8)
    folder.mkdir()
    backend.save(str(folder / "tokenizer.json"))
    return folder


def random_text(rng):
    codes = [
        rng.choice([rng.randrange(32, 127), rng.randrange(0xD800), rng.randrange(0xE000, 0x110000)])
        for _ in range(rng.randrange(40))
    ]
    return "".join(map(chr, codes))


def test_gpt2s_layout_ends_text_with_its_only_special_token(gpt2):
    assert gpt2.V == len(bpe.gpt2_strings()) + 1
    assert gpt2.end_of_text == gpt2.V - 1
    assert gpt2.special_ids() == [gpt2.V - 1]


def test_robertas_special_tokens_are_found_by_their_names(roberta):
    assert roberta.end_of_text == 2
    assert roberta.special_ids() == [0, 1, 2, 3, roberta.V - 1]
    assert roberta.encode("</s>") == [2]


def test_gpt2s_end_of_text_is_an_ordinary_entry_in_roberta(roberta):
    assert roberta.encode("<|endoftext|>") != [roberta.token_strings().index("<|endoftext|>")]
    assert roberta.decode(roberta.encode("<|endoftext|>")) == "<|endoftext|>"


def test_nothing_is_added_to_a_text(gpt2):
    ids = gpt2.encode("the river")
    assert [gpt2.token_strings()[i] for i in ids] == ["the", "\u0120river"]


@pytest.mark.parametrize("text", ["", " ", "  two  spaces , kept .", "\n\na\tb\r\n", "don't  "])
def test_decoding_keeps_every_space(gpt2, text):
    assert gpt2.decode(gpt2.encode(text)) == text


def test_random_unicode_survives_the_round_trip(gpt2, roberta):
    rng = random.Random(0)
    small = nested(gpt2, 300)
    for _ in range(100):
        text = random_text(rng)
        for tokenizer in (gpt2, roberta, small):
            assert tokenizer.decode(tokenizer.encode_plain([text])[0]) == text


def test_special_names_are_tokens_in_a_prompt_and_text_in_data(gpt2):
    text = "the<|endoftext|>river"
    assert gpt2.end_of_text in gpt2.encode(text)
    (plain,) = gpt2.encode_plain([text])
    assert gpt2.end_of_text not in plain
    assert gpt2.decode(plain) == text


def test_special_tokens_are_decoded_unless_skipped(gpt2):
    ids = np.array([*gpt2.encode("the"), gpt2.end_of_text])
    assert gpt2.decode(ids) == "the<|endoftext|>"
    assert gpt2.decode(ids, skip_special_tokens=True) == "the"


def test_a_bert_tokenizer_neither_pads_nor_cuts_and_ends_with_sep(tmp_path):
    bert = load_tokenizer(write_bert(tmp_path / "bert"))
    assert bert.encode("The rivers had") == [5, 6, 7, 8]
    assert bert.end_of_text == 3
    assert bert.V == 9


def test_a_saved_tokenizer_is_the_same_everywhere(gpt2, tmp_path):
    gpt2.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    from_file = load_tokenizer(tmp_path / "saved" / "tokenizer.json")
    pickled = pickle.loads(pickle.dumps(gpt2))
    assert gpt2.digest == again.digest == from_file.digest == pickled.digest


def test_transformers_opens_a_saved_tokenizer(gpt2, tmp_path):
    from transformers import AutoTokenizer, PreTrainedTokenizerFast

    small = nested(gpt2, 300)
    small.save(tmp_path)
    text = "the river , had  risen"
    for theirs in (
        PreTrainedTokenizerFast(tokenizer_file=str(tmp_path / "tokenizer.json")),
        AutoTokenizer.from_pretrained(tmp_path),
    ):
        assert theirs(text).input_ids == small.encode(text)
        assert theirs.decode(small.encode(text)) == text
    assert theirs.eos_token_id == small.end_of_text


@pytest.mark.parametrize("size", [258, 300])
def test_a_nested_vocabulary_has_exactly_its_size_and_only_tokens_of_the_source(gpt2, size):
    small = nested(gpt2, size)
    strings = small.token_strings()
    assert small.V == len(set(strings)) == size
    assert set(strings) <= set(gpt2.token_strings())
    assert strings[:-1] == gpt2.token_strings()[: size - 1]
    assert strings[small.end_of_text] == "<|endoftext|>" and small.end_of_text == size - 1


def test_gpt2_and_roberta_give_the_same_nested_vocabulary(gpt2, roberta, tmp_path):
    assert nested(gpt2, 300).to_json() == nested(roberta, 300).to_json()
    assert nested(tmp_path / "roberta", 300).digest == nested(gpt2, 300).digest


def test_all_of_a_gpt2_vocabulary_nested_is_that_vocabulary(gpt2):
    assert nested(gpt2, gpt2.V).to_json() == gpt2.to_json()


def test_the_tokenizers_library_opens_a_nested_vocabulary(gpt2, tmp_path):
    nested(gpt2, 300).save(tmp_path)
    assert tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")).get_vocab_size() == 300


def test_a_nested_size_out_of_range_is_refused_with_the_limit(gpt2):
    with pytest.raises(ValueError, match=r"size=257 is too small .* use 258"):
        nested(gpt2, 257)
    with pytest.raises(ValueError, match=f"size=9999 .* use at most {gpt2.V}"):
        nested(gpt2, 9999)


def test_only_a_byte_level_bpe_can_be_nested(tmp_path):
    with pytest.raises(ValueError, match="is not a byte-level BPE"):
        nested(write_bert(tmp_path / "bert"), 300)


def test_what_is_no_tokenizer_is_refused_by_name(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(ValueError, match=r"empty has neither tokenizer\.json nor"):
        load_tokenizer(tmp_path / "empty")
    with pytest.raises(ValueError, match=r"tokenizer\.json is not a tokenizer"):
        load_tokenizer(tmp_path)
    with pytest.raises(ValueError, match="missing is not there"):
        load_tokenizer(tmp_path / "missing")
    with pytest.raises(ValueError, match="no-such-name is no folder here and the Hub did not"):
        load_tokenizer("no-such-name")


def test_a_vocabulary_that_does_not_fit_its_merges_is_refused(tmp_path):
    folder = bpe.write_gpt2(tmp_path / "broken")
    (folder / "vocab.json").write_text(json.dumps({"a": 0, "<|endoftext|>": 1}))
    with pytest.raises(ValueError, match="do not fit"):
        load_tokenizer(folder)


def test_a_tokenizer_without_end_of_text_is_refused():
    with pytest.raises(ValueError, match="no end-of-text token; add one of"):
        Tokenizer(tokenizers.Tokenizer(models.WordLevel({"a": 0}, unk_token="a")))


def test_a_name_on_the_hub_is_opened_like_the_folder_it_downloads(tmp_path, monkeypatch):
    import huggingface_hub

    folder = bpe.write_roberta(tmp_path / "snapshot")
    asked = []

    def download(name, *, allow_patterns):
        asked.append(name)
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert load_tokenizer("xhan77/ssdlm").digest == load_tokenizer(folder).digest
    assert asked == ["xhan77/ssdlm"]


def test_a_name_on_the_hub_without_our_files_is_left_to_transformers(tmp_path, monkeypatch):
    import huggingface_hub
    import transformers

    folder = write_bert(tmp_path / "bert")
    (tmp_path / "snapshot").mkdir()
    theirs = transformers.PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    monkeypatch.setattr(
        huggingface_hub, "snapshot_download", lambda name, **_: str(tmp_path / "snapshot")
    )
    monkeypatch.setattr(
        transformers.AutoTokenizer, "from_pretrained", lambda name, use_fast: theirs
    )
    assert load_tokenizer("old-kind").encode("the rivers") == [5, 6, 7]


def test_the_bytes_of_tokens_make_up_the_text(tmp_path):
    generator = random.Random(0)
    made = [tiny.tokenizer(), load_tokenizer(bpe.write_gpt2(tmp_path / "gpt2"))]
    made += [load_tokenizer(bpe.write_roberta(tmp_path / "roberta"))]
    for tokenizer in made:
        spellings = tokenizer.token_bytes()
        assert len(spellings) == tokenizer.V
        for _ in range(50):
            ids = generator.choices(range(tokenizer.V), k=12)
            text = b"".join(spellings[i] for i in ids).decode(errors="replace")
            assert text == tokenizer.decode(ids)


def test_the_bytes_of_word_pieces_hold_the_space_before_them():
    vocab = {"[UNK]": 0, "dog": 1, "##s": 2, "a": 3, "[SEP]": 4}
    backend = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token="[UNK]"))
    backend.decoder = tokenizers.decoders.WordPiece()
    assert Tokenizer(backend).token_bytes()[1:4] == [b" dog", b"s", b" a"]


def test_a_continuation_holds_the_space_that_joins_it_to_its_context(gpt2, tmp_path):
    bert = load_tokenizer(write_bert(tmp_path / "bert"))
    ids = bert.encode("the rivers had")
    assert bert.decode_after(ids[:1], ids[1:]) == " rivers had"
    assert bert.decode_after(ids[:2], ids[2:]) == "s had"
    assert bert.decode_after([], ids) == bert.decode(ids)
    ids = gpt2.encode("a caf\N{LATIN SMALL LETTER E WITH ACUTE} there")
    for cut in range(len(ids)):
        assert gpt2.decode_after(ids[:cut], ids[cut:]) == gpt2.decode(ids[cut:])
    # With any bytes, whole characters or not: what stands behind the context in the whole text.
    generator = random.Random(0)
    spelled = [gpt2.encode(char) for char in "aé€😀"]
    for _ in range(300):
        ids = [token for char in generator.choices(spelled, k=6) for token in char]
        del ids[generator.randrange(len(ids))]
        cut = generator.randrange(len(ids))
        whole, before = gpt2.decode(ids), gpt2.decode(ids[:cut])
        alone = gpt2.decode(ids[cut:])
        expected = whole.removeprefix(before) if whole.startswith(before) else alone
        assert gpt2.decode_after(ids[:cut], ids[cut:]) == expected


def test_the_built_in_models_tokenizer_is_named_as_the_model_is(tmp_path):
    tokenizer = load_tokenizer("builtin:mini")
    assert tokenizer.V == 8192
    assert nested("builtin:mini", 1000).decode(tokenizer.encode("The river")[:1]) == "The"
    with pytest.raises(ValueError, match="builtin:huge is not in this installation"):
        load_tokenizer("builtin:huge")
