"""Make the built-in guides, and the judge of their work: python benchmarks/guides.py KIND ...

    sentiment   tweets of SemEval-2017 task 4A, its 2017 test held out
    human       windows of labelled movie reviews that the judge `reviews` did not see, in
                OUT.test.jsonl: texts of people for the bench of control
    human-tense, human-source
                the same for tense and source, of documents that `tenses` and `sources` did not see
    tense-words windows as the guide of tense has them, without the auxiliary verbs that labelled
                them, files alone: for guides of other models
    opinions    those tweets and windows of labelled movie reviews, files alone: for guides of other
                models, which `ssdlm train-guide` makes of them
    tense       windows of articles, books and reviews, labelled by their auxiliary verbs
    source      windows of articles, books and reviews, labelled by where they are from
    judge       MiniLM on sentences of SST-2 and Yelp: what external accuracy is measured with
    reviews     a second judge of another kind: a network over words, on labelled movie reviews
    tenses      a judge of tenses of that kind, on other documents than the guide's, which does not
                see the auxiliary verbs by which they are labelled
    sources     a judge of sources of that kind, on other documents than the guide's
    cost        what a guide adds to a call of the network, side by side with none

Labelled files go to OUT.train.jsonl and OUT.test.jsonl, the classifier to OUT. DATA is a folder
with sentiment/{semeval2017,sst2,yelp} and {wiki,gutenberg,imdb}*.jsonl.xz as they are published.
"""

from __future__ import annotations

import argparse
import html
import json
import lzma
import random
import re
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ssdlm import SSDLM
from ssdlm.evaluate.judge import minilm_folder
from ssdlm.guidance import load_guide, load_text_classifier
from ssdlm.guidance.judges import ENDS, VERBS, count_verbs
from ssdlm.guidance.training import GuideConfig, train_guide, train_judge
from ssdlm.storage.files import read_json, write_json
from ssdlm.storage.jsonl import parse_jsonl, write_jsonl

Row = dict[str, str]
LABELS = ("negative", "neutral", "positive")
SIDES = {"0": "negative", "neg": "negative", "1": "positive", "pos": "positive"}
SIDES |= {label: label for label in SIDES.values()}
"""What a file of reviews may call its labels."""
SOURCES = ("wiki-00", "gutenberg-00", "imdb-unlabelled")
OTHER_SOURCES = ("wiki-01", "gutenberg-01", "imdb-labelled-test")
"""Documents that no guide has seen."""
KINDS = ("article", "book", "review")
"""What each of these is."""

ABOUT = {
    "sentiment": """Data: the tweets of SemEval-2017 task 4A (Rosenthal et al., 2017) of the years
2013 to 2016 that are negative or positive, each text once, links and names of users replaced;
tested on those of 2017. Tweets are subject to Twitter's terms, and none is stored here. Word
embeddings are a learnt linear image of those of a first model of ours (unlabelled movie reviews,
articles and books), so that what tweets teach of some words is known of all words like them. Made
by
`python benchmarks/guides.py sentiment --data DATA --tokenizer DIR --words DIR --out DIR`.""",
    "tense": """Data: windows of 8 to 40 words of English Wikipedia (CC BY-SA 3.0), Project
Gutenberg (public domain in the US) and movie reviews (Maas et al., 2011; research use), at most
2,500 of each source and label. A window is `past` if it has at least two forms of be, have and do
in the past tense and none in the present, `present` if the reverse. Tested on other documents.
Word embeddings begin as those of `sentiment` do. Made by
`python benchmarks/guides.py tense --data DATA --tokenizer DIR --words DIR --out DIR`.""",
    "source": """Data: windows of 20 to 60 words of English Wikipedia (CC BY-SA 3.0), Project
Gutenberg (public domain in the US) and movie reviews (Maas et al., 2011; research use), 4,000 of
each. Tested on other documents.""",
    "judge": """Data: sentences of SST-2 (Socher et al., 2013) and Yelp, both for research use, on
all-MiniLM-L6-v2 (Apache-2.0). For measuring, not for steering.""",
}  # fmt: skip


def sentiment(data: Path) -> tuple[list[Row], ...]:
    """Return the tweets of 2013 to 2016 that take a side, and those of the 2017 test."""
    folder = data / "sentiment" / "semeval2017"
    train = [row for path in sorted(folder.glob("twitter-*.tsv")) for row in tweets(path)]
    test = tweets(folder / "SemEval2017-task4-test.subtask-A.english.txt")
    return tuple([row for row in rows if row["label"] != LABELS[1]] for rows in (train, test))


