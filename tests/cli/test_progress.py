"""How a long work tells how far it is."""

from batuta.cli.progress import open_progress_bars


def test_a_log_has_lines_and_no_bar_behind_them(capsys):
    with open_progress_bars() as bars:
        task = bars.add_task("asking", total=10, status="")
        for _ in range(10):
            bars.update(task, advance=1)
    told = capsys.readouterr().err.splitlines()
    assert [line.split()[:2] for line in told] == [["asking", f"{n}/10"] for n in range(1, 11)]
