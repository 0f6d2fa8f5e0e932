"""Both ends' counters add up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tensorpool.bridge.ledger import Book, Received, Sent

COUNTS = st.integers(0, 1000)


def sent(count: int, run: str = "r", **dropped: int) -> Sent:
    return Sent(run, 10_000, count, dropped)


def received(delivered: int, turned_away: int = 0, **lost: int) -> Received:
    return Received(delivered, turned_away, lost)


@given(COUNTS, COUNTS, COUNTS, COUNTS, COUNTS)
def test_published_is_delivered_and_the_three_kinds_of_drops(
    delivered: int, overwritten: int, lost: int, no_pool: int, away: int
):
    book = Book()
    book.hear(sent(0), received(0))
    book.hear(sent(delivered + lost + no_pool + away, overwritten=overwritten), received(0))
    joined = book.join(received(delivered, away, no_pool=no_pool, timeout=lost))
    assert joined is not None
    assert joined.exact
    assert (joined.sender, joined.network, joined.receiver) == (overwritten, lost, no_pool + away)
    assert joined.published == joined.delivered + joined.sender + joined.network + joined.receiver


def test_a_frame_that_the_sender_gave_up_is_counted_once():
    book = Book()
    book.hear(sent(0), received(0))
    book.hear(sent(9, overwritten=1), received(9, timeout=1))
    joined = book.join(received(9, timeout=1))
    assert joined is not None
    assert (joined.published, joined.sender, joined.network) == (10, 1, 0)


def test_the_first_word_may_be_read_after_the_first_frames():
    book = Book()
    book.hear(sent(0), received(3))
    book.hear(sent(5), received(5))
    joined = book.join(received(5))
    assert joined is not None
    assert (joined.published, joined.delivered, joined.network, joined.exact) == (5, 5, 0, True)


@given(COUNTS, COUNTS, st.integers(1, 1000))
def test_frames_that_came_since_the_senders_last_word_hide_no_loss_and_make_none(
    before: int, lost: int, since: int
):
    book = Book()
    book.hear(sent(0), received(0))
    book.hear(sent(before + lost), received(before, timeout=lost))
    joined = book.join(received(before + lost + since, timeout=lost))
    assert joined is not None
    assert (joined.delivered, joined.network) == (before, lost), "as it was when the sender spoke"
    # One more frame than the sender knows of may be here by the time its word is read.
    book.hear(sent(before + lost), received(before + lost + since))
    joined = book.join(received(before + lost + since))
    assert joined is not None
    assert joined.network == 0
    assert joined.published == joined.delivered


def test_who_comes_late_counts_from_there_and_says_so():
    book = Book()
    book.hear(sent(100), received(2))
    book.hear(sent(110), received(2))
    joined = book.join(received(12))
    assert joined is not None
    assert (joined.published, joined.delivered, joined.exact) == (10, 10, False)


def test_a_sender_that_was_started_anew_is_another_and_the_old_one_is_over():
    book = Book()
    book.hear(sent(0, "old"), received(0))
    book.hear(sent(50, "old"), received(50))
    book.hear(sent(0, "new"), received(50))
    book.hear(sent(60, "old"), received(50))
    book.hear(sent(7, "new"), received(50))
    joined = book.join(received(57))
    assert joined is not None
    assert (joined.published, joined.delivered, joined.exact) == (7, 7, False)


def test_nothing_heard_is_nothing_joined():
    assert Book().join(received(5)) is None


@given(COUNTS, st.dictionaries(st.sampled_from(["late", "overwritten"]), st.integers(1, 9)))
def test_an_account_survives_the_way(count: int, dropped: dict[str, int]):
    account = Sent("r", 10_000, count, dropped)
    assert Sent.decode(account.encode()) == account


@given(st.text() | st.none() | st.integers())
def test_what_is_no_account_is_none(text: object):
    assert Sent.decode(text) is None


def test_counts_from_outside_are_counts():
    assert Sent.decode(sent(1).encode().replace('"sent": 1', '"sent": -1')) is None
    assert Sent.decode(sent(1).encode().replace('"sent": 1', '"sent": 1e99')) is None
