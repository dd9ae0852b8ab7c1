"""Where records go, and that no sink that fails ends a run."""

import errno
import json
import os

import numpy as np
import pytest

import jaxsrl.metrics.sinks as sinks_module
from envpool_bridge.errors import UserError
from jaxsrl.config.parts import MetricsConfig
from jaxsrl.metrics.atomic_append import AtomicAppendFile
from jaxsrl.metrics.make_sinks import make_sinks
from jaxsrl.metrics.sinks import PROCESS_START, JsonlSink, Sinks
from jaxsrl.metrics.tensorboard_sink import TensorBoardSink
from tests.support.metric_records import facts, read_records, record


class Kept:
    def __init__(self):
        self.records, self.closed = [], 0

    def write(self, record):
        self.records.append(record)

    def close(self):
        self.closed += 1


def fails(number):
    raise OSError(number, os.strerror(number))


def curve(directory, name):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(directory))
    events.Reload()
    return [(point.step, point.value) for point in events.Scalars(name)]


def test_a_resumed_run_appends_to_its_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    for update in (1, 2):
        sink = JsonlSink(path)
        sink.write(record(update, loss=0.5))
        sink.close()
        sink.close()
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["update"] for line in lines] == [1, 2]
    assert lines[0].pop(PROCESS_START) < lines[1].pop(PROCESS_START)
    assert lines[1] == {"update": 2, "env_steps": 128, "frames": 512, "wall_seconds": 1.0, "loss": 0.5}


