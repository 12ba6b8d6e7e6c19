"""Regular expressions of every kind that grammars know, for letters that every tokenizer has."""

PATTERNS = [
    "",
    "a",
    "a*",
    "[ab]{3}",
    "(ab|ba)*c?",
    "(?i)ab+",
    ".*",
    ".{0,3}",
    "(?s).+",
    r"\w+( \w+)*\.",
    "a{0}b",
    "(|a|bc)(c|)",
    "^[A-C]a*$",
    "[^a]*",
    r"(a b|b a)\n?",
    "a{12}",
    "(((a|b)c|c)*|)b",
    "[A-Z][a-z]+( [a-z]+){1,3}[.!?]",
    "(the|a) (dog|cat|river)( (had|was))?",
]
