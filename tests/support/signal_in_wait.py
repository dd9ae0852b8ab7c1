"""A stop signal at the worst moment: while this thread holds the lock of a condition that its handler may need."""

import contextlib
import os
import signal
import sys
import threading


class InterruptingProcess:
    """Stands for a process that never ends by itself. This process receives SIGTERM whenever it polls it."""

    def poll(self):
        os.kill(os.getpid(), signal.SIGTERM)

    def send_signal(self, number):
        pass

    def wait(self, timeout=None):
        return -15

    def kill(self):
        pass


@contextlib.contextmanager
def signal_in_a_wait(seconds=120.0):
    """Sends SIGTERM at the first wait for a condition, with its lock held.

    Raises:
        TimeoutError: the body took longer, for its handler waits for that lock.
    """

    def trace(frame, event, _):
        if frame.f_code is threading.Condition.wait.__code__:
            os.kill(os.getpid(), signal.SIGTERM)

    def give_up(number, frame):
        raise TimeoutError("the handler of a signal waits for a lock that the code below it holds")

    before = signal.signal(signal.SIGUSR2, give_up)
    timer = threading.Timer(seconds, signal.pthread_kill, (threading.get_ident(), signal.SIGUSR2))
    timer.start()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(None)
        timer.cancel()
        timer.join()
        signal.signal(signal.SIGUSR2, before)
