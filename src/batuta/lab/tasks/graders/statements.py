"""Phrases that state, hedge, deny or retract an answer, in English and other languages."""

from __future__ import annotations

import re
import unicodedata

from batuta.language.answer_extraction import DOUBTFUL

LETTER = r"(?<![A-Za-zÀ-ɏ0-9'’°])[A-Z](?![A-Za-zÀ-ɏ0-9'’+#°]|-[A-Za-z])"
"""A capital letter that stands alone, or between characters of a script without spaces."""

STATEMENT = re.compile(
    r"\b(?:answers?|ans\b\.?|choices?|selection|verdict|conclusion|options?(?!\s+\(?[A-Z]\b)"
    r"|(?:correct|right)(?=\s*:|\s+[a-z]+)|correction(?=\s*:)|final(?=\s*:))"
    r"(?![a-z])(?P<gap>[^.:=\n→⇒∴|]{0,60}?)"
    r"(?::|=|→|⇒|∴|\||\s[-–—]\s|\b(?:is|are|be|equals)\b)",
    re.IGNORECASE,
)
ANSWER_HEADING = re.compile(
    r"^[^\w\n]*(?:(?:my|the|final|correct) )*answer[^\w\n]*\n\s*", re.IGNORECASE | re.MULTILINE
)
DECLARATION = re.compile(
    r"(\b[A-Z]\b)\)?\s+is\s+(not\s+|in)?(?:the\s+)?(?:correct|right|best|answer)\b(?!\s+to\b)"
)
WEAK_STATEMENT = re.compile(
    r"\b(?:I(?:['’]d| would| will|['’]ll| shall)?\s+"
    r"(?:choose|pick|select|say|go with|answer|opt for)"
    r"|(?:it|that|this)(?:['’]s| is| must be| should be| has to be| would be)"
    r"|leav(?:es|ing)(?: (?:only|just|us with))?"
    r"|the (?:only )?(?:exception|odd one out|one left) (?:is|must be)"
    r"|by (?:the )?(?:process of )?elimination"
    r"|ans\.|so|thus|hence|therefore|select|choose|pick|consequently)(?!\w)[\s,:]*"
    r"(?:by (?:the )?(?:process of )?elimination[\s,:]*)?"
    r"(?:(?:it|that|this|the (?:only )?(?:exception|odd one out|one left))"
    r"(?:['’]s| is| must be| should be)\s+)?(?:that\s+)?",
    re.IGNORECASE,
)

_FOREIGN_NOUN = (
    "答案|答复|答曰|答え|解答|回答|正解|选项|選項|选择|選擇|答|选|選"
    "|정답|답변|답|คำตอบ|正しい(?:選択肢|答え|解答|回答|もの)"
    r"|(?<![^\W_])(?:الإجابة|الاجابة|إجابة|الجواب|جواب|پاسخ|ответ|вариант|відповідь|উত্তর|उत्तर"
    "|antwort|lösung|respuesta|réponse|reponse|risposta|resposta|odpowiedź|odpověď|odgovor|antwoord"
    "|svar|cevap|javob|válasz|vastaus|jawaban|jibu|ìdáhùn|idáhùn|idahun|àdáhùn|ànúgọ|àṣàyàn"
    r"|đáp án|απάντηση|răspuns(?:ul)?|תשובה"
    "|(?:opción|alternativa|respuesta) correcta|la correcta|richtige option|korrekte option|richtig ist"
    "|(?:option|réponse) (?:correcte|juste|exacte)|bonne option"
    "|(?:opzione|alternativa|risposta) (?:corretta|giusta|esatta)"
    "|(?:opção|alternativa|resposta) (?:correta|certa))"
)
_FOREIGN_LINK = (
    r"\s|[:=*,.\"'|ः-]|–|—|\(|ঃ|是|为|為|应为|应该|應|该|只能|选|選|项|項|最终|最終|正确|正確|は|が|은|는|가"
    "|है|হল|হলো|হচ্ছে|هي|هو|الصحيحة|الصحيح|النهائية|النهائي|صحیح|گزینه|היא|הנכונה"
    r"|\b(?:это|является|верный|правильный|ist|lautet|wäre|die|der|la|el|es|est|è|é|correcta|correcte"
    "|correct|corretta|correta|finale?|là|đúng|είναι|jest|is|er|är|este|doğru|opción|option|opzione"
    r"|opção|alternativa|letra|lettre|lettera|буква|η|επιλογή)\b"
    r"|\ba(?=\s+(?:(?:letra|opção|alternativa)\s+)?\(?(?-i:[A-Z])\b)"
)
_NOT_BUT = (
    r"(?:\b(?:nicht|no|pas|non|não|не|nie|niet)\b|不是|不)\s*(?:\b(?:die|der|la|el|es|è|é|option|opción)\b\s*)*"
    rf"\(?{LETTER}\)?[\s,，]*(?:\b(?:sondern|sino|mais|ma|bensì|mas|а|ale|maar)\b|而是|是)"
)
"""The text between a foreign "the answer is" and its letter in "not A but B"."""
FOREIGN_STATEMENT = re.compile(
    unicodedata.normalize(
        "NFKC",
        rf"(?<![不非])(?:{_FOREIGN_NOUN})(?:{_FOREIGN_LINK}){{0,12}}"
        rf"(?:{_NOT_BUT}(?:{_FOREIGN_LINK}){{0,12}})?(?={LETTER})",
    ),
    re.IGNORECASE,
)
WORD_CONTINUATION = re.compile(
    r"(?=[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7a3])"
    "(?!です|だ|で|になる|とな|と|を|が|は|か|また|项|項|是|正|或|和|与"
    "|입|이|번|예|가|로|을|를|또|와|및)"
)
"""Matches where a word of a script without spaces continues after a letter: 答えはB型."""

