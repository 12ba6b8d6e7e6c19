"""The guides that were named when the server started; a request can name no others.

A request says `sentiment=positive:5`. Here the name is looked up, and the engine gets a guide: no
path and no name of the Hub comes from a client.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from ssdlm.guidance import ClassifierGuide, classifier_guide, parse_control
from ssdlm.guidance.fitting import usual_lam
from ssdlm.guidance.grammar import (
    config_file,
    find_guide,
    label_index,
    split_labels,
    stored_labels,
)
from ssdlm.options import GenerateOptions
from ssdlm.storage.files import read_json
from ssdlm.values import quote

MOST_KEPT = 256
"""Guides that are kept, so that texts that are steered alike go together."""

logger = logging.getLogger("ssdlm.serve")


class Guides:
    """Classifiers by the names that clients use; each is loaded once."""

    def __init__(self, folders: Mapping[str, str], device: str = "cpu") -> None:
        self.folders, self.device = dict(folders), device
        """For each name the guide that it means: a folder, or one that is built in."""
        configs = {name: config_of(folder) for name, folder in folders.items()}
        self.labels = {name: config.labels for name, config in configs.items()}
        self.guide_lams = {name: config.guide_lam for name, config in configs.items()}
        self.loaded: dict[str, ClassifierGuide] = {}
        self.kept: OrderedDict[tuple[object, ...], ClassifierGuide] = OrderedDict()

    def load(self, name: str) -> ClassifierGuide:
        """Return a guide with any label, loaded once; call it in the engine's thread."""
        if name not in self.loaded:
            first = self.labels[name][0]
            self.loaded[name] = classifier_guide(self.folders[name], first, device=self.device)
        return self.loaded[name]

    def load_next(self) -> bool:
        """Load a guide that nobody has asked for yet; return whether there was one."""
        name = next((name for name in self.folders if name not in self.loaded), None)
        if name is None:
            return False
        try:
            self.load(name)
        except Exception as error:  # the server goes on without it, whatever it is
            logger.error("guide %s is left out: %s", name, error)
            for about in (self.folders, self.labels, self.guide_lams):
                del about[name]
        return True

    def check(self, controls: Sequence[object]) -> None:
        """Raise on a control that is not a text, or names a guide or label that is not here."""
        for control in controls:
            if not isinstance(control, str):
                raise ValueError(f"control={quote(control)} is no text; write sentiment=positive")
            spec = parse_control(control)
            self.check_name(spec.name)
            labels = dict(enumerate(self.labels[spec.name]))
            label_index(labels, spec.label, spec.name)

    def check_name(self, name: str) -> None:
        """Raise on a guide that is not here."""
        if name not in self.folders:
            listed = ", ".join(self.folders) or "none"
            raise ValueError(
                f"there is no guide {quote(name)} on this server, which has {listed}; use one of "
                "these"
            )

    def usual_lams(self, gradient: str) -> dict[str, float]:
        """Return each guide's weight where none is given."""
        return {
            name: usual_lam(guide_lam, gradient, name)
            for name, guide_lam in self.guide_lams.items()
        }

    def fitted(self, options: GenerateOptions) -> GenerateOptions:
        """Return options with guides in place of their names, which know what is theirs."""
        if not options.control:
            return options
        guides = tuple(self.find(one, options) for one in options.control)
        return options.replaced({"control": guides}).as_own("sees", "special_tokens")

    def find(self, control: str, options: GenerateOptions) -> ClassifierGuide:
        """Return the guide that a checked control means, the same one for the same words."""
        spec = parse_control(control)
        key = spec, options.sees, options.special_tokens
        if key not in self.kept:
            guide = self.load(spec.name)
            self.kept[key] = replace(
                guide,
                label=label_index(guide.classifier.config.id2label, spec.label, spec.name),
                avoid=spec.avoid,
                lam=spec.lam,
                sees=options.sees,
                has_special_tokens=options.special_tokens,
                name=spec.name,
            )
            if len(self.kept) > MOST_KEPT:
                self.kept.popitem(last=False)
        self.kept.move_to_end(key)
        return self.kept[key]


class GuideConfig(NamedTuple):
    """What a classifier's config.json tells of it."""

    labels: list[str]
    guide_lam: Any


def config_of(folder: str) -> GuideConfig:
    """Return what is known of a classifier without loading it."""
    home, _ = split_labels(find_guide(folder))
    config = read_json(config_file(home))
    labels = stored_labels(folder)
    if not labels:
        raise ValueError(f"{folder} names no labels in its config.json; give a classifier")
    return GuideConfig(list(labels.values()), config.get("guide_lam"))


def parse_guides(text: str) -> dict[str, str]:
    """Return guides by name from `sentiment,tense,NAME=FOLDER`; an empty text names none."""
    folders: dict[str, str] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        name, equals, folder = (word.strip() for word in part.partition("="))
        if not name or (equals and not folder) or name in folders:
            raise ValueError(f"guides={quote(text)} is not NAME or NAME=FOLDER with commas between")
        folders[name] = folder or name
    return folders
