"""English sentences from the documentation strings of Python and of the installed packages.

Text that any machine with this project installed already has: enough prose to distil and to calibrate on without a
download. Files are parsed, never imported. The same files give the same sentences in the same order.
"""

from __future__ import annotations

import ast
import hashlib
import inspect
import sys
import sysconfig
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from calibration_data.prose import sentences_of

STANDARD_LIBRARY = "python"
"""Name under which the standard library's sentences are reported."""

_TOPICS = Path("pydoc_data", "topics.py")
_SKIPPED_FOLDERS = frozenset(
    {"test", "tests", "testing", "site-packages", "dist-packages", "__pycache__", "idlelib", "lib2to3"}
)
# Very large files are tables and machine-written code: slow to parse and poor in prose.
_LARGEST_FILE_BYTES = 300_000


@dataclass(frozen=True, kw_only=True, slots=True)
class DocstringSentences:
    """Sentences and where they came from."""

    sentences: list[str]
    """Distinct sentences in the order of their hashes, which mixes packages."""
    packages: dict[str, int]
    """Sentences per package, the most productive first."""
    files: int
    """Files that were read."""
    unreadable: int
    """Files that were left out because they are no valid Python or cannot be read."""

    @property
    def sha256(self) -> str:
        """Hash of the sentences in their order."""
        return hashlib.sha256("\n".join(self.sentences).encode()).hexdigest()


def installed_roots() -> dict[str, Path]:
    """Folders of everything importable by name: the standard library as a whole, and each installed package."""
    paths = sysconfig.get_paths()
    roots = {STANDARD_LIBRARY: Path(paths["stdlib"])}
    for site in sorted({Path(paths["purelib"]), Path(paths["platlib"])}):
        if site.is_dir():
            roots |= {
                entry.name: entry for entry in sorted(site.iterdir()) if entry.is_dir() and entry.name.isidentifier()
            }
    return roots


def collect_sentences(roots: dict[str, Path] | None = None, *, limit: int | None = None) -> DocstringSentences:
    """Distinct English sentences of 30 to 300 characters.

    Args:
        roots: folder per package name; by default everything installed.
        limit: stop reading files once so many are found, and return exactly so many. Files are taken in the order of
            their names' hashes, so a limited collection is mixed as well.

    Raises:
        ValueError: a limit below 1, or no sentence found.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit is {limit}; expected at least 1")
    roots = installed_roots() if roots is None else roots
    owner: dict[str, str] = {}
    files = unreadable = 0
    for package, file in _files(roots):
        if limit is not None and len(owner) >= limit:
            break
        try:
            texts = list(_documentation(file))
        except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):
            unreadable += 1
            continue
        files += 1
        for text in texts:
            for sentence in sentences_of(text):
                owner.setdefault(sentence, package)
    if not owner:
        raise ValueError(f"no documentation sentence in {', '.join(map(str, roots.values())) or 'no folder'}")
    sentences = sorted(owner, key=lambda sentence: hashlib.sha256(sentence.encode()).digest())[:limit]
    packages = Counter(owner[sentence] for sentence in sentences)
    return DocstringSentences(
        sentences=sentences,
        packages=dict(sorted(packages.items(), key=lambda entry: (-entry[1], entry[0]))),
        files=files,
        unreadable=unreadable,
    )


def _files(roots: dict[str, Path]) -> list[tuple[str, Path]]:
    """Package and path of every Python file, the topics of the language first, the others by the hash of their names."""
    keyed = []
    for package, root in roots.items():
        for file in _python_files(root):
            name = file.relative_to(root).as_posix()
            first = name == _TOPICS.as_posix()
            keyed.append((not first, hashlib.sha256(f"{package}/{name}".encode()).digest(), package, file))
    return [(package, file) for _, _, package, file in sorted(keyed)]


def _python_files(folder: Path) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.is_symlink():
            continue
        if entry.is_dir():
            if entry.name not in _SKIPPED_FOLDERS:
                yield from _python_files(entry)
        elif entry.suffix == ".py" and not entry.name.startswith("test_"):
            yield entry


def _documentation(file: Path) -> Iterator[str]:
    """Documentation strings of a file; of the language's topics the values of the table."""
    if file.stat().st_size > _LARGEST_FILE_BYTES and file.name != _TOPICS.name:
        return
    source = file.read_bytes()
    if b'"""' not in source and b"'''" not in source and file.name != _TOPICS.name:
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # odd escapes in other people's strings
        tree = ast.parse(source)
    if file.parts[-2:] == _TOPICS.parts:
        yield from _long_strings(tree)
    yield from _docstrings(tree.body)


def _docstrings(body: Sequence[ast.stmt]) -> Iterator[str]:
    """Docstrings of a block and of the classes and functions directly in it; bodies of functions are not searched."""
    match body[:1]:
        case [ast.Expr(value=ast.Constant(value=str(text)))]:
            yield inspect.cleandoc(text)
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _docstrings(statement.body)
        elif isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _docstrings(statement.body[:1])


def _long_strings(tree: ast.AST) -> Iterable[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
            yield inspect.cleandoc(node.value)


def main() -> None:
    """Print how many sentences this environment holds: ``python -m calibration_data.docstrings``."""
    found = collect_sentences()
    lines = [f"{len(found.sentences)} sentences from {found.files} files ({found.unreadable} unreadable)"]
    lines += [f"{count:7d} {package}" for package, count in found.packages.items()]
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
