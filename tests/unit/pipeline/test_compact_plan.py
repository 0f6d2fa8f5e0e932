"""Which files are merged: few are left, and a row is seldom written again."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tensorpool.pipeline.compact_plan import FAN, plan, tier

TARGET = 1 << 27
SIZES = st.lists(st.integers(1, TARGET * 2), max_size=200)


@settings(deadline=None)
@given(SIZES, st.booleans())
def test_a_file_is_merged_once_with_others_and_never_when_it_is_large(sizes: list[int], whole: bool) -> None:
    files = [(f"{number:04}", size) for number, size in enumerate(sizes)]
    groups = plan(files, TARGET, whole=whole)
    merged = [name for group in groups for name in group]
    assert len(set(merged)) == len(merged)
    assert all(len(group) > 1 and group == sorted(group) for group in groups)
    assert all(sizes[int(name)] < TARGET // 2 for name in merged)
    if not whole:
        for group in groups:
            assert len({tier(sizes[int(name)]) for name in group}) == 1


@settings(deadline=None)
@given(SIZES)
def test_all_small_files_together_are_merged_but_for_one_at_the_most(sizes: list[int]) -> None:
    files = [(f"{number:04}", size) for number, size in enumerate(sizes)]
    small = {name for name, size in files if size < TARGET // 2}
    merged = {name for group in plan(files, TARGET, whole=True) for name in group}
    if sum(size for name, size in files if name in small) <= TARGET:
        assert merged == (small if len(small) > 1 else set())
    # Where there is enough for several tasks, the last one may be left with a single file.
    assert len(small - merged) <= 1


@settings(deadline=None, max_examples=30)
@given(st.integers(2_000, 5_000_000), st.integers(100, 3_000))
def test_files_that_keep_coming_stay_few_and_are_rewritten_a_few_times(size: int, count: int) -> None:
    files: dict[str, int] = {}
    rewritten = most = 0
    for number in range(count):
        files[f"{number:06}"] = size
        for group in plan(sorted(files.items()), TARGET, whole=False):
            total = sum(files.pop(name) for name in group)
            rewritten += total
            # As the tasks write them: whole files of the target's size, and what is left.
            full, rest = divmod(total, TARGET)
            sizes = [TARGET] * full + ([rest] if rest else [])
            files |= {f"{group[0]}-c{at}": one for at, one in enumerate(sizes)}
        most = max(most, sum(1 for one in files.values() if one < TARGET // 2))
    assert most <= FAN * 5
    assert rewritten <= 5 * size * count
