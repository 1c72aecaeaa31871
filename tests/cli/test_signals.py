"""A signal that ends a program is never lost, and a second one ends it at once, whatever the program is doing."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time

import pytest
from fedcipher._scratch import remove, scratch_folder
from fedcipher._signals import Terminated, defer_termination, mark_handled, raise_on_termination

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no such signals")

PROGRAM = """
import ctypes, gc, os, signal, sys, time
from fedcipher._scratch import scratch_folder
from fedcipher._signals import Terminated, raise_on_termination

def signalled(*_):
    # The handler runs here, where its exception is dropped.
    if not told:
        told.append(1)
        os.kill(os.getpid(), signal.{name})

class Dropped:
    __del__ = signalled

told = []
try:
    with raise_on_termination():
        {body}
        time.sleep(60)
except Terminated as terminated:
    sys.exit(terminated.report())
"""

LOST = {
    "a collector's callback": "gc.callbacks.append(signalled); gc.collect()",
    "a finaliser": "Dropped()",
    "a callback of C": "ctypes.CFUNCTYPE(None)(signalled)()",
    "code that catches all": """
        try:
            signalled()
        except BaseException:
            pass
""".strip(),
}


def started(program, **more):
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    return subprocess.Popen([sys.executable, "-c", program], **pipes, **more)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("where", LOST)
def test_an_exception_that_is_dropped_is_raised_again(where, how):
    with started(PROGRAM.format(name=how.name, body=LOST[where])) as process:
        said = process.communicate(timeout=30)[1]
    assert process.returncode == 128 + how
    assert said == f"fedcipher: {'interrupted' if how == signal.SIGINT else f'ended by {how.name}'}\n"


LOOP = """
import asyncio, os, signal, sys
from fedcipher._signals import Terminated, raise_on_termination

if {uvloop}:
    import uvloop
    uvloop.install()


async def served():
    def again():
        loop.call_soon(again)

    loop = asyncio.get_running_loop()
    loop.call_soon(again)
    print("here", flush=True)
    await asyncio.sleep(60)


try:
    with raise_on_termination():
        asyncio.run(served())
except Terminated as terminated:
    sys.exit(terminated.report())
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("uvloop", [False, True])
def test_a_signal_in_an_event_loop_ends_it(uvloop, how):
    """A loop logs what its callbacks raise and goes on, but for `SystemExit`; the log kept the exception alive."""
    if uvloop:
        pytest.importorskip("uvloop")
    with started(LOOP.format(uvloop=uvloop)) as process:
        assert process.stdout.readline() == "here\n"
        process.send_signal(how)
        said = process.communicate(timeout=30)[1]
    assert process.returncode == 128 + how
    assert said == f"fedcipher: ended by {how.name}\n"


BUSY = {
    "foreign code": """
        lock = ctypes.create_string_buffer(128)
        library = ctypes.CDLL(None)
        library.pthread_mutex_lock(lock)
        print("here", folder, flush=True)
        library.pthread_mutex_lock(lock)
""",
    "code that catches all": """
        print("here", folder, flush=True)
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
""",
    "slow cleaning up": """
        print("here", folder, flush=True)
        try:
            time.sleep(60)
        finally:
            time.sleep(60)
""",
}


@pytest.mark.skipif(sys.platform != "linux", reason="a mutex of zeros is Linux's")
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("where", BUSY)
def test_a_second_signal_ends_the_process_at_once_and_leaves_no_folder(where, how):
    body = f'with scratch_folder("fedcipher-test-") as folder:{BUSY[where].replace("        ", "            ")}'
    with started(PROGRAM.format(name=how.name, body=body)) as process:
        here, folder = process.stdout.readline().split()
        assert here == "here" and os.path.isdir(folder)
        time.sleep(1)
        process.send_signal(how)
        time.sleep(2)
        assert process.poll() is None
        process.send_signal(how)
        said = process.communicate(timeout=30)[1]
    assert process.returncode == 128 + how
    assert said == "fedcipher: ended at once by a second signal\n"
    assert not os.path.exists(folder)


def test_signals_at_the_same_moment_are_one_and_cleaning_up_ends():
    body = """
        try:
            print("here", flush=True)
            time.sleep(60)
        finally:
            time.sleep(1)
            print("cleaned up", flush=True)
""".strip()
    with started(PROGRAM.format(name="SIGTERM", body=body)) as process:
        assert process.stdout.readline() == "here\n"
        # A terminal that closes: the kernel and the shell both send it.
        for how in (signal.SIGHUP, signal.SIGHUP, signal.SIGTERM):
            process.send_signal(how)
        out, _ = process.communicate(timeout=30)
    assert process.returncode in (128 + signal.SIGHUP, 128 + signal.SIGTERM)
    assert out == "cleaned up\n"


