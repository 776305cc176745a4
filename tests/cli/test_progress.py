"""How a long work tells how far it is."""

from batuta.cli.progress import open_progress_bars


def test_a_log_has_lines_and_no_bar_behind_them(capsys):
    with open_progress_bars() as bars:
        task = bars.add_task("asking", total=10, status="")
        for _ in range(10):
            bars.update(task, advance=1)
    told = capsys.readouterr().err.splitlines()
    assert [line.split()[:2] for line in told] == [["asking", f"{n}/10"] for n in range(1, 11)]


def test_a_log_of_a_long_work_says_each_minute_how_far_it_is(capsys):
    seconds = iter(range(0, 10_000, 25))
    with open_progress_bars() as bars:
        bars.get_time = lambda: next(seconds)  # each look at the clock finds it 25 seconds later
        task = bars.add_task("asking", total=1000, status="")
        for _ in range(12):
            bars.update(task, advance=1)
    told = [line.split() for line in capsys.readouterr().err.splitlines()]
    passed = [int(words[2]) for words in told]
    assert len(told) >= 4
    assert all(
        60 <= later - sooner <= 120 for sooner, later in zip([0, *passed], passed, strict=False)
    )
