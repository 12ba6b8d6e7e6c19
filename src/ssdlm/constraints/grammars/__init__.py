"""Texts that match as a whole: a regular expression or a JSON schema, as an automaton of tokens.

pattern, schema (with schema_facts, json_strings, numerals) -> expression -> machine (characters)
-> utf8 (bytes) -> kinds (tokens) -> grammar, which compiles, and keeps what it has compiled
"""
