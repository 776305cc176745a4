"""The scripts of bench/ and recipes/ can be imported: they follow the package when a name moves."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = sorted(
    str(p.relative_to(ROOT))
    for folder in ("bench", "recipes")
    for p in (ROOT / folder).rglob("*.py")
)
IMPORT_ALL = """
import runpy, sys, traceback
from pathlib import Path
failed = []
for script in sys.argv[1:]:
    sys.path.insert(0, str(Path(script).parent))
    before = set(sys.modules)
    try:
        runpy.run_path(script, run_name="imported")
    except ModuleNotFoundError as error:
        if error.name.partition(".")[0] == "batuta":
            failed.append(f"{script}: {error}")  # another package may be absent here
    except ImportError as error:
        failed.append(f"{script}: {error}")
    finally:
        sys.path.remove(str(Path(script).parent))
        for name in set(sys.modules) - before:  # `measure` is another module in another recipe
            if str(getattr(sys.modules[name], "__file__", "")).startswith(str(Path.cwd() / "recipes")):
                del sys.modules[name]
print("\\n".join(failed))
"""


def imports(*scripts):
    """What each of them said that cannot be imported."""
    done = subprocess.run([sys.executable, "-c", IMPORT_ALL, *scripts], cwd=ROOT, capture_output=True, text=True,
                          timeout=240, check=False)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.mark.slow
def test_each_script_can_be_imported():
    assert len(SCRIPTS) > 20
    assert imports(*SCRIPTS) == ""


@pytest.mark.parametrize(
    "line", ["from batuta.core import NoSuchName", "import batuta.no_such_module"]
)
def test_one_that_lags_behind_is_found(tmp_path, line):
    script = tmp_path / "old.py"
    script.write_text(line + "\n", encoding="utf-8")
    assert str(script) in imports(str(script))