def opinions(data: Path) -> tuple[list[Row], list[Row]]:
    """Return tweets that take a side and windows of labelled reviews, and others to test on.

    Tweets lose names, links and signs of their own, which a guide would have a model write.
    """
    parts = zip(sentiment(data), reviews(data, "train", most=2), strict=True)
    train, test = ([*map(plain, first), *second] for first, second in parts)
    return [row for row in train if row["text"]], [row for row in test if row["text"]]


def plain(row: Row) -> Row:
    """Return a tweet as plain words."""
    text = re.sub(r"@user|http|#", "", row["text"]).encode("ascii", "ignore").decode()
    return row | {"text": " ".join(text.split())}


def tweets(path: Path) -> Iterator[Row]:
    for line in path.read_text(encoding="utf-8").split("\n"):
        _, label, text, *_ = [*line.split("\t"), "", ""]
        if label in LABELS and text.strip():
            yield {"text": " " + cleaned(text), "label": label}


def cleaned(text: str) -> str:
    """Return a tweet with its escapes undone, its links and names of users replaced."""
    text = re.sub(r"\\u([0-9a-fA-F]{4})", lambda found: chr(int(found[1], 16)), text.strip())
    text = text[1:-1] if len(text) > 1 and text[0] == text[-1] == '"' else text
    text = html.unescape(text.replace('""', '"').replace('\\"', '"').replace("\\'", "'"))
    text = re.sub(r"@\w+", "@user", re.sub(r"https?://\S+", "http", text))
    return re.sub(r"\s+", " ", text).encode("utf-8", "ignore").decode()


