"""Key names: one hash tag, nothing that cannot be in it."""

import pytest

from proxy.store.keys import Keys, record_ttl_ms


def test_all_keys_of_a_fleet_share_one_hash_tag() -> None:
    keys = Keys("home-1.a_b")
    names = [keys.proxies, keys.backends, keys.leases("g}0{"), keys.backend("g0"), keys.draining("g0")]

    assert len(set(names)) == len(names)
    assert {name[name.index("{") + 1 : name.index("}")] for name in names} == {"slotgate:home-1.a_b"}


@pytest.mark.parametrize("fleet", ["", "a}b", "x" * 65, "a b"])
def test_a_name_that_would_break_the_tag_is_refused(fleet: str) -> None:
    with pytest.raises(ValueError, match="fleet"):
        Keys(fleet)


@pytest.mark.parametrize(("lease_ms", "record_ms"), [(100, 60_000), (15_000, 60_000), (60_000, 240_000)])
def test_a_record_outlives_every_lease(lease_ms: int, record_ms: int) -> None:
    assert record_ttl_ms(lease_ms) == record_ms > 2 * lease_ms
