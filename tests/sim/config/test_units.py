import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from paceline.sim.config import units
from paceline.sim.errors import InputError

TIMES = {
    "50 ms": 0.05,
    "35 ms": 0.035,  # 35 * 0.001 rounds to another float
    "50ms": 0.05,
    " 1.5  s ": 1.5,
    "1e3 us": 1e-3,
    "3 µs": 3e-6,
    "3 μs": 3e-6,
    "100 ns": 1e-7,
    "2 min": 120.0,
    "1 h": 3600.0,
    "2h": 7200.0,
    "1 d": 86400.0,
    "0 s": 0.0,
    "-0 s": 0.0,
    ".5 s": 0.5,
}
AMOUNTS = {
    "100 MB": 1e8,
    "4 MiB": 4 * 2.0**20,
    "1 kB": 1e3,
    "8 bit": 1.0,
    "1.5 kB": 1500.0,
    "3 TiB": 3 * 2.0**40,
}
RATES = {
    "25 Gbit/s": 3.125e9,
    "1 GB/s": 1e9,
    "1 MiB/s": 2.0**20,
    "8 bit / s": 1.0,
    "1 Mbit/s": 125e3,
}


@pytest.mark.parametrize(("text", "value"), TIMES.items())
def test_times(text: str, value: float) -> None:
    assert units.parse_seconds(text) == value


@pytest.mark.parametrize(("text", "value"), AMOUNTS.items())
def test_amounts_of_data(text: str, value: float) -> None:
    assert units.parse_bytes(text) == value


@pytest.mark.parametrize(("text", "value"), RATES.items())
def test_rates(text: str, value: float) -> None:
    assert units.parse_rate(text) == value


REFUSED = [
    (units.parse_seconds, 50, "'50' has no unit; write for example '50 ms'"),
    (units.parse_seconds, "50", "'50' has no unit; write for example '50 ms'"),
    (units.parse_rate, 2.5, "'2.5' has no unit; write for example '2.5 Gbit/s'"),
    (units.parse_seconds, "50 MB", "'50 MB' is an amount of data, not a time; write for example '50 ms'"),
    (
        units.parse_bytes,
        "1 Mbit/s",
        "'1 Mbit/s' is a data rate, not an amount of data; write for example '100 MB'",
    ),
    (units.parse_rate, "1 GB", "'1 GB' is an amount of data, not a data rate; write for example '1 Gbit/s'"),
    (units.parse_seconds, "1 s/s", "'1 s/s' is something else, not a time; write for example '50 ms'"),
    (units.parse_seconds, "-5 ms", "'-5 ms' is negative; write for example '50 ms'"),
    (units.parse_seconds, "nan s", "'nan s' is not a finite number; write for example '50 ms'"),
    (units.parse_seconds, "inf s", "'inf s' is not a finite number; write for example '50 ms'"),
    (units.parse_seconds, float("inf"), "'inf' is not a finite number; write for example '50 ms'"),
    (units.parse_seconds, float("nan"), "'nan' is not a finite number; write for example '50 ms'"),
    (units.parse_seconds, "1e400 s", "'1e400 s' is too large"),
    (units.parse_seconds, "1e-999999999 s", "'1e-999999999 s' is too small"),
    (units.parse_bytes, "1e300 TB", "'1e300 TB' is too large"),
    (units.parse_bytes, "1 bit", "'1 bit' is not a whole number of bytes; write for example '100 MB'"),
    (units.parse_seconds, "1,5 ms", "'1,5 ms' is not a number with a unit; write for example '50 ms'"),
    (units.parse_seconds, "2**9 s", "'2**9 s' is not a number with a unit; write for example '50 ms'"),
    (units.parse_seconds, "fast", "'fast' is not a number with a unit; write for example '50 ms'"),
    (units.parse_seconds, "", "'' is not a number with a unit; write for example '50 ms'"),
    (units.parse_seconds, True, "must be a time with its unit; write for example '50 ms'"),
    (units.parse_seconds, None, "must be a time with its unit; write for example '50 ms'"),
    (units.parse_seconds, ["5 ms"], "must be a time with its unit; write for example '50 ms'"),
    (units.parse_rate, "1 Gb/s", "'1 Gb/s' may mean bits or bytes; write 'Gbit/s' or 'GB/s'"),
    (units.parse_rate, "1 Mbps", "'1 Mbps' may mean bits or bytes; write 'Mbit/s' or 'MB/s'"),
    (units.parse_bytes, "1 Mb", "'1 Mb' may mean bits or bytes; write 'Mbit' or 'MB'"),
    (units.parse_bytes, "1 Kib", "'1 Kib' may mean bits or bytes; write 'Kibit' or 'KiB'"),
    (units.parse_bytes, "1 KB", "'1 KB' may mean 1000 or 1024; write 'kB' or 'KiB'"),
    (units.parse_rate, "1 mbit/s", "'1 mbit/s' has an unknown unit 'mbit/s'; did you mean 'Mbit/s'?"),
    (units.parse_bytes, "1 mb", "'1 mb' has an unknown unit 'mb'; did you mean 'MB'?"),
    (units.parse_seconds, "1 MS", "'1 MS' has an unknown unit 'MS'; did you mean 'ms'?"),
    (units.parse_seconds, "5 hour", "'5 hour' has its unit in words; write '5 h'"),
    (units.parse_seconds, "5 seconds", "'5 seconds' has its unit in words; write '5 s'"),
    (units.parse_bytes, "8 bits", "'8 bits' has its unit in words; write '8 bit'"),
    (units.parse_bytes, "5 kilobytes", "'5 kilobytes' has its unit in words; write '5 kB'"),
    (units.parse_rate, "1 Mbit per s", "'1 Mbit per s' has its unit in words; write '1 Mbit/s'"),
    (units.parse_rate, "1 Gbits/second", "'1 Gbits/second' has its unit in words; write '1 Gbit/s'"),
    (units.parse_speed, "1 gigaflop/s", "'1 gigaflop/s' has its unit in words; write '1 Gflop/s'"),
    (units.parse_seconds, "5 hs", "'5 hs' has an unknown unit 'hs'; did you mean 's'?"),
    (units.parse_seconds, "5 sec", "'5 sec' has an unknown unit 'sec'; choose from: h, min, ms, s, us"),
    (
        units.parse_seconds,
        "1 parsec",
        "'1 parsec' has an unknown unit 'parsec'; choose from: h, min, ms, s, us",
    ),
]


