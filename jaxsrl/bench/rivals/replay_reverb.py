"""Reverb in a separate process, with the interpreter of an environment that has it.

Its newest release (dm-reverb 0.14.0) requires TensorFlow 2.15 and with it numpy 1, which conflicts with our dependencies.
"""

import contextlib
import dataclasses
import json
import subprocess
from collections.abc import Iterator
from functools import partial

from envpool_bridge.errors import UserError
from jaxsrl.bench.processes import answering_processes
from jaxsrl.bench.replay_sizes import BenchSizes
from jaxsrl.bench.rivals.replay_buffers import Contender

# Run as `python -c SCRIPT sizes priority_exponent`; answers "insert SECONDS", "sample SECONDS", "some" and "memory".
_SCRIPT = """
import json, sys, time
import numpy as np
import reverb, tensorflow as tf
sizes, exponent = json.loads(sys.argv[1]), float(sys.argv[2])
rows, steps, batch, length = sizes["num_rows"], sizes["rollout_length"], sizes["batch_size"], sizes["frames"] + 1
shape, dtype = sizes["shape"], np.dtype(sizes["dtype"])
rng = np.random.default_rng(0)
observation = rng.integers(0, 256, (steps, rows, *shape)) if dtype.kind in "iu" else rng.normal(size=(steps, rows, *shape))
fields = {
    "observation": observation.astype(dtype),
    "is_first": rng.random((steps, rows)) < 0.01,
    "action": rng.integers(0, 6, (steps, rows)).astype(np.int32),
    "reward": rng.normal(size=(steps, rows)).astype(np.float32),
    **{name: rng.random((steps, rows)) < 0.01 for name in ("terminated", "truncated", "valid")},
    "policy_version": np.zeros((steps, rows), np.int32),
}
sampler = reverb.selectors.Prioritized(exponent) if exponent else reverb.selectors.Uniform()
table = reverb.Table("replay", sampler, reverb.selectors.Fifo(), sizes["capacity"], reverb.rate_limiters.MinSize(1))
server = reverb.Server([table])
client = reverb.Client(f"localhost:{server.port}")
writers = [client.trajectory_writer(num_keep_alive_refs=length) for _ in range(rows)]
written = [0]

def insert_one():
    for step in range(steps):
        written[0] += 1
        for row, writer in enumerate(writers):
            writer.append({name: values[step, row] for name, values in fields.items()})
            if written[0] >= length:
                window = {name: column[-length:] if name in ("observation", "is_first") else column[-2:-1]
                          for name, column in writer.history.items()}
                writer.create_item("replay", priority=1.0, trajectory=window)
    for writer in writers:
        writer.flush()

spans = {name: length if name in ("observation", "is_first") else 1 for name in fields}
dataset = reverb.TrajectoryDataset(
    client.server_address, "replay",
    dtypes={name: tf.as_dtype(values.dtype) for name, values in fields.items()},
    shapes={name: tf.TensorShape((spans[name], *values.shape[2:])) for name, values in fields.items()},
    max_in_flight_samples_per_worker=2 * batch,
)
batches = None

def sample_one():
    global batches
    if batches is None:
        batches = dataset.batch(batch).prefetch(1).as_numpy_iterator()
    sample = next(batches)
    if exponent:
        priorities = np.abs(sample.data["reward"][:, 0]).tolist()
        client.mutate_priorities("replay", updates=dict(zip(sample.info.key.tolist(), priorities)))

def rate(call, seconds):
    turns, start = 0, time.perf_counter()
    while True:
        call()
        turns += 1
        elapsed = time.perf_counter() - start
        if elapsed >= seconds:
            return turns / elapsed

def resident():
    return next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmRSS:"))

before = resident()
print("ready", flush=True)
for line in sys.stdin:
    what, *numbers = line.split()
    if what == "insert":
        answer = rate(insert_one, float(numbers[0])) * rows * steps
    elif what == "sample":
        answer = rate(sample_one, float(numbers[0])) * batch
    elif what == "some":
        insert_one()
        answer = rows * steps
    else:
        answer = (resident() - before) / min(sizes["capacity"], written[0] * rows)
    print(answer, flush=True)
"""


@contextlib.contextmanager
def reverb_contender(sizes: BenchSizes, priority_exponent: float, python: str) -> Iterator[Contender]:
    """Yields Reverb's server and client in one process: a writer per row, an item per step, a TensorFlow dataset.

    Raises:
        UserError: If the interpreter has no dm-reverb.
    """
    settings = json.dumps(dataclasses.asdict(sizes))
    command = [python, "-c", _SCRIPT, settings, str(priority_exponent)]
    with contextlib.ExitStack() as stack:
        try:
            started = answering_processes([command], "Reverb", stderr=subprocess.DEVNULL)
            (process,) = stack.enter_context(started)
        except (OSError, RuntimeError) as error:
            raise UserError(
                f"expected {python} to have dm-reverb: it did not start; see `{python} -c 'import reverb'`"
            ) from error
        yield Contender(
            partial(process.ask, "some"),
            lambda seconds: process.ask(f"insert {seconds}", seconds),
            lambda seconds: process.ask(f"sample {seconds}", seconds),
            partial(process.ask, "memory"),
        )