def tense(
    data: Path, *, each: int = 2500, sources: Sequence[str] = SOURCES, fewest: int = 8
) -> tuple[list[Row], list[Row]]:
    """Return windows of documents, and windows of other documents to test on."""
    draw = random.Random(0)
    parts: tuple[list[Row], list[Row]] = ([], [])
    for source in sources:
        remaining = {
            (label, part): (each, each // 8)[part]
            for label in ("past", "present")
            for part in (0, 1)
        }
        for number, text in enumerate(documents(data / f"{source}.jsonl.xz")):
            part = int(number % 9 == 0)
            for row in windows(text, draw, fewest):
                if remaining[row["label"], part]:
                    remaining[row["label"], part] -= 1
                    parts[part].append(row)
            if not any(remaining.values()):
                break
    return parts


def tense_words(data: Path) -> tuple[list[Row], ...]:
    """Return windows as `tense` has them, without the auxiliary verbs that labelled them.

    A guide that reads those learns nothing else, and a text has room for few of them.
    """
    verbs = set().union(*VERBS.values())

    def without(row: Row) -> Row:
        words = (word for word in row["text"].split() if word.strip(ENDS).lower() not in verbs)
        return row | {"text": " " + " ".join(words)}

    return tuple([without(row) for row in rows] for rows in tense(data, each=5000))


def source(
    data: Path, *, each: int = 4000, sources: Sequence[str] = SOURCES, fewest: int = 20
) -> tuple[list[Row], list[Row]]:
    """Return windows of articles, books and reviews by where they are from, and others to test."""
    draw = random.Random(0)
    parts: tuple[list[Row], list[Row]] = ([], [])
    for name, label in zip(sources, KINDS, strict=True):
        remaining = [each, each // 8]
        for number, text in enumerate(documents(data / f"{name}.jsonl.xz")):
            words, part = text.replace("<br />", " ")[:20000].split(), int(number % 9 == 0)
            for _ in range(min(3, len(words) // 40, remaining[part])):
                start = draw.randrange(max(1, len(words) - fewest))
                window = " ".join(words[start : start + draw.randint(fewest, 60)])
                parts[part].append({"text": " " + window, "label": label})
                remaining[part] -= 1
            if not any(remaining):
                break
    return parts


def sources(data: Path) -> tuple[list[Row], list[Row]]:
    """Return windows as the guide's, of other documents."""
    return source(data, sources=OTHER_SOURCES)


def documents(path: Path) -> Iterator[str]:
    """Yield the texts of a compressed file."""
    with lzma.open(path, "rb") as lines:
        for line in parse_jsonl(lines, source=str(path)):
            yield line.value["text"]


def windows(text: str, draw: random.Random, fewest: int, most: int = 6) -> Iterator[Row]:
    """Yield a few windows of a text whose auxiliary verbs are all of one tense."""
    words = text[:20000].split()
    for _ in range(min(2 * most, len(words) // 40)):
        start = draw.randrange(len(words))
        window = words[start : start + draw.randint(fewest, 40)]
        past, present = count_verbs(" ".join(window)).values()
        if max(past, present) >= 2 and not min(past, present):
            yield {"text": " " + " ".join(window), "label": "past" if past else "present"}


def judge(data: Path, *, each: int = 2000) -> tuple[list[Row], list[Row]]:
    """Return sentences of SST-2 and of Yelp, and those of both tests."""
    folder, draw = data / "sentiment", random.Random(0)
    train, test = ([*sst2(folder / "sst2" / f"{part}.tsv")] for part in ("train", "test"))
    for part, rows, count in (("dev", train, each), ("test", test, 1000)):
        for number, label in enumerate((LABELS[0], LABELS[2])):
            lines = (folder / "yelp" / f"sentiment.{part}.{number}").read_text().split("\n")
            texts = draw.sample(sorted({line for line in lines if line.strip()}), count)
            rows += [{"text": text, "label": label, "source": "yelp"} for text in texts]
    return train, test


def reviews(
    data: Path, name: str = "test", *, most: int = 3, fewest: int = 20
) -> tuple[list[Row], list[Row]]:
    """Return windows of up to 60 words of labelled reviews; one review of ten is to test on."""
    draw, parts = random.Random(0), ([], [])
    path = data / f"imdb-labelled-{name}.jsonl.xz"
    with lzma.open(path, "rb") as lines:
        for number, line in enumerate(parse_jsonl(lines, source=str(path))):
            words = line.value["text"].replace("<br />", " ").split()
            label = SIDES[str(line.value["label"])]
            for _ in range(most):
                start = draw.randrange(max(1, len(words) - fewest))
                text = " ".join(words[start : start + draw.randint(fewest, 60)])
                parts[number % 10 == 0].append({"text": text, "label": label})
    return parts


def tenses(data: Path) -> tuple[list[Row], list[Row]]:
    """Return windows as the guide's, of other documents."""
    return tense(data, each=5000, sources=OTHER_SOURCES)


def sst2(path: Path) -> Iterator[Row]:
    for line in path.read_text(encoding="utf-8").split("\n"):
        text, _, number = line.rpartition("\t")
        if text:
            yield {"text": text, "label": LABELS[2 * int(number)], "source": "sst2"}


SETTINGS = {
    "sentiment": GuideConfig(
        D=96, epochs=3, batch_size=128, lr=1e-3, dropout=0.2, eps=1.0, lam=500.0
    ),
    "tense": GuideConfig(D=64, epochs=3, batch_size=128, lr=1e-3, eps=1.0, lam=200.0),
    "source": GuideConfig(D=32, init=0.18, epochs=6, batch_size=64, lr=1e-2, eps=1.0, lam=200.0),
    "judge": GuideConfig(epochs=1, batch_size=32, lr=1e-4, max_tokens=48, blur=0.0, smoothing=0.0),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    kinds = parser.add_subparsers(metavar="KIND", required=True)
    for kind in SETTINGS:
        add_training(kinds.add_parser(kind, help=ABOUT[kind].partition(",")[0]), kind)
    judges = {"reviews": "a second judge", "tenses": "of tenses", "sources": "of sources"}
    for kind, about in judges.items():
        add_judge(kinds.add_parser(kind, help=about), kind)
    for kind in FILES:
        add_judge(kinds.add_parser(kind, help="labelled files alone"), kind)
    add_cost(kinds.add_parser("cost", help="time of a guided call against an unguided one"))
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    try:
        given.run(given)
    except ValueError as error:
        parser.error(str(error))


def add_training(command: argparse.ArgumentParser, kind: str) -> None:
    command.set_defaults(run=make, kind=kind)
    command.add_argument("--data", type=Path, required=True)
    command.add_argument("--out", type=Path, required=True, help="new folder")
    command.add_argument("--tokenizer", help="of the model to steer")
    command.add_argument("--words", help="model whose word embeddings a new guide begins with")
    command.add_argument("--threads", type=int, default=2)


def make(given: argparse.Namespace) -> None:
    """Write the labelled files, train a classifier on them, and print its accuracy."""
    kinds = {"sentiment": sentiment, "tense": tense, "source": source, "judge": judge}
    rows = kinds[given.kind](given.data)
    paths = write_rows(given.out, rows)
    start = minilm_folder() if given.kind == "judge" else None
    report = train_guide(
        paths[:1],
        test=paths[1],
        out=given.out,
        tokenizer=None if start else given.tokenizer,
        start=start,
        words=given.words,
        config=SETTINGS[given.kind],
        about=ABOUT[given.kind],
        is_shown=True,
    )
    print(report)
    named = sorted({row["source"] for row in rows[1] if "source" in row})
    known = {name: accuracy(given.out, rows[1], name) for name in named}
    for name, share in known.items():
        print(f"  {name}: {100 * share:.1f} %")
    if known:
        path = given.out / "config.json"
        write_json(path, read_json(path) | {"guide_accuracy": known})


WAYS: dict[str, dict[str, Any]] = {
    "none": {},
    "logits": {"gradient": "logits"},
    "words": {"gradient": "words"},
    "words, t/T 0.3 to 1": {"gradient": "words", "band": (0.3, 1.0)},
    "words, t/T 0.15 to 0.6": {"gradient": "words", "band": (0.15, 0.6)},
}
"""What is timed, by name: options of `SSDLM.generate`."""


JUDGES = {
    "reviews": (reviews, ()),
    "tenses": (tenses, sorted(set().union(*VERBS.values()))),
    "sources": (sources, ()),
}
"""Judges over words: their texts, and the words that they do not see."""
FILES = {
    "opinions": opinions,
    "tense-words": tense_words,
    "human": partial(reviews, most=1, fewest=55),
    "human-tense": partial(tense, each=1600, sources=OTHER_SOURCES, fewest=38),
    "human-source": partial(source, each=4800, sources=OTHER_SOURCES, fewest=55),
}
"""What is written as labelled files alone."""


def add_judge(command: argparse.ArgumentParser, kind: str) -> None:
    command.set_defaults(run=make_judge, kind=kind)
    command.add_argument("--data", type=Path, required=True)
    command.add_argument("--out", type=Path, required=True, help="new folder")
    command.add_argument("--threads", type=int, default=2)


def make_judge(given: argparse.Namespace) -> None:
    """Write the labelled files, train a judge on them if it is for one, and print its accuracy."""
    if given.kind in FILES:
        print(*write_rows(given.out, FILES[given.kind](given.data)))
        return
    rows, without = JUDGES[given.kind]
    train, test = write_rows(given.out, rows(given.data))
    print(train_judge([train], test=test, out=given.out, without=without, is_shown=True))
    linear = given.out.with_name(f"{given.out.name}-linear")
    print(train_judge([train], test=test, out=linear, without=without, is_linear=True))


def write_rows(out: Path, parts: Sequence[list[Row]]) -> list[Path]:
    """Write texts to train and to test on beside a folder; return the files."""
    out.parent.mkdir(parents=True, exist_ok=True)
    paths = [out.with_name(f"{out.name}.{part}.jsonl") for part in ("train", "test")]
    for path, some in zip(paths, parts, strict=True):
        write_jsonl(path, some)
    return paths


def add_cost(command: argparse.ArgumentParser) -> None:
    command.set_defaults(run=cost)
    command.add_argument("--model", required=True)
    command.add_argument("--control", nargs="+", default=["sentiment=positive"])
    command.add_argument("--rows", type=int, default=4)
    command.add_argument("--length", type=int, default=25)
    command.add_argument("--rounds", type=int, default=5)
    command.add_argument("--T", type=int)
    command.add_argument("--device", default="auto")
    command.add_argument("--threads", type=int, default=2)


def cost(given: argparse.Namespace) -> None:
    """Print milliseconds a call for each way, all ways in turn in every round; the quickest."""
    model = SSDLM.from_pretrained(given.model, device=given.device)
    fixed: dict[str, Any] = {"length": given.length} | ({"T": given.T} if given.T else {})
    guides = [load_guide(text, device=str(model.denoiser.device)) for text in given.control]
    # On a CPU the process's own seconds: others may be at work beside it.
    clock = time.process_time if model.denoiser.device.type == "cpu" else time.perf_counter
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(given.rounds + 1):  # the first round warms up
        for way, options in WAYS.items():
            steering = {"control": guides} if options else {}
            began = clock()
            texts = model.generate(
                ["The book"], num_samples=given.rows, seed=number, **fixed, **steering, **options
            )
            if number:
                blocks = -(-given.length // model.options.B[-1])
                calls = texts[0].calls * blocks * given.rows
                times[way].append(1000 * (clock() - began) / calls)
    found = {way: min(some) for way, some in times.items()}
    print(f"| {' + '.join(given.control)} | ms a row and call | against none |\n|---|---:|---:|")
    for way, value in found.items():
        print(f"| {way} | {value:.2f} | {value / found['none']:.2f} |")
    setting = {"model": given.model, "rows": given.rows, "device": str(model.denoiser.device)}
    print(
        json.dumps(
            {"ms": found, "spread": {w: [min(t), max(t)] for w, t in times.items()}} | setting
        )
    )


def accuracy(folder: Path, rows: list[Row], source: str) -> float:
    """Return the share of right labels on one source's texts."""
    classifier, some = (
        load_text_classifier(folder),
        [row for row in rows if row["source"] == source],
    )
    guesses = classifier.log_probs([row["text"] for row in some]).argmax(-1).tolist()
    pairs = zip(some, guesses, strict=True)
    return sum(row["label"] == classifier.labels[guess] for row, guess in pairs) / len(some)


if __name__ == "__main__":
    main()
