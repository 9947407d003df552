"""Adding keys to a key file."""

from __future__ import annotations

from pathlib import Path

import pytest
from ruamel.yaml import YAML

from gateway.key_file import KeyFileProblem, add_key


def test_keys_are_added_to_what_is_there_and_comments_stay(tmp_path: Path) -> None:
    file = tmp_path / "k.yaml"
    file.write_text("# of the team\nkeys:\n  - {name: a, hash: 'sha256:00'}  # leaves in May\n")
    first, second = add_key(file, "b"), add_key(file, "c")
    text = file.read_text()
    assert "# of the team" in text
    assert "# leaves in May" in text
    assert [entry["name"] for entry in YAML(typ="safe", pure=True).load(text)["keys"]] == ["a", "b", "c"]
    assert first != second
    assert list(tmp_path.iterdir()) == [file]


@pytest.mark.parametrize("text", ["", "keys:\n", "keys: []\n"])
def test_an_empty_file_takes_a_key(tmp_path: Path, text: str) -> None:
    file = tmp_path / "k.yaml"
    file.write_text(text)
    add_key(file, "a")
    assert [entry["name"] for entry in YAML(typ="safe", pure=True).load(file)["keys"]] == ["a"]


@pytest.mark.parametrize(
    ("text", "why"),
    [("keys: [{name: a, hash: x}]", "a key with the name a already"), ("a: 1", "no key file"), ("a: [", "not YAML")],
)
def test_what_is_no_key_file_is_left_as_it_is(tmp_path: Path, text: str, why: str) -> None:
    file = tmp_path / "k.yaml"
    file.write_text(text)
    with pytest.raises(KeyFileProblem, match=why):
        add_key(file, "a")
    assert file.read_text() == text


def test_a_folder_that_is_not_there_is_told(tmp_path: Path) -> None:
    with pytest.raises(KeyFileProblem, match="cannot be written: No such file"):
        add_key(tmp_path / "no" / "k.yaml", "a")
