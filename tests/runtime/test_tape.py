"""Arenas: buffers in use at the same time do not overlap, and dead ones make room."""

from hypothesis import given
from hypothesis import strategies as st

from blockbuster_fusion.torch.plan.c_tape import ALIGNED, packed

spans = st.lists(
    st.tuples(st.integers(0, 300), st.integers(0, 20), st.integers(0, 5)).map(
        lambda x: (x[0], x[1], x[1] + x[2])
    ),
    max_size=20,
)


@given(spans)
def test_arrays_that_are_used_at_the_same_time_do_not_overlap(
    arrays: list[tuple[int, ...]],
) -> None:
    offsets, end = packed([(size, first, last) for size, first, last in arrays])
    assert all(at % ALIGNED == 0 for at in offsets)
    placed = [(at, *array) for at, array in zip(offsets, arrays, strict=True)]
    for number, (at, size, first, last) in enumerate(placed):
        assert at + size <= end
        for other, other_size, other_first, other_last in placed[:number]:
            together = first <= other_last and other_first <= last
            assert not together or at + size <= other or other + other_size <= at


def test_an_array_takes_the_place_of_a_dead_one() -> None:
    offsets, end = packed([(100, 0, 1), (100, 1, 2), (100, 2, 3), (60, 3, 4)])
    assert offsets == [0, 128, 0, 128]
    assert end == 228