def test_records_become_sparser_with_their_age(tmp_path, monkeypatch):
    path, size = tmp_path / "metrics.jsonl", 8_000
    monkeypatch.setattr(sinks_module, "_MOST_BYTES", size)
    for process in range(2):
        sink = JsonlSink(path)
        for update in range(500 * process + 1, 500 * process + 501):
            sink.write(record(update))
            assert path.stat().st_size <= size
        sink.close()
    updates = [json.loads(line)["update"] for line in path.read_text().splitlines()]
    gaps = np.diff(updates)
    assert updates[0] == 1
    assert {500, 501} <= set(updates)
    assert (gaps[-len(gaps) // 4 :] == 1).all()
    assert (gaps[: len(gaps) // 4].mean()) > 16


def test_a_full_disk_keeps_all_records(tmp_path, monkeypatch):
    monkeypatch.setattr(sinks_module, "_MOST_BYTES", 8_000)
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    with monkeypatch.context() as full:
        full.setattr(os, "fsync", lambda descriptor: fails(errno.ENOSPC))
        for update in range(1, 101):
            sink.write(record(update))
    sink.close()
    assert [path.name for path in tmp_path.iterdir()] == ["metrics.jsonl"]
    assert len((tmp_path / "metrics.jsonl").read_text().splitlines()) == 100


def test_a_line_can_be_read_as_soon_as_it_is_written(tmp_path):
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    sink.write(record(loss=1.0))
    assert json.loads((tmp_path / "metrics.jsonl").read_text())["loss"] == 1.0
    sink.close()


def test_tensorboard_reads_every_curve_over_env_steps(tmp_path):
    sink = TensorBoardSink(tmp_path)
    for update in (1, 2, 3):
        sink.write(record(update, **{"loss/value": update * 0.25, "speed/env_steps_per_second": 10.0}))
    sink.close()
    assert curve(tmp_path, "loss/value") == [(64, 0.25), (128, 0.5), (192, 0.75)]
    assert [value for _, value in curve(tmp_path, "speed/env_steps_per_second")] == [10.0] * 3


def test_every_sink_gets_every_record_and_is_closed_once():
    kept = [Kept(), Kept()]
    sinks = Sinks(kept)
    sinks.write(record(1))
    sinks.write(record(2))
    sinks.close()
    sinks.close()
    expected = [record(update, **{"metrics/dropped_records_total": 0.0}) for update in (1, 2)]
    assert [sink.records for sink in kept] == [expected] * 2
    assert [sink.closed for sink in kept] == [1, 1]


class Broken(Kept):
    def write(self, record):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def close(self):
        super().close()
        raise RuntimeError("cannot close either")


def test_failing_sink_is_logged_once_and_counted():
    said, kept, broken = [], Kept(), Broken()
    sinks = Sinks([broken, kept], said.append)
    for update in (1, 2, 3):
        sinks.write(record(update))
    sinks.close()
    assert [each.values["metrics/dropped_records_total"] for each in kept.records] == [0.0, 1.0, 2.0]
    assert (sinks.dropped_records, kept.closed, broken.closed) == (3, 1, 1)
    (line,) = said
    assert "Broken failed (OSError: [Errno 28] No space left on device); training continues" in line


def test_without_anyone_to_tell_a_failure_is_on_stderr(capsys):
    Sinks([Broken()]).write(record())
    assert "Broken failed" in capsys.readouterr().err


def test_only_what_must_end_a_run_passes_a_sink():
    class Interrupted(Kept):
        def write(self, record):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Sinks([Interrupted()]).write(record())


@pytest.mark.parametrize("kind", [JsonlSink, TensorBoardSink])
def test_a_full_disk_is_an_error_of_the_record_alone(kind, tmp_path, monkeypatch):
    sink = kind(tmp_path / "out")
    sink.write(record(1, loss=1.0))
    written = AtomicAppendFile.append

    def full(self, piece):
        self._file.write(piece[:5])  # a part of it, as a disk that fills up takes it
        self._file.truncate(self._size)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(AtomicAppendFile, "append", full)
    with pytest.raises(OSError, match="No space left"):
        sink.write(record(2, loss=2.0))
    monkeypatch.setattr(AtomicAppendFile, "append", written)
    sink.write(record(3, loss=3.0))
    sink.close()
    if kind is JsonlSink:
        assert [each.update for each in read_records(tmp_path / "out")] == [1, 3]
    else:
        assert curve(tmp_path / "out", "loss") == [(64, 1.0), (192, 3.0)]


def test_a_device_that_is_always_full_takes_nothing(tmp_path):
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    sink = JsonlSink(tmp_path / "metrics.jsonl")
    for _ in range(2):
        with pytest.raises(OSError, match="No space left"):
            sink.write(record())
    sink.close()


def test_what_was_written_of_a_piece_is_taken_back(tmp_path):
    class Takes:
        """A file that has room for 3 more bytes."""

        def __init__(self, file):
            self.file, self.room = file, 3

        def write(self, piece):
            if not self.room:
                raise OSError(errno.ENOSPC, "full")
            taken = self.file.write(piece[: self.room])
            self.room -= taken
            return taken

        def truncate(self, size):
            self.file.truncate(size)

    file = AtomicAppendFile(tmp_path / "f")
    file.append(b"whole\n")
    real, file._file = file._file, Takes(file._file)
    with pytest.raises(OSError, match="full"):
        file.append(b"torn\n")
    file._file = real
    assert (tmp_path / "f").read_bytes() == b"whole\n"
    file.append(b"next\n")
    file.close()
    assert (tmp_path / "f").read_bytes() == b"whole\nnext\n"


@pytest.mark.parametrize("torn", ['{"update": 2, "env_st', "x" * 200_000], ids=["short", "long"])
def test_a_torn_last_line_is_dropped_when_a_run_goes_on(tmp_path, torn):
    path = tmp_path / "metrics.jsonl"
    sink = JsonlSink(path)
    sink.write(record(1))
    sink.close()
    with open(path, "a") as file:
        file.write(torn)
    assert [each.update for each in read_records(path)] == [1]
    sink = JsonlSink(path)
    sink.write(record(2))
    sink.close()
    assert [json.loads(line)["update"] for line in path.read_text().splitlines()] == [1, 2]


def test_a_file_of_nothing_but_a_torn_line_begins_anew(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"upd')
    sink = JsonlSink(path)
    sink.write(record(1))
    sink.close()
    assert len(path.read_text().splitlines()) == 1


def test_read_records_round_trip_and_missing_file(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_records(path) == []
    sink = JsonlSink(path)
    sink.write(record(1, **{"loss/value": 0.5}))
    sink.close()
    with open(path, "a") as file:
        file.write('[]\n{"update": 1}\n')
        whole = json.dumps({"update": 2, "env_steps": 128, "frames": 128, "wall_seconds": 1.0, "huge": 10**400})
        file.write(f'{{"update": 2, "env_st{whole}\n')  # the beginning is a crash's, the rest the next process's
    assert [each.update for each in read_records(path)] == [1, 2]
    assert read_records(path)[0] == record(1, **{"loss/value": 0.5})
    assert read_records(path)[1].values == {}


def test_tensorboard_can_be_switched_off(tmp_path):
    for directory, options in (("on", MetricsConfig()), ("off", MetricsConfig(tensorboard=False))):
        (tmp_path / directory).mkdir()
        sinks = make_sinks(options, tmp_path / directory, facts(), print, quiet=True)
        sinks.write(record())
        sinks.close()
    assert (tmp_path / "on" / "tensorboard").is_dir()
    assert sorted(path.name for path in (tmp_path / "off").iterdir()) == ["metrics.jsonl"]


def test_sinks_that_were_made_are_closed_when_one_is_refused(tmp_path, monkeypatch):
    import socket

    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    monkeypatch.setitem(__import__("sys").modules, "wandb", None)
    options = MetricsConfig(prometheus_port=port, wandb=True)
    with pytest.raises(UserError, match=r"pip install 'jaxsrl\[wandb\]'"):
        make_sinks(options, tmp_path, facts(), print, quiet=True)
    with socket.socket() as again, pytest.raises(ConnectionRefusedError):
        again.connect(("127.0.0.1", port))
