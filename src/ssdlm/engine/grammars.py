"""What a request's grammar needs: a schema's file, and a tokenizer that joins its tokens.

options -> [grammars] -> plain
"""

from __future__ import annotations

import json

from ssdlm.engine.requests import Request
from ssdlm.storage.files import named_path, parse_object, read_whole
from ssdlm.tokenizer import Tokenizer
from ssdlm.values import shorten


def schema_text(given: str) -> str:
    """Return a JSON schema's text: what was given, or what the file of this name has in it."""
    where = f"json_schema={shorten(given)}"
    if given.lstrip().startswith("{"):
        raw = given.encode(errors="surrogatepass")
    else:
        try:
            raw = read_whole(named_path(given, "json_schema"))
        except OSError as error:
            raise ValueError(f"{where} cannot be read ({error.strerror}); give a file") from None
    return json.dumps(parse_object(raw, where=where, remedy="correct it"))


def check_joins(tokenizer: Tokenizer, request: Request, name: str) -> None:
    """Raise where a text is not the bytes of its tokens, which is what a grammar reads."""
    if tokenizer.joining == "never":
        raise ValueError(
            f"{name} needs a tokenizer whose text is what its tokens spell, one after another, as "
            "a byte-level BPE; this one's decoder rewrites it"
        )
    if tokenizer.joining == "after a text" and not request.context:
        raise ValueError(
            f"{name} needs a prompt, since this tokenizer drops the first space of a text; give one"
        )
