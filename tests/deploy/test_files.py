"""Files appear whole or not at all, and an error names the file."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from deploy.files import atomic_folder, atomic_path, refuse_existing, write_atomically


def test_a_write_that_fails_leaves_what_was_there_and_no_traces(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_atomically(path, "old")

    def write_half() -> None:
        with atomic_path(path) as temporary:
            temporary.write_text("half")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_half()
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]
    assert path.read_text() == "old"


def test_a_full_disk_is_told_with_the_file(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    with pytest.raises(OSError, match=r"No space left on device.*x\.json"), atomic_path(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert not list(tmp_path.iterdir())


def test_an_existing_file_is_replaced_only_with_force(tmp_path: Path) -> None:
    write_atomically(tmp_path / "x", "content")
    refuse_existing(tmp_path / "x", force=True)
    with pytest.raises(FileExistsError, match="exists; pass --force to replace it"):
        refuse_existing(tmp_path / "x", force=False)


@pytest.mark.parametrize("force", [False, True])
def test_a_place_where_no_file_can_be_is_told_before_the_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, force: bool
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(IsADirectoryError, match="is a folder; expected the name of a file"):
        refuse_existing(tmp_path, force=force)
    with pytest.raises(NotADirectoryError, match=r"x cannot be written: .*file is a file"):
        refuse_existing(tmp_path / "file" / "deeper" / "x", force=force)
    refuse_existing(tmp_path / "new" / "deeper" / "x", force=force)
    monkeypatch.setattr(os, "access", lambda path, mode: path != tmp_path)  # root may write anywhere
    with pytest.raises(PermissionError, match="is read-only"):
        refuse_existing(tmp_path / "new" / "x", force=force)


def test_a_folder_is_replaced_as_a_whole_or_left_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "made"

    def write(text: str, *, fails: bool = False) -> None:
        with atomic_folder(folder) as temporary:
            (temporary / text).write_text(text)
            if fails:
                raise KeyboardInterrupt

    write("old")
    with pytest.raises(KeyboardInterrupt):
        write("half", fails=True)
    assert [entry.name for entry in folder.iterdir()] == ["old"]
    write("new")
    assert [entry.name for entry in folder.iterdir()] == ["new"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["made"]
