from scheduler.simulation.records import Record


def test_times_count_from_the_arrival() -> None:
    record = Record("a", "", 100.0, 10, 5, placed_ms=150.0, first_token_ms=300.0, ended_ms=700.0)

    assert (record.ttft_ms, record.e2e_ms) == (200.0, 600.0)
