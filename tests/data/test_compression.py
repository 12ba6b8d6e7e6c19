"""Streams out of compressed files: whole, or an error, never a silent part."""

import gzip
import io
import lzma
from pathlib import Path

import pytest

from ssdlm.data.compression import ERRORS, decompressed, split_suffix

zstandard = pytest.importorskip("zstandard")

CONTENT = bytes(range(256)) * 3000 + b"the end"
CHECKED = zstandard.ZstdCompressor(write_checksum=True)
PACK = {".gz": gzip.compress, ".xz": lzma.compress, ".zst": CHECKED.compress}


def read(packed: bytes, suffix: str) -> bytes:
    return decompressed(io.BufferedReader(io.BytesIO(packed)), suffix).read()


@pytest.mark.parametrize("suffix", PACK)
def test_content_comes_back(suffix):
    assert read(PACK[suffix](CONTENT), suffix) == CONTENT


@pytest.mark.parametrize("suffix", PACK)
def test_files_packed_in_several_runs_come_back_whole(suffix):
    packed = PACK[suffix](CONTENT[:1000]) + PACK[suffix](CONTENT[1000:])
    assert read(packed, suffix) == CONTENT


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.999])
def test_a_cut_off_file_is_an_error(suffix, share):
    packed = PACK[suffix](CONTENT)
    with pytest.raises(ERRORS):
        read(packed[: int(share * len(packed))], suffix)


@pytest.mark.parametrize("suffix", PACK)
def test_a_file_of_another_kind_is_an_error(suffix):
    with pytest.raises(ERRORS):
        read(b"plain text under a wrong name", suffix)


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize(
    "rest",
    [b"x", b"\n", b"and some text", b"\0x\0\0", b"\xfd7zXZ", b"\0" * 9000 + b"x" * 4],
    ids=["letter", "newline", "text", "zeros and a letter", "half a header", "letters far off"],
)
def test_what_follows_the_last_member_and_is_none_is_an_error(suffix, rest):
    with pytest.raises(ERRORS):
        read(PACK[suffix](CONTENT) + rest, suffix)


@pytest.mark.parametrize("suffix", PACK)
@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_damage_to_a_later_member_is_an_error(suffix, share):
    first, second = PACK[suffix](CONTENT), bytearray(PACK[suffix](CONTENT[::-1]))
    second[int(share * len(second))] ^= 0xFF
    for whole in (first + second, first + second + first):
        with pytest.raises(ERRORS):
            read(whole, suffix)


@pytest.mark.parametrize("zeros", [4, 8, 4092, 4096, 20_000])
def test_zeros_between_members_of_xz_and_after_them_are_padding(zeros):
    member, padding = lzma.compress(CONTENT), b"\0" * zeros
    assert read((member + padding) * 3, ".xz") == CONTENT * 3
    for odd in (b"\0", b"\0\0\0"):
        for packed in (member + padding + odd, member + padding + odd + member, padding + member):
            with pytest.raises(ERRORS):
                read(packed, ".xz")


def test_other_files_are_read_as_they_are():
    assert read(b"text", "") == b"text"


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("a.txt", (".txt", "")),
        ("b/a.b.JSONL.xz", (".jsonl", ".xz")),
        ("a.gz", ("", ".gz")),
        ("README", ("", "")),
    ],
)
def test_kind_and_compression_are_told_by_the_name(name, kinds):
    assert split_suffix(Path(name)) == kinds
