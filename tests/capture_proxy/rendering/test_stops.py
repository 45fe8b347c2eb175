"""Stop strings never reach the client, and nothing else is lost."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from capture_proxy.rendering.stops import StopCutter


@given(
    st.text("abX", max_size=30),
    st.lists(st.text("abX", min_size=1, max_size=4), min_size=1, max_size=3),
    st.integers(1, 5),
)
def test_any_cut_shows_the_text_before_the_first_stop(text: str, stops: list[str], size: int) -> None:
    """However the text arrives, what is shown ends where the first stop string begins, and only there."""
    cutter = StopCutter(stops)
    shown = "".join(cutter.feed(text[at : at + size]) for at in range(0, len(text), size)) + cutter.flush()
    ends = [(text.find(stop) + len(stop), text.find(stop)) for stop in stops if stop in text]
    if not ends:
        assert shown == text
        assert cutter.matched is None
    else:
        assert text.startswith(shown)
        assert cutter.matched in stops
        assert text.startswith(shown + str(cutter.matched))
        assert len(shown) >= min(start for _, start in ends)


def test_the_longest_possible_beginning_is_held() -> None:
    """Text that may become a stop string waits, and comes out when it doesn't."""
    cutter = StopCutter(["</end>"])
    assert cutter.feed("see </e") == "see "
    assert cutter.feed("x") == "</ex"
    assert cutter.feed("</en") == ""
    assert cutter.flush() == "</en"
