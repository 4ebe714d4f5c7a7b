"""What the comparison says of a process's time, from perf's table of samples."""

from bench.processor_time import parse_samples, time_shares

TABLE = """\
# Samples: 334  of event 'cpu-clock'
#
#      Samples;Shared Object
 50         ;[kernel.kallsyms]
 10         ;_asyncio.cpython-314-x86_64-linux-gnu.so
 15         ;libc.so.6
 5          ;loop.cpython-314-x86_64-linux-gnu.so
 120        ;python3.14


#
# (Tip: To separate samples by time use perf report --sort time,overhead,sym)
#
"""
OF_PYTHON = frozenset({"python3.14", "_asyncio.cpython-314-x86_64-linux-gnu.so", "_json.so"})


def test_samples_are_counted_by_file() -> None:
    assert parse_samples(TABLE) == {
        "[kernel.kallsyms]": 50,
        "_asyncio.cpython-314-x86_64-linux-gnu.so": 10,
        "libc.so.6": 15,
        "loop.cpython-314-x86_64-linux-gnu.so": 5,
        "python3.14": 120,
    }


def test_modules_that_come_with_python_count_as_the_interpreter() -> None:
    shares = time_shares(parse_samples(TABLE), OF_PYTHON)
    assert shares == (0.65, 0.1, 0.25)
    assert shares.interpreter == 0.65
