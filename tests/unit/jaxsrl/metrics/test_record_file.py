"""Records as they grow: new bytes only, torn lines, and what a resumed run did again."""

import json
import math

import pytest

from jaxsrl.metrics.record_file import RETURN, SPEED, RecordFile, read_returns, read_steady_records


def line(update, wall, **values):
    return (
        json.dumps({"update": update, "env_steps": update * 10, "frames": update * 40, "wall_seconds": wall, **values})
        + "\n"
    )


def record_file(tmp_path, *lines):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(lines))
    records = RecordFile(path)
    records.refresh()
    return path, records


def column(records, name):
    return list(records.columns[name])


def append(path, text):
    with open(path, "a") as file:
        file.write(text)


def test_a_file_that_is_not_there_has_no_records(tmp_path):
    records = RecordFile(tmp_path / "metrics.jsonl")
    records.refresh()
    assert records.num_rows == 0
    assert records.last(RETURN) is None
    assert records.since()["columns"]["update"] == []


def test_a_metric_that_came_later_is_missing_before(tmp_path):
    _, records = record_file(tmp_path, line(1, 1.0), line(2, 2.0, **{RETURN: 5.0}), line(3, 3.0))
    assert column(records, "update") == [1, 2, 3]
    assert records.since()["columns"][RETURN] == [None, 5.0, None]


def test_the_newest_value_is_a_number(tmp_path):
    _, records = record_file(
        tmp_path, line(1, 1, **{RETURN: 7.0}), line(2, 2, **{RETURN: 3.0}), line(3, 3, **{RETURN: math.nan})
    )
    assert records.last(RETURN) == 3.0
    assert json.dumps(records.since(), allow_nan=False)


def test_half_a_line_counts_once_it_is_whole(tmp_path):
    path, records = record_file(tmp_path, line(1, 1.0), line(2, 2.0)[:17])
    assert column(records, "update") == [1]
    append(path, line(2, 2.0)[17:])
    records.refresh()
    assert column(records, "update") == [1, 2]
    assert records.num_damaged == 0


def test_only_new_bytes_are_read(tmp_path):
    path, records = record_file(tmp_path, line(1, 1.0))
    text = path.read_text()
    path.write_text("x" * (len(text) - 1) + "\n" + line(2, 2.0))  # what was read is not read again: it would be damaged
    records.refresh()
    assert column(records, "update") == [1, 2]
    assert records.num_damaged == 0


def test_a_file_that_was_begun_anew_is_read_from_its_beginning(tmp_path):
    path, records = record_file(tmp_path, line(1, 1.0), line(2, 2.0), line(3, 3.0))
    cursor = records.since()["cursor"]
    path.write_text(line(1, 1.5))
    records.refresh()
    assert column(records, "update") == [1]
    assert records.since(cursor)["restart"]


@pytest.mark.parametrize("torn", ['{"update": 3, "env_st', "\x00\x00\x00", '{"update": 3}', "[1, 2]"])
def test_a_line_that_a_crash_tore_loses_itself_only(tmp_path, torn):
    _, records = record_file(tmp_path, line(1, 1.0), torn, line(2, 0.5))
    assert column(records, "update") == [1, 2]
    assert records.num_damaged == 1


def test_repeated_records_of_a_resume_replace_the_old(tmp_path):
    before = [line(u, w, **{RETURN: 1.0}) for u, w in ((50, 5.0), (90, 9.0), (110, 11.0), (130, 13.0))]
    after = [line(u, w, **{RETURN: 2.0, "checkpoint/update": 100.0}) for u, w in ((120, 4.0), (140, 6.0))]
    _, records = record_file(tmp_path, *before, *after)
    assert column(records, "update") == [50, 90, 120, 140]
    assert column(records, RETURN) == [1.0, 1.0, 2.0, 2.0]
    assert column(records, "elapsed_seconds") == [5.0, 9.0, 13.0, 15.0]  # 9 s of the first process count
    assert records.resumed_at == [900.0]


def test_a_run_that_began_anew_without_a_checkpoint_forgets_all(tmp_path):
    _, records = record_file(tmp_path, line(5, 5.0), line(9, 9.0), line(3, 2.0, **{"checkpoint/update": 0.0}))
    assert column(records, "update") == [3]
    assert column(records, "elapsed_seconds") == [2.0]
    assert records.resumed_at == []


def test_resume_without_checkpoint_numbers_drops_repeats(tmp_path):
    _, records = record_file(tmp_path, line(5, 5.0), line(9, 9.0), line(8, 2.0))
    assert column(records, "update") == [5, 8]
    assert column(records, "elapsed_seconds") == [5.0, 7.0]


def of_process(start, update, wall, checkpoint, **values):
    return line(update, wall, **{"process_start_seconds": start, "checkpoint/update": checkpoint, **values})