@pytest.mark.parametrize(("parse", "value", "message"), REFUSED)
def test_what_is_refused_and_what_is_said(parse: object, value: object, message: str) -> None:
    assert callable(parse)
    with pytest.raises(InputError) as caught:
        parse(value)
    assert str(caught.value) == message


def test_formats_for_people() -> None:
    assert [units.format_seconds(v) for v in (0, 5e-8, 0.05, 0.9999, 59.9, 90, 3600, 1e5)] == [
        "0 s", "50 ns", "50 ms", "1 s", "59.9 s", "1.5 min", "1 h", "1.16 d"
    ]  # fmt: skip
    assert [units.format_bytes(v) for v in (0, 8, 1536, 2e7, 1e12)] == [
        "0 B",
        "8 B",
        "1.54 kB",
        "20 MB",
        "1 TB",
    ]
    assert [units.format_rate(v) for v in (0.125, 125e6, 1e9, float("inf"))] == [
        "1 bit/s", "1 Gbit/s", "8 Gbit/s", "unlimited"
    ]  # fmt: skip


FINITE = st.floats(min_value=0, allow_nan=False, allow_infinity=False)


@given(st.just(0.0) | st.floats(1e-15, 1e12))
def test_a_time_is_written_so_that_it_reads_as_the_same_float(value: float) -> None:
    adapter: TypeAdapter[float] = TypeAdapter(units.BoundedSeconds)
    text = adapter.dump_python(value, mode="json")
    assert isinstance(text, str)
    assert adapter.validate_python(text) == value


@given(FINITE)
def test_a_rate_is_written_so_that_it_reads_as_the_same_float(value: float) -> None:
    adapter: TypeAdapter[float] = TypeAdapter(units.BytesPerSecond)
    assert adapter.validate_python(adapter.dump_python(value, mode="json")) == value


@given(st.integers(min_value=0, max_value=2**53))
def test_an_amount_is_written_so_that_it_reads_as_the_same_float(value: int) -> None:
    adapter: TypeAdapter[float] = TypeAdapter(units.Bytes)
    assert adapter.validate_python(adapter.dump_python(float(value), mode="json")) == value


@given(st.floats(min_value=1e-9, max_value=1e9), st.sampled_from([*units._TIME.sizes]))
def test_time_formats_keep_three_digits(value: float, unit: str) -> None:
    seconds = value * units._TIME.sizes[unit]
    assert units.parse_seconds(units.format_seconds(seconds)) == pytest.approx(seconds, rel=5e-3)


def test_a_field_refuses_a_bare_number() -> None:
    with pytest.raises(ValidationError, match="has no unit"):
        TypeAdapter(units.BoundedSeconds).validate_python(0.05)
