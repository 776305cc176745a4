"""Patterns by which an answer calls an option correct or wrong, or doubts that it is.

The languages are German, French, Spanish, Italian, Portuguese, Russian, Chinese and Japanese.
"""

from __future__ import annotations

import re
import unicodedata

from batuta.lab.tasks.graders.statements import LETTER

_RIGHT = (
    (
        r"ist\s+(?:(?:eindeutig|also|somit|damit)\s+)?(?:(?:die|das)\s+)?"
        r"(?:richtige?|korrekte?)\b(?:\s+(?:antwort|lösung|option|wahl)\b)?"
    ),
    r"stimmt\b(?!\s+nicht)",
    (
        r"est\s+(?:(?:donc|bien)\s+)?(?:correcte?|juste|exacte?|vraie?"
        r"|la\s+(?:bonne|seule)(?:\s+(?:réponse|option))?(?:\s+correcte)?|la\s+réponse\s+(?:correcte|exacte))\b"
    ),
    r"es\s+(?:la\s+)?(?:(?:respuesta|opción|alternativa)\s+)?correct[oa]\b",
    (
        r"è\s+(?:quindi\s+)?(?:quella\s+)?(?:la\s+)?(?:(?:risposta|opzione)\s+)?"
        r"(?:corrett[oa]|giust[oa]|esatt[oa])\b"
    ),
    r"(?:é|está)\s+(?:a\s+)?(?:(?:resposta|opção|alternativa)\s+)?(?:corret[oa]|cert[oa])\b",
    (
        r"(?:[—–-]\s*|является\s+|это\s+)?(?:верно|правильно|вер(?:ен|на)|правил(?:ен|ьна)"
        r"|(?:правильн|верн)(?:ый|ая|ым|ой)\s+(?:ответ(?:ом)?|вариант(?:ом)?))\b"
    ),
    r"(?:(?:选项|選項|[项項])\s*+)?[是为為]?(?:正确|正確)(?!的?(?:前提|条件|條件|可能|概率))(?:的|答案|选项|選項|的答案|的选项)?(?![性率不地]|\w*[吗嗎么])",
    r"(?:(?:选项|選項|[项項])\s*+)?[是为為]?[对對](?=的?(?:[\s,.;!]|\Z))",
    r"[がは](?:正しい|正解|正答)(?!\w*(?:ない|ません|ですか|しょうか|なら|すると|場合))",
)
RIGHT_LETTER = re.compile(
    unicodedata.normalize("NFKC", rf"({LETTER})[)\]\"'»”]*+\s*+(?:{'|'.join(_RIGHT)})"),
    re.IGNORECASE,
)
DOUBT = re.compile(
    unicodedata.normalize(
        "NFKC",
        r"\b(?:nicht|kein\w*|weder|noch|oder|wenn|falls|ob|vielleicht|möglicherweise|dass"
        r"|pas|non|ni|ou|si|peut-être|que|no|nunca|quizás?|acaso|se|né|forse|che|não|nem|talvez|caso"
        r"|не|ни|или|если|ли|возможно|может|что)\b"
        r"|不|非|如果|假如|假设|若|或|是否|可能|也许|もし|たぶん",
    ),
    re.IGNORECASE,
)
"""Words before the letter that make the statement a condition, a guess, a denial or a list."""
CONDITION_AFTER = re.compile(
    unicodedata.normalize(
        "NFKC",
        r"(?:\A|[,;])\s*+(?:(?:nur|aber|sólo|solo|solamente|seulement|uniquement|soltanto|apenas|somente|только)\s+)?"
        r"(?:wenn|falls|sofern|nur|si|siempre|à\s+condition|dans\s+le\s+cas|se|purché|caso|desde\s+que"
        r"|если|при|лишь|тогда)\b"
        r"|如果|假如|除非|前提|[只当當].{0,12}(?:时|時|才)",
    ),
    re.IGNORECASE,
)
"""Words after the statement that make it a condition."""
OTHERS = re.compile(
    unicodedata.normalize(
        "NFKC",
        r"\b(?:man\s+könnte|könnte\s+man|manche|einige|viele|on\s+pourrait|certains|beaucoup|plusieurs"
        r"|algunos|muchos|podría|alcuni|molti|qualcuno|potrebbe|alguns|muitos|poderia|некоторые|многие|кто-то)\b"
        r"|有人|有些人|很多人|许多人|人もい|という人",
    ),
    re.IGNORECASE,
)
"""Words that attribute the statement to other people."""
WRONG_AFTER = re.compile(
    unicodedata.normalize(
        "NFKC",
        r"\s*+(?:ist|sind|est|sont|es|son|è|sono|é|são|—|–|-)?\s*+"
        r"(?:falsch|fau(?:x|sses?)|incorrect\w*|inexacte?s?|errón\w+|sbagliat\w|errat\w|errad\w"
        r"|неверн\w+|неправильн\w+)",
    ),
    re.IGNORECASE,
)
"""Words after another letter that say it is wrong."""
QUESTION = re.compile(r"[^.!?؟\n]*[?؟]")
CLAUSE_END = re.compile("[.,;:!?\n،؛؟।]")
SENTENCE_END = re.compile(r"[.!?\n؟।。]")
