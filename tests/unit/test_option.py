"""Declarations of options: typed values, texts, and given names."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from dedup.errors import ConfigError
from dedup.values import option as kinds
from dedup.values.option import REQUIRED, Kind, Option, read_options

OPTIONS = (
    Option("path", kinds.text(), REQUIRED, "the folder of the output."),
    Option("mode", kinds.choice("append", "upsert"), "append", "How rows are written."),
    Option("partition.by", kinds.names(), ()),
    Option("timeout.seconds", kinds.whole(1, 3600), 60),
    Option("header", kinds.switch(), False),
    Option("target.file.size", kinds.nbytes(1 << 10, 4 << 30)),
    Option("wait", kinds.duration(1), None, "How long."),
    Option("share", kinds.number(lambda share: 0 <= share <= 1, "from 0 to 1"), 0.5),
)


def read(**given: str) -> dict[str, Any]:
    texts = {name.replace("__", "."): text for name, text in given.items()}
    return read_options({"path": "/o"} | texts, OPTIONS, owner="format x", prefix="kafka.")


def test_texts_become_typed_values_and_defaults_fill_the_rest() -> None:
    assert read() == {
        "path": "/o", "mode": "append", "partition_by": (), "timeout_seconds": 60, "header": False,
        "target_file_size": None, "wait": None, "share": 0.5,
    }  # fmt: skip
    assert read(
        MODE=" Upsert ", Partition__By="a, b,", timeout__seconds="5", header="TRUE",
        target__file__size="2kb", wait="2 s", share="1", kafka__x="y", queryName="q",
        checkpointLocation="/c",
    ) == {
        "path": "/o", "mode": "upsert", "partition_by": ("a", "b"), "timeout_seconds": 5,
        "header": True, "target_file_size": 2048, "wait": 2000, "share": 1.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"path": " "}, "The option path is missing: the folder of the output."),
        ({"mode": "ups"}, "Option mode='ups' must be one of append, upsert."),
        ({"mod": "x"}, "The option mod is unknown to format x. Did you mean mode?"),
        ({"zzzzzz": "x"}, "is unknown to format x. There are path, mode, .*, share, kafka"),
        ({"timeout__seconds": "soon"}, "Option timeout.seconds='soon' must be a whole number"),
        ({"timeout__seconds": "0"}, "Option timeout.seconds=0 must be a whole number from 1"),
        ({"partition__by": "a,a"}, "must name each column only once."),
        ({"header": "yes"}, "Option header='yes' must be true or false."),
        ({"target__file__size": "1"}, "Option target.file.size='1' must .*1.0 KiB to 4.0 GiB."),
        ({"wait": "0 s"}, "Option wait='0 s' must be at least a millisecond."),
        ({"share": "2"}, "Option share=2.0 must be a number from 0 to 1."),
    ],
)
def test_texts_that_an_option_cannot_take_are_rejected(given: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read(**given)


def test_names_are_shown_as_they_were_given() -> None:
    late = Option("on_late", kinds.choice("emit", "drop"), "emit")
    assert (late.flag, late.key, late.metavar) == ("--on-late", "on_late", "emit|drop")
    for check, shown in (
        (late.check, "on_late='x' must"),
        (late.check_flag, "--on-late x must"),
        (lambda value: late.read(value, "Option on.late"), "Option on.late='x' must"),
    ):
        with pytest.raises(ConfigError, match=shown):
            check("x")


@pytest.mark.parametrize(
    ("kind", "value", "checked"),
    [
        (kinds.duration(), timedelta(seconds=1), 1000),
        (kinds.whole(), 3, 3),
        (kinds.whole(), True, None),
        (kinds.whole(), "3", None),
        (kinds.number(lambda n: n < 1, "below 1"), float("nan"), None),
        (kinds.switch(), 1, None),
        (kinds.nbytes(), 64, 64),
        (kinds.nbytes(), "64 KiB", 65_536),
        (kinds.nbytes(), "64kb", 65_536),
        (kinds.nbytes(0), "0", 0),
        (kinds.nbytes(), 0, None),
        (kinds.nbytes(), (1 << 53) + 1, (1 << 53) + 1),
        (kinds.nbytes(), 1 << 62, 1 << 62),
        (kinds.nbytes(), "0.1 KiB", 102),
        (kinds.nbytes(), 1.5, None),
        (kinds.nbytes(), True, None),
        (kinds.nbytes(), "-1", None),
        (kinds.nbytes(1, 1 << 10), "2 KiB", None),
        (kinds.words("[a-z]+", "be letters."), "ab", ("ab",)),
        (kinds.words("[a-z]+", "be letters."), ["ab", "c"], ("ab", "c")),
        (kinds.words("[a-z]+", "be letters."), ["ab", "1"], None),
        (kinds.words("[a-z]+", "be letters."), 1, None),
        (kinds.text("[a-z]+", "be letters."), "ab", "ab"),
        (kinds.text("[a-z]+", "be letters."), "a1", None),
    ],
)
def test_typed_values_are_checked(kind: Kind, value: Any, checked: Any) -> None:
    declared = Option("o", kind, 0)
    if checked is None:
        with pytest.raises(ConfigError, match="o="):
            declared.check(value)
    else:
        assert declared.check(value) == checked


def test_none_is_a_value_if_it_is_the_default() -> None:
    assert Option("o", kinds.whole()).check(None) is None
    with pytest.raises(ConfigError, match="o=None must"):
        Option("o", kinds.whole(), 1).check(None)
    assert Option("o", kinds.whole(), 1).check_flag(None) is None