_DENIAL = (
    r"(?:not\b(?!\s+\(?[A-Z]\b)|wrong|incorrect|false|too|excluded|eliminated|invalid|impossible|ruled"
    r"|tempting|(?:a |the )?(?:runner-?up|close second|second[- ]best|distractor|decoy))\b"
)
DENIAL_AFTER = re.compile(
    r"[\s)\]\"']*+(?:(?:is|are|was|were|would be|seems?|looks?|can|could|must)\s+"
    rf"(?:also\s+|all\s+|both\s+)?)?{_DENIAL}"
    r"|\s*+(?:(?:是|が|は|이|가|은|는)\s*+)?(?:不|错|錯|誤|아니|아닙|ではあり|ではな|でな|じゃな|틀)|\s*नहीं|\s*নয়"
    rf"|[\s)\]\"'*_]*+[{DOUBTFUL}]"
)
LIST_DENIAL = re.compile(
    rf"(?:\W+(?:and\s+|or\s+)?[A-Z]\b)+\W*(?:is|are|were|would be)\s+(?:all\s+|both\s+)?{_DENIAL}"
)
"""The text after one letter of several that are denied together: "A, C and D are not"."""
DENIAL_BEFORE = re.compile(
    r"(?:\b(?:not|rather than|instead of|unlike|nor|than|excluding|except|without|ruling out)"
    r"|(?<!\w)(?:不是|而非|而不是|не|nicht|no|pas|non|não))\s*[(\"']?\s*(?:the\s+|option\s+)*\Z",
    re.IGNORECASE,
)
HEDGE = re.compile(
    r"\b(?:or|and|vs|versus|possibly|perhaps|maybe|also|alternatively|either|else|could|might|may|but"
    r"|oder|und|ou|et|o|y|e|или|и|أو|و|বা|या|और)\b|[/&+|?]|或|和|与|與|また|または|および|か|또는|와|과"
    r"|\A\W*\Z",
    re.IGNORECASE,
)
SURE_HEDGE = re.compile(
    r"\b(?:or|possibly|perhaps|maybe|also|alternatively|either|could|might|may|oder|или|أو|বা|या|ou)\b"
    "|或|또는|または",
    re.IGNORECASE,
)
POSSIBLE_AFTER = re.compile(
    r"\)?\s+(?:is|are|seems?|looks?)\s+(?:also\s+|just as\s+|equally\s+|as\s+)*"
    r"(?:possible|plausible|likely|right|correct|good|true)",
    re.IGNORECASE,
)
DOUBT = re.compile(
    r"\b(?:if|unless|whether|suppose|supposing|assuming|not|never|wrong|incorrect|false|worst|unlikely"
    r"|least(?=\s+\w+\s*\Z)|first(?=\s*\Z)|initial|tempting|some|others|might|could|may|neither"
    r"|one would|you would|naively)\b",
    re.IGNORECASE,
)
NEGATION_IN_GAP = re.compile(
    r"\b(?:not|cannot|never|neither|nor|unlikely|hardly|except|might|could|may|depends?)\b",
    re.IGNORECASE,
)
ALTERNATIVE = re.compile(r"\b(?:alternatively|or else|perhaps|maybe|possibly|or)\b", re.IGNORECASE)
CONDITION = re.compile(r"\b(?:if|unless|otherwise|provided|depending)\b", re.IGNORECASE)
REASON = re.compile(
    r"\b(?:because|since|as|for|due|given|which|where|while|whereas|so)\b|因为|因為|なぜ",
    re.IGNORECASE,
)
SENTENCE_END = re.compile(r"(?<!\.)[.!?](?=\s|\Z)|\n")
RETRACTION = re.compile(
    r"\b(?:wait|correction|on second thoughts?|on reflection|scratch that|sorry|I meant?|hm+|oops"
    r"|let me re\w+|(?:that|this|which) contradicts|(?:that|this|it)(?:['’]s| is| was| seems| looks)? "
    r"(?:wrong|incorrect|not right"
    r"|not correct|a mistake|an error))\b",
    re.IGNORECASE,
)
POSSIBLE_RETRACTION = re.compile(
    r"\b(?:actually|alternatively|no|instead|rather|but|however)\b(?!\s+doubt)", re.IGNORECASE
)


_DOUBTFUL_END = re.compile(rf"\S\s*+[{DOUBTFUL}]\ufe0f?[\s.!*_`]*\Z")


def ends_in_doubt(text: str) -> bool:
    """Return whether the text ends in a cross, or in an emoji that denies or doubts the answer."""
    return _DOUBTFUL_END.search(text) is not None


def first_sentence(text: str) -> str:
    """Return `text` up to the end of its first sentence or line."""
    return SENTENCE_END.split(text, maxsplit=1)[0]


def is_question(text: str) -> bool:
    """Return whether the first sentence or line of `text` ends in a question mark."""
    ended = SENTENCE_END.search(text)
    return ended is not None and ended[0] == "?"