def test_process_that_wrote_late_is_another_one(tmp_path):
    """The first record of a process may be older than the last one of the process before."""
    orderly = [of_process(1e9, 70, 1.9, 70.0), of_process(2e9, 170, 2.0, 70.0), of_process(2e9, 270, 4.0, 70.0)]
    _, records = record_file(tmp_path, *orderly)
    assert column(records, "elapsed_seconds") == [1.9, 3.9, 5.9]
    assert records.resumed_at == [700.0]
    assert "process_start_seconds" not in records.columns
    killed = [of_process(1e9, 50, 1.5, 0.0), of_process(1e9, 100, 2.0, 60.0), of_process(2e9, 158, 2.5, 60.0)]
    _, records = record_file(tmp_path, *killed)
    assert column(records, "update") == [50, 158]
    assert column(records, "elapsed_seconds") == [1.5, 4.0]


def test_process_without_an_update_takes_no_time(tmp_path):
    still = of_process(2e9, 70, 0.5, 70.0, **{SPEED: 0.0})
    _, records = record_file(tmp_path, of_process(1e9, 70, 9.0, 70.0, **{SPEED: 8.0}), still)
    assert column(records, "elapsed_seconds") == [9.0]
    assert column(records, SPEED) == [8.0]
    append(tmp_path / "metrics.jsonl", of_process(3e9, 80, 2.0, 70.0))
    records.refresh()
    assert column(records, "elapsed_seconds") == [9.0, 11.0]


def test_records_without_a_process_come_from_an_earlier_one(tmp_path):
    _, records = record_file(tmp_path, line(5, 1.0), of_process(1e9, 8, 2.0, 5.0))
    assert column(records, "elapsed_seconds") == [1.0, 3.0]


def test_last_record_does_not_overwrite_rates(tmp_path):
    rates = {SPEED: 100.0, "utilization/learner/busy": 0.5}
    still = {SPEED: 0.0, "utilization/learner/busy": 0.0, "checkpoint/update": 9.0}
    _, records = record_file(tmp_path, line(8, 8.0, **rates), line(9, 9.0, **rates), line(9, 9.1, **still))
    assert column(records, "update") == [8, 9]
    assert records.last(SPEED) == 100.0
    assert records.last("utilization/learner/busy") == 0.5
    assert records.last("checkpoint/update") == 9.0


def test_a_large_file_is_read_in_parts(tmp_path, monkeypatch):
    monkeypatch.setattr("jaxsrl.metrics.record_file._CHUNK", 100)
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line(u, u) for u in range(50)))
    records, left = RecordFile(path), []
    while not left or left[-1]:
        left.append(records.refresh(1000))
        assert left[-1] == path.stat().st_size - records.num_bytes
    assert len(left) > 2
    assert column(records, "update") == list(range(50))


def test_an_answer_tells_what_came_after_the_one_before(tmp_path):
    path, records = record_file(tmp_path, line(1, 1.0), line(2, 2.0))
    first = records.since()
    assert first["restart"]
    assert first["columns"]["update"] == [1, 2]
    append(path, line(3, 3.0))
    records.refresh()
    second = records.since(first["cursor"])
    assert not second["restart"]
    assert second["columns"]["update"] == [3]
    assert records.since(second["cursor"])["columns"]["update"] == []


@pytest.mark.parametrize("cursor", ["", "x", "9.1.0", "1.1.999", "1.1.-1", "...", "1.2.0", "1.1.\u00b2"])
def test_a_cursor_that_is_not_known_begins_anew(tmp_path, cursor):
    _, records = record_file(tmp_path, line(1, 1.0), line(2, 2.0))
    assert records.since(cursor)["restart"]
    assert records.since(cursor)["columns"]["update"] == [1, 2]


def test_a_long_run_is_thinned_evenly_and_goes_on_so(tmp_path):
    path, records = record_file(tmp_path, *(line(u, u) for u in range(4502)))
    first = records.since()
    assert first["stride"] == 4
    assert first["columns"]["update"] == list(range(0, 4502, 4))
    append(path, "".join(line(u, u) for u in range(4502, 4511)))
    records.refresh()
    second = records.since(first["cursor"])
    assert first["columns"]["update"] + second["columns"]["update"] == list(range(0, 4511, 4))


def test_read_steady_records_of_a_short_run_is_the_whole_run(tmp_path):
    path, speed = tmp_path / "metrics.jsonl", "speed/env_steps_per_second"
    records = [{speed: float(number), "env_steps": 8, "wall_seconds": 4.0} for number in (0, 5, 6, 7, 0)]

    def read_speeds(count):
        path.write_text("".join(json.dumps(record) + "\n" for record in records[:count]))
        return [record[speed] for record in read_steady_records(path)]

    assert [read_speeds(count) for count in (5, 2, 1)] == [[6.0], [5.0], [2.0]]


def test_the_end_of_a_long_file_is_read_alone(tmp_path):
    padding = {"note": "x" * 2_000}
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(line(update, update, **{RETURN: float(update)}, **padding) for update in range(1, 1_001)))
    returns = read_returns(path, 9_900)
    assert returns == [float(update) for update in range(991 - len(returns), 991)]
    assert 450 < len(returns) < 550