def test_a_signal_in_a_deferred_block_is_raised_at_its_end():
    steps = []
    with pytest.raises(Terminated, match="SIGTERM"), raise_on_termination():
        with defer_termination():
            with defer_termination():
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(1)
            steps.append("inner")
        steps.append("not reached")
    assert steps == ["inner"]


def test_a_termination_that_is_handled_is_not_raised_again():
    with raise_on_termination():
        try:
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(60)
        except Terminated:
            mark_handled()
        time.sleep(1.5)


def test_a_program_that_ignores_its_termination_ends_by_it_nevertheless():
    body = """
        try:
            signalled()
        except BaseException:
            pass
        sys.exit(0)
""".strip()
    with started(PROGRAM.format(name="SIGTERM", body=body)) as process:
        process.communicate(timeout=30)
    assert process.returncode == -signal.SIGTERM


def test_a_second_signal_is_heard_where_a_library_has_set_its_own_wakeup_descriptor():
    body = """
        signal.set_wakeup_fd(-1)
        print("here", flush=True)
        while True:
            try:
                time.sleep(60)
            except BaseException:
                pass
""".strip()
    with started(PROGRAM.format(name="SIGTERM", body=body)) as process:
        assert process.stdout.readline() == "here\n"
        for _ in range(2):
            time.sleep(1.5)
            process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=30)[1]
    assert process.returncode == 128 + signal.SIGTERM
    assert said == "fedcipher: ended at once by a second signal\n"


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_that_interrupts_no_system_call_is_heard(how):
    # As if it had come just before the call: another thread takes it.
    body = f"""
        print("here", flush=True)
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.{how.name}])
        time.sleep(60)
""".strip()
    with started(PROGRAM.format(name="SIGTERM", body=body)) as process:
        assert process.stdout.readline() == "here\n"
        time.sleep(0.5)
        process.send_signal(how)
        process.communicate(timeout=30)
    assert process.returncode == 128 + how


def test_a_forked_child_has_the_earlier_handlers():
    with raise_on_termination():
        child = os.fork()
        if child == 0:
            try:
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(60)
            finally:
                os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGTERM


@pytest.mark.parametrize("step", ["mkdtemp", "rmtree"])
def test_a_signal_while_a_scratch_folder_is_made_or_removed_leaves_none(tmp_path, monkeypatch, step):
    from fedcipher import _scratch

    module = _scratch.tempfile if step == "mkdtemp" else _scratch.shutil
    done = getattr(module, step)

    def signalled(*arguments, **options):
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(0.01)
        return done(*arguments, **options)

    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(_scratch.tempfile, "tempdir", None)
    monkeypatch.setattr(module, step, signalled)
    with pytest.raises(Terminated), raise_on_termination(), scratch_folder("fedcipher-test-") as folder:
        assert step == "rmtree" and os.path.isdir(folder)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("name", "ours"), [("fedcipher", True), ("-m", True), ("somebody's.py", False)])
def test_ctrl_c_while_the_program_loads_ends_it_without_a_traceback(name, ours):
    program = f"""
import os, signal, sys
sys.argv = [{name!r}]
signal.signal(signal.SIGINT, signal.default_int_handler)
import fedcipher._start
os.kill(os.getpid(), signal.SIGINT)
"""
    with started(program) as process:
        said = process.communicate(timeout=30)[1]
    assert process.returncode == -signal.SIGINT
    assert ("KeyboardInterrupt" in said) is not ours
    assert ours is (said == "")


def test_a_folder_is_removed_while_another_thread_writes_into_it(tmp_path):
    """One pass over the folder leaves what was written since it has listed it."""
    folder, begun = tmp_path / "scratch", threading.Event()
    folder.mkdir()

    def write():
        with contextlib.suppress(OSError):
            for k in range(1_000_000):
                (folder / str(k)).touch()
                begun.set()

    writers = [threading.Thread(target=write) for _ in range(4)]
    for writer in writers:
        writer.start()
    assert begun.wait(10)
    remove(str(folder))
    for writer in writers:
        writer.join()
    assert not folder.exists()
