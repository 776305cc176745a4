"""A name that nobody has: the nearest one, or all there are."""

from batuta.core.suggestions import find_similar, suggest_names


def test_the_nearest_name_is_meant_whatever_its_case():
    names = ["best-single", "ultra", "moa-8"]
    assert suggest_names("utlra", names) == "did you mean ultra?"
    assert suggest_names("ULTRA", names) == "did you mean ultra?"
    assert find_similar("best_single", names) == "best-single"


def test_where_none_is_near_all_are_listed_once():
    assert suggest_names("opera", ["b", "a", "b"]) == "choose among: b, a"
    assert suggest_names("opera", []) == "there are none"
    assert find_similar("nobody", ["oboe", "piano"]) is None
