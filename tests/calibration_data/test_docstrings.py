"""Documentation sentences are collected deterministically, without importing and without stumbling."""

from __future__ import annotations

import sysconfig
from pathlib import Path

import pytest

from calibration_data.docstrings import STANDARD_LIBRARY, collect_sentences, installed_roots

MODULE = '''"""The first sentence of this module is a plain one."""
raise RuntimeError("a file that is imported fails here")

def function():
    """This function does what the user of it has asked for."""
    text = """This string is not documentation and it is not taken."""
    def inner():
        """This is inside of the body of a function and is not taken."""

class Class:
    """The class is what the module is about, and it is small."""
    async def method(self):
        """The method is a part of the class and has a docstring."""
'''


@pytest.fixture
def package(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    (folder / "tests").mkdir(parents=True)
    (folder / "module.py").write_text(MODULE)
    (folder / "copy.py").write_text(MODULE)
    (folder / "broken.py").write_text('"""This docstring is in a file that has a syntax error."""\ndef (:')
    (folder / "binary.py").write_bytes(b'"""\xff\xfe not utf-8 and no declaration of an encoding"""')
    (folder / "tests" / "test_it.py").write_text('"""This docstring is in a test and so it is not to be taken."""')
    (folder / "pydoc_data").mkdir()
    (folder / "pydoc_data" / "topics.py").write_text(
        "topics = {'a': 'Topics of the language are text\\nin a table of strings.\\n'}"
    )
    return folder


def test_docstrings_of_modules_classes_and_functions_are_collected_once(package: Path) -> None:
    found = collect_sentences({"mine": package})
    assert set(found.sentences) == {
        "The first sentence of this module is a plain one.",
        "This function does what the user of it has asked for.",
        "The class is what the module is about, and it is small.",
        "The method is a part of the class and has a docstring.",
        "Topics of the language are text in a table of strings.",
    }
    assert (found.packages, found.files, found.unreadable) == ({"mine": 5}, 3, 2)


def test_the_order_is_the_same_every_time_and_not_that_of_the_files(package: Path) -> None:
    first, second = (collect_sentences({"mine": package}) for _ in range(2))
    assert first.sentences == second.sentences
    assert first.sha256 == second.sha256
    assert first.sentences != sorted(first.sentences)


def test_a_limit_returns_exactly_so_many(package: Path) -> None:
    assert len(collect_sentences({"mine": package}, limit=3).sentences) == 3
    with pytest.raises(ValueError, match="limit is 0"):
        collect_sentences({"mine": package}, limit=0)


def test_folders_without_documentation_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no documentation sentence in"):
        collect_sentences({"empty": tmp_path})


def test_this_environment_has_prose_of_many_packages() -> None:
    roots = installed_roots()
    assert roots[STANDARD_LIBRARY] == Path(sysconfig.get_paths()["stdlib"])
    assert "numpy" in roots
    found = collect_sentences({name: roots[name] for name in (STANDARD_LIBRARY, "numpy")}, limit=2000)
    assert len(found.sentences) == 2000
    assert set(found.packages) == {STANDARD_LIBRARY, "numpy"}
    assert all(30 <= len(sentence) <= 300 for sentence in found.sentences)
