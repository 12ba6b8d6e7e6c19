"""Thirty context-free grammars of many kinds, in Lark's notation and in GBNF.  -> grammars"""

from __future__ import annotations

LARK = {
    "arithmetic": r"""
        ?start: sum
        ?sum: product | sum "+" product -> add | sum "-" product -> sub
        ?product: atom | product "*" atom | product "/" atom
        ?atom: NUMBER | "-" atom | NAME | "(" sum ")"
        NAME: /[a-z]/
        %import common.NUMBER""",
    "right_recursive_sums": r"""
        start: term "+" start | term
        term: /[1-9]/ | "(" start ")" """,
    "ambiguous_sums": r"""start: start "+" start | start "*" start | "n" | "(" start ")" """,
    "json": r"""
        ?start: value
        ?value: object | array | ESCAPED_STRING | SIGNED_NUMBER | "true" | "false" | "null"
        array: "[" [value ("," value)*] "]"
        object: "{" [pair ("," pair)*] "}"
        pair: ESCAPED_STRING ":" value
        %import common.ESCAPED_STRING
        %import common.SIGNED_NUMBER""",
    "json_with_spaces": r"""
        start: value
        value: object | array | STRING | NUMBER | "true" | "false" | "null"
        array: "[" (value ("," value)*)? "]"
        object: "{" (STRING ":" value ("," STRING ":" value)*)? "}"
        STRING: /"[a-z ]*"/
        NUMBER: /-?(0|[1-9][0-9]*)/
        %ignore " " """,
    "s_expressions": r"""
        start: list
        list: "(" item* ")"
        item: ATOM " "? | list
        ATOM: /[a-z+*-]+/ """,
    "lisp_with_quotes": r"""
        start: form
        form: "'" form | "(" form+ ")" | SYMBOL | NUMBER
        SYMBOL: /[a-z]+/
        %import common (NUMBER, WS_INLINE)
        %ignore WS_INLINE""",
    "sql": r"""
        start: select
        select: "SELECT "i columns " FROM "i NAME [" WHERE "i test] [" LIMIT "i INT]
        columns: "*" | NAME (", " NAME)*
        test: test " AND "i test | test " OR "i test | "(" test ")" | NAME OPERATOR value
            | NAME " IN (" select ")"
        value: INT | /'[a-z ]*'/
        OPERATOR: " = " | " < " | " > " | " <> "
        NAME: /[a-z][a-z_]{0,11}/
        %import common.INT""",
    "csv": r"""
        start: row (NEWLINE row)*
        row: field ("," field)*
        field: /[^",\r\n]*[^",\r\n]/ | /"([^"]|"")*"/ |
        NEWLINE: "\n" """,
    "ini": r"""
        start: section+
        section: "[" NAME "]\n" (NAME "=" VALUE "\n")*
        NAME: /[a-z]{1,10}/
        VALUE: /[^\n=\[\]]{1,20}/ """,
    "urls": r"""
        start: scheme "://" host [":" PORT] path ["?" query]
        scheme: "http" ["s"] | "ftp"
        host: LABEL ("." LABEL)+
        path: ("/" SEGMENT?)*
        query: pair ("&" pair)*
        pair: SEGMENT "=" SEGMENT
        LABEL: /[a-z0-9]+(-[a-z0-9]+)*/
        SEGMENT: /[A-Za-z0-9_~-]+/
        PORT: "1".."9" DIGIT~0..4
        %import common.DIGIT""",
    "nested_lists": r"""
        start: "[" [element ("," element)*] "]"
        element: /[0-9]+/ | start""",
    "html": r"""
        start: element
        element: "<p>" content "</p>" | "<b>" content "</b>" | "<ul>" item+ "</ul>" | "<br/>"
        item: "<li>" content "</li>"
        content: (TEXT | element)*
        TEXT: /[A-Za-z ,.]+/ """,
    "chess": r"""
        start: turn (" " turn)* [" " RESULT]
        turn: NUMBER ". " move [" " move]
        move: ("O-O" | "O-O-O" | PIECE? FROM? "x"? SQUARE ["=" PIECE]) ["+" | "#"]
        PIECE: "K" | "Q" | "R" | "B" | "N"
        FROM: /[a-h]/ | /[1-8]/
        SQUARE: /[a-h][1-8]/
        RESULT: "1-0" | "0-1" | "1/2-1/2"
        NUMBER: /[1-9][0-9]?/ """,
    "dates": r"""
        start: iso | spoken
        iso: YEAR "-" MONTH "-" DAY
        spoken: WEEKDAY ", " NAME " " /[12][0-9]|3[01]|[1-9]/ ", " YEAR
        YEAR: /(19|20)[0-9]{2}/
        MONTH: "0" "1".."9" | "1" "0".."2"
        DAY: /0[1-9]|[12][0-9]|3[01]/
        WEEKDAY: ("Mon" | "Tues" | "Wednes" | "Thurs" | "Fri" | "Satur" | "Sun") "day"
        NAME: "January" | "May" | "August" | "December" """,
    "function_calls": r"""
        start: call
        call: NAME "(" [argument (", " argument)*] ")"
        argument: [NAME "="] (call | STRING | NUMBER)
        NAME: /[a-z_]+/
        STRING: /"[^"\\\n]*"/
        NUMBER: /[0-9]+(\.[0-9]+)?/ """,
    "as_then_bs": r"""start: "a" start "b" | "ab" """,
    "palindromes": r"""
        start: "a" start "a" | "b" start "b" | "c" start "c" | "a" | "b" | "c" | "" """.replace(
        ' | ""', " |"
    ),
    "balanced_brackets": r"""start: ("(" start ")" | "[" start "]" | "{" start "}")* "." """,
    "mutual_recursion": r"""
        start: even
        even: "e" odd "e" | "0"
        odd: "o" even "o" | "1" """,
    "regular_by_rules": r"""
        start: "a" b | "c"
        b: "b" start | "d" start""",
    "cyclic_and_empty": r"""
        start: a
        a: b | "x" a | a a |
        b: a | "y" b "z" """,
    "indirect_left": r"""
        start: b "x" | "y"
        b: start "z" | "w" """,
    "unicode": r"""
        start: greeting ("\u3001" greeting)* "\u3002"
        greeting: "\u4f60\u597d" | "caf\u00e9" | /[\u03b1-\u03c9]+/ | "\U0001f600" """,
    "templates_of_letters": r"""
        start: "Dear " NAME ",\n\n" sentence (" " sentence)* "\n\nYours, " NAME "\n"
        sentence: /[A-Z]/ WORD (" " WORD)* ["," (" " WORD)+] ("." | "!" | "?")
        NAME: /[A-Z][a-z]+/
        %import common.WORD""",
    "programs": r"""
        start: statement+
        statement: NAME "=" expression ";" | "if" "(" expression ")" block ["else" block]
            | "while" "(" expression ")" block
        block: "{" statement* "}"
        expression: term (("+" | "-" | "<" | "==") term)*
        term: NAME | NUMBER | "(" expression ")"
        NAME: /[a-z]/
        NUMBER: /[0-9]{1,3}/
        %ignore /[ \n]/ """,
}
GBNF = {
    "gbnf_lists": r"""
        root ::= "- " item ("\n- " item)*   # a list
        item ::= [^\n*]{3,30}""",
    "gbnf_json": r"""
        root   ::= object
        object ::= "{" ws (string ":" ws value ("," ws string ":" ws value)*)? "}"
        array  ::= "[" (value ("," ws value)*)? "]"
        value  ::= object | array | string | number | "true" | "null"
        string ::= "\"" [^"\\\x00-\x1f]* "\""
        number ::= "-"? ("0" | [1-9] [0-9]{0,15}) ("." [0-9]+)?
        ws     ::= " "?""",
    "gbnf_logic": r"""
        root    ::= formula
        formula ::= atom | "~" formula | "(" formula (" & " | " v " | " -> ") formula ")"
        atom    ::= [p-s] | [A-Z] "(" [x-z] ("," [x-z]){0,2} ")" """,
    "gbnf_answers": r"""
        root ::= "Answer: " ("yes" | "no" | "I do not know, since " reason) "."
        reason ::= [a-z]+ (" " [a-z]+)+""",
}
TWINS = {
    "gbnf_lists": r"""
        start: "- " ITEM ("\n- " ITEM)*
        ITEM: /[^\n*]{3,30}/ """,
    "gbnf_json": r"""
        start: object
        object: "{" WS? (STRING ":" WS? value ("," WS? STRING ":" WS? value)*)? "}"
        array: "[" (value ("," WS? value)*)? "]"
        value: object | array | STRING | NUMBER | "true" | "null"
        STRING: /"[^"\\\x00-\x1f]*"/
        NUMBER: /-?(0|[1-9][0-9]{0,15})(\.[0-9]+)?/
        WS: " " """,
    "gbnf_logic": r"""
        start: ATOM | "~" start | "(" start (" & " | " v " | " -> ") start ")"
        ATOM: /[p-s]/ | /[A-Z]\([x-z](,[x-z]){0,2}\)/ """,
    "gbnf_answers": r"""
        start: "Answer: " ("yes" | "no" | "I do not know, since " REASON) "."
        REASON: /[a-z]+( [a-z]+)+/ """,
}
"""What the grammars in GBNF mean, for a parser that reads Lark's notation."""
GRAMMARS = LARK | GBNF
