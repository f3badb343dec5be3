"""Threads, signals, forks, memory and start-up."""

import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import ptero
import pytest


def test_threads_share_a_model(model: ptero.Model) -> None:
    expected = [model.generate("The king", seed=seed, max_tokens=10) for seed in range(8)]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda seed: model.generate("The king", seed=seed, max_tokens=10), list(range(8)) * 4))
    assert found == expected * 4


def test_python_goes_on_while_a_model_works(model: ptero.Model) -> None:
    done = threading.Event()

    def work() -> None:
        model.generate("The king", seed=1, max_tokens=400, ignore_eos=True)
        done.set()

    thread = threading.Thread(target=work)
    thread.start()
    ticks = 0
    while not done.is_set():
        ticks += 1
        time.sleep(0.001)
    thread.join()
    assert ticks > 5


def test_several_threads_may_read_one_stream(model: ptero.Model) -> None:
    whole = model.generate("The king", seed=7, max_tokens=64, ignore_eos=True)
    stream = model.stream("The king", seed=7, max_tokens=64, ignore_eos=True)
    with ThreadPoolExecutor(4) as pool:
        read = list(pool.map(lambda _: sum(1 for _ in stream), range(4)))
    assert sum(read) == len(whole.pieces) and stream.close().text == whole.text


def test_a_text_is_stopped_from_another_thread(model: ptero.Model) -> None:
    stream = model.stream("The king", seed=7, max_tokens=10**6, ignore_eos=True)
    next(stream)
    threading.Timer(0.1, stream.stop).start()
    result = stream.result()
    assert result.finish_reason in ("interrupted", "context")
    assert result.text == "".join(result.pieces)


@pytest.mark.skipif(sys.platform == "win32", reason="signals of POSIX")
@pytest.mark.parametrize(
    "work",
    [
        "model.generate('The king', max_tokens=10**6, ignore_eos=True)",
        "[model.generate('The king', max_tokens=9) for _ in iter(int, 1)]",
        "list(model.stream('The king', max_tokens=10**6, ignore_eos=True))",
        "model.generate_batch(['The king'] * 10**6, ignore_eos=True)",
        "[model.session().prefill([5] * 500) for _ in iter(int, 1)]",
    ],
)
def test_ctrl_c_stops_within_a_moment(work: str) -> None:
    # Where tests run in the background of a shell, Python inherits that the signal is ignored.
    program = f"""
import ptero, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
model = ptero.Model(threads=1)
model.generate("warm", max_tokens=1)
print("ready", flush=True)
try:
    while True:
        {work}
except KeyboardInterrupt:
    # The model goes on working.
    print(len(model.generate("The king", max_tokens=3, ignore_eos=True).tokens), flush=True)
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as child:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        time.sleep(0.4)
        child.send_signal(signal.SIGINT)
        try:
            out, _ = child.communicate(timeout=60)
        finally:
            child.kill()
        assert (out, child.returncode) == ("3\n", 0)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_is_told_to_open_the_model_again() -> None:
    program = """
import os, ptero
model = ptero.Model(threads=2)
model.generate("warm", max_tokens=1)
child = os.fork()
if child == 0:
    try:
        model.generate("The king", max_tokens=1)
    except ptero.errors.CallError as error:
        os._exit(0 if "forked" in str(error) else 2)
    os._exit(1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-W", "ignore", "-c", program], timeout=60, check=False).returncode == 0


def resident_bytes() -> int:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_memory_stays_flat_over_many_calls(model: ptero.Model) -> None:
    def round_of_calls() -> int:
        for number in range(int(os.environ.get("PTERO_CALLS", "40"))):
            model.generate("The king", seed=number, max_tokens=1)
            stream = model.stream("The king", seed=number, max_tokens=3)
            next(stream)
            if number % 10 == 0:
                model.generate_batch(["The king", "The sea"], seed=number, max_tokens=1)
                with pytest.raises(ptero.Error):
                    model.generate("The king", top_p=7.0)
        return resident_bytes()

    for _ in range(6):
        round_of_calls()
    rounds = [round_of_calls() for _ in range(12)]
    threads = threading.active_count()
    round_of_calls()
    # The allocator keeps ten megabytes here or there, for each thread; 24 are 25 kB for each text.
    assert min(rounds[-6:]) - min(rounds[:6]) < 24 << 20, rounds
    assert threading.active_count() == threads


@pytest.mark.skipif(not os.path.exists("/proc/self/statm"), reason="needs /proc")
def test_memory_stays_flat_over_many_rows(model: ptero.Model) -> None:
    sizes = []
    # Different prompts that are long enough to be kept for prompts that begin like them.
    prompts = (f"Chapter {row}. It was the best of times, it was the worst of times" for row in range(240))
    for _ in model.iterate_batch(prompts, seed=1, lanes=8, max_tokens=2):
        sizes.append(resident_bytes())
    assert sizes[-1] - sizes[120] < 64 << 20, sizes[::20]


def test_importing_is_quick_and_leaves_numpy_alone() -> None:
    program = """
import sys, time
start = time.perf_counter()
import ptero
seconds = time.perf_counter() - start
assert "numpy" not in sys.modules and "asyncio" not in sys.modules and "ray" not in sys.modules
print(seconds)
"""
    times = [
        float(subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout)
        for _ in range(3)
    ]
    assert min(times) < 0.1, times
