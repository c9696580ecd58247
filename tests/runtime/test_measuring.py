"""One process at a time measures on a device."""

import contextlib
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from blockbuster_fusion.runtime import measuring as module
from blockbuster_fusion.runtime.measuring import lock_file, measuring

HOLD = """
import sys, time
from blockbuster_fusion.runtime.measuring import measuring
with measuring(sys.argv[1]):
    print("held", flush=True)
    time.sleep(float(sys.argv[2]))
"""


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a device that no other test measures on."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr(module.tempfile, "tempdir", str(tmp_path))
    return f"device-{os.getpid()}"


def is_held(device: str) -> bool:
    """True if this process holds the lock of a device."""
    return module._devices[device].file is not None


@contextlib.contextmanager
def holder(device: str, seconds: float) -> Iterator[subprocess.Popen[str]]:
    """A process that measures on a device; it is ended at last."""
    command = [sys.executable, "-c", HOLD, device, str(seconds)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as made:
        assert made.stdout is not None
        assert made.stdout.readline() == "held\n"
        yield made
        made.kill()


def test_processes_take_turns(device: str) -> None:
    with holder(device, 0.5) as other, measuring(device):
        assert other.wait(5) == 0  # it has ended, or is about to


def test_a_killed_process_frees_the_lock(device: str) -> None:
    with holder(device, 60) as other:
        other.kill()
        start = time.monotonic()
        with measuring(device):
            assert time.monotonic() - start < 30


def test_nobody_waits_for_ever(device: str, caplog: pytest.LogCaptureFixture) -> None:
    with holder(device, 60), measuring(device, longest=0.1):
        assert "another process has been measuring" in caplog.text


def test_measurements_of_one_process_may_be_nested(device: str) -> None:
    with measuring(device), measuring(device), measuring(device):
        assert is_held(device)
    assert not is_held(device)


def test_the_lock_is_freed_when_a_measurement_fails(device: str) -> None:
    with pytest.raises(ZeroDivisionError), measuring(device):
        raise ZeroDivisionError
    assert not is_held(device)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_process_holds_no_lock(device: str) -> None:
    with measuring(device):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(30,))
        child.start()
    with holder(device, 0) as other:  # would wait for the child otherwise
        assert other.wait(10) == 0
    child.kill()
    child.join()
    child.close()


def test_a_folder_that_cannot_be_written_is_no_fault(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module.tempfile, "tempdir", "/nowhere")
    with measuring(device):
        assert not is_held(device)


def test_another_device_does_not_wait(device: str) -> None:
    def wait() -> None:
        with measuring(device, longest=20):
            pass

    with holder(device, 60) as other:
        waiting = threading.Thread(target=wait)
        waiting.start()
        start = time.monotonic()
        with measuring(f"other-{device}"):
            assert time.monotonic() - start < 10
        other.kill()
        waiting.join()


def test_a_device_without_a_number_is_the_first_one() -> None:
    assert lock_file("cuda") == lock_file("cuda:0") != lock_file("cuda:1")
    assert lock_file("cpu") != lock_file("cuda")
