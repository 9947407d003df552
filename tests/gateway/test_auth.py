"""Keys: made, hashed, kept in a file, and looked up."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gateway.auth import KeyEntry, KeyFileError, KeyRing, authorize, authorize_admin, hash_key, make_key
from gateway.errors import Forbidden, Unauthorized
from gateway.key_file import add_key

HASH = "sha256:" + "0" * 64


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "keys.yaml"
    path.write_text(text, "utf-8")
    return path


def test_a_made_key_opens_by_its_hash_alone(tmp_path: Path) -> None:
    plain, hashed = make_key()
    assert hashed == hash_key(plain)
    ring = KeyRing.load(
        written(tmp_path, f"keys:\n  - {{name: alice, hash: '{hashed}'}}\n  - {{name: bob, hash: {HASH}}}\n")
    )
    assert ring.name(plain) == "alice"
    assert ring.name(plain[:-1]) is None
    assert ring.name(hashed) is None
    assert ring.name("") is None
    assert make_key()[0] != plain


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keys:\n  - {name: a, key: sk-canary-123456}\n", "enginehouse keys add"),
        ("keys:\n  - {name: a, hash: sk-canary-123456}\n", "enginehouse keys add"),
        ("keys:\n  - sk-canary-123456\n", "enginehouse keys add"),
        ("keys:\n  - {name: a, hash: x, admin: perhaps}\n", "keys[0]"),
        ("keys:\n  - {name: a, hash: 5, extra: sk-canary-123456}\n", "keys[0]"),
        (f"keys:\n  - {{name: '', hash: {HASH}}}\n", "keys[0].name"),
        (f"keys:\n  - {{name: a, hash: {HASH}}}\n  - {{name: a, hash: '{HASH[:-1]}1'}}\n", "keys[1].name"),
        (f"keys:\n  - {{name: a, hash: {HASH}}}\n  - {{name: b, hash: {HASH}}}\n", "as 'a'"),
        ("keys: {a: sk-canary-123456}\n", "must hold `keys:`"),
        ("- sk-canary-123456\n", "must hold `keys:`"),
        ("keys: [sk-canary-123456\n", "not YAML"),
        ("", "must hold `keys:`"),
    ],
)
def test_b34_a_bad_key_file_is_refused_with_what_would_be_right_and_without_the_key(
    tmp_path: Path, text: str, said: str
) -> None:
    with pytest.raises(KeyFileError) as refused:
        KeyRing.load(written(tmp_path, text))
    assert said in str(refused.value)
    assert "keys.yaml" in str(refused.value)
    assert "canary" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_a_missing_key_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(KeyFileError, match="absent"):
        KeyRing.load(tmp_path / "absent")


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_a_running_ring_takes_a_new_key_and_drops_an_old_one_within_a_second(tmp_path: Path) -> None:
    file, clock = tmp_path / "keys.yaml", Clock()
    first = add_key(file, "first")
    ring = KeyRing.load(file, clock)
    second = add_key(file, "second", admin=True)
    assert ring.name(second) is None  # looked at a moment ago
    clock.now += 1.0
    assert ring.name(second) == "second"
    assert ring.is_admin("second") and not ring.is_admin("first")
    file.write_text(f"keys: [{{name: second, hash: '{hash_key(second)}'}}]")
    clock.now += 1.0
    assert ring.name(first) is None
    assert not ring.is_admin("second")


@pytest.mark.parametrize("damage", [lambda file: file.write_text("keys: ["), lambda file: file.unlink()])
def test_a_key_file_that_is_damaged_while_serving_changes_nothing_and_is_told_once(
    tmp_path: Path, damage: Callable[[Path], object], caplog: pytest.LogCaptureFixture
) -> None:
    file, clock = tmp_path / "keys.yaml", Clock()
    key = add_key(file, "a")
    ring = KeyRing.load(file, clock)
    damage(file)
    for _ in range(3):
        clock.now += 1.0
        assert ring.name(key) == "a"
    (told,) = caplog.messages
    assert told.startswith("the key file has changed and is of no use; the keys read before stay: ")
    later = tmp_path / "later.yaml"
    other = add_key(later, "b")
    later.replace(file)
    clock.now += 1.0
    assert (ring.name(key), ring.name(other)) == (None, "b")


def test_admin_wants_a_key_that_is_marked_so() -> None:
    (plain, hashed), (operators, operators_hash) = make_key(), make_key()
    ring = KeyRing([KeyEntry("client", hashed), KeyEntry("operator", operators_hash, admin=True)])
    assert authorize_admin(None, {}) is None
    assert authorize_admin(ring, {"x-api-key": operators}) == "operator"
    with pytest.raises(Forbidden, match="admin: true"):
        authorize_admin(ring, {"x-api-key": plain})
    with pytest.raises(Unauthorized):
        authorize_admin(ring, {})


def test_a_bearer_goes_before_x_api_key_and_other_schemes_count_for_nothing() -> None:
    plain, hashed = make_key()
    ring = KeyRing([KeyEntry("a", hashed)])
    assert authorize(None, {}) is None
    assert authorize(ring, {"authorization": f"Bearer {plain}", "x-api-key": "other"}) == "a"
    assert authorize(ring, {"authorization": "Basic abc", "x-api-key": plain}) == "a"
    for headers in ({}, {"authorization": plain}, {"authorization": f"Bearer {plain}x"}, {"cookie": plain}):
        with pytest.raises(Unauthorized):
            authorize(ring, headers)
    with pytest.raises(Unauthorized):
        authorize(ring, {"authorization": "Bearer wrong", "x-api-key": plain})
