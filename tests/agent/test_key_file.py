"""The key file is replaced as a whole, only its owner can read it, and edits by hand are never overwritten."""

import stat

import pytest

from sbon.errors import ConfigError
from sbon.sealing import KeyRing, generate_key
from sbon_agent.key_file import copy_key_file, replace_key_file

OLD, NEW, OTHER = KeyRing([b"o" * 32]), KeyRing([b"n" * 32]), KeyRing([b"x" * 32])


def written(path, ring):
    path.write_text("# by hand\n" + ring.print())
    path.chmod(0o600)
    return path


def test_the_file_holds_the_new_ring_and_only_its_owner_reads_it(tmp_path):
    path = written(tmp_path / "cluster.key", OLD)
    path.chmod(0o644)
    both = OLD.with_key(b"n" * 32)

    replace_key_file(path, OLD, both)

    assert KeyRing.parse(path.read_text()).ids == both.ids
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in tmp_path.iterdir()] == ["cluster.key"]


def test_a_link_to_the_file_stays_one(tmp_path):
    path = written(tmp_path / "real.key", OLD)
    link = tmp_path / "cluster.key"
    link.symlink_to(path)

    replace_key_file(link, OLD, NEW)

    assert link.is_symlink()
    assert KeyRing.parse(path.read_text()).ids == NEW.ids


def test_an_edit_that_was_not_reloaded_is_kept(tmp_path):
    path = written(tmp_path / "cluster.key", OTHER)

    with pytest.raises(ConfigError, match="changed by hand"):
        replace_key_file(path, OLD, NEW)

    assert KeyRing.parse(path.read_text()).ids == OTHER.ids


def test_a_file_that_two_agents_share_is_written_by_the_first(tmp_path):
    path = written(tmp_path / "cluster.key", NEW)
    before = path.read_text()

    replace_key_file(path, OLD, NEW)

    assert path.read_text() == before


def test_what_cannot_be_written_or_read_is_refused_without_showing_keys(tmp_path):
    with pytest.raises(ConfigError, match="cannot write the key file"):
        replace_key_file(tmp_path / "missing" / "cluster.key", OLD, NEW)
    damaged = tmp_path / "damaged.key"
    damaged.write_text(generate_key(b"o" * 32)[:-4] + "!!!!")
    with pytest.raises(ConfigError) as caught:
        replace_key_file(damaged, OLD, NEW)
    assert generate_key(b"o" * 32)[:8] not in str(caught.value)
    damaged.write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="no longer holds keys"):
        replace_key_file(damaged, OLD, NEW)


def test_what_a_crash_has_left_behind_is_no_hindrance(tmp_path):
    path = written(tmp_path / "cluster.key", OLD)
    (tmp_path / ".cluster.key.new").write_text("half")

    replace_key_file(path, OLD, NEW)

    assert KeyRing.parse(path.read_text()).ids == NEW.ids


def test_initial_keys_are_copied_once(tmp_path):
    initial, path = written(tmp_path / "initial", OLD), tmp_path / "state" / "cluster.key"
    initial.chmod(0o444)

    copy_key_file(initial, path)
    assert KeyRing.parse(path.read_text()).ids == OLD.ids
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert [entry.name for entry in path.parent.iterdir()] == ["cluster.key"]

    replace_key_file(path, OLD, NEW)
    copy_key_file(initial, path)
    assert KeyRing.parse(path.read_text()).ids == NEW.ids
    initial.unlink()
    copy_key_file(initial, path)


@pytest.mark.parametrize(("content", "said"), [(None, "cannot read the initial key file"), ("\u00e9", "holds no keys"), ("no key", "key")])
def test_initial_keys_of_no_use_are_refused_and_nothing_is_written(tmp_path, content, said):
    if content is not None:
        (tmp_path / "initial").write_text(content)
    with pytest.raises(ConfigError, match=said):
        copy_key_file(tmp_path / "initial", tmp_path / "cluster.key")
    assert not (tmp_path / "cluster.key").exists()
