"""The structs that go in and out of the store."""

from proxy.store.records import BackendListing, BackendRecord, ClaimReply, Occupancy, read_listing


def test_seats_elsewhere_are_what_others_hold() -> None:
    assert ClaimReply(False, 5, 2, False, 1).seats_elsewhere == 3
    assert Occupancy(5, 2, False).seats_elsewhere == 3


def test_a_listing_is_read_from_the_answer_of_the_script() -> None:
    row = [7, 4, b'{"engine":"ollama"}', 1500, b"p.1/", -1, 3]

    assert read_listing("g0", row) == BackendListing(
        record=BackendRecord("g0", 7, 4, {"engine": "ollama"}),
        heartbeat_age_s=1.5,
        heartbeat_by="p.1",
        draining=False,
        seats_total=3,
    )
    assert read_listing("g0", [7, 4, b"{}", -5, b"p/", 1, 0]).draining
