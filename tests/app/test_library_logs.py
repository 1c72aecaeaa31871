"""A simulation that fails says why in one line; what the libraries have said is in a file."""

import logging
import subprocess
import sys

import pytest
from fedcipher import errors
from fedcipher.app.library_logs import capture_library_logs


@pytest.mark.parametrize("library", ["ray", "flwr", "ray._private.worker"])
def test_what_a_library_says_of_its_failure_is_kept_in_a_file_and_the_error_has_cause_and_advice(
    tmp_path, capfd, library
):
    log = tmp_path / "simulation.log"
    with pytest.raises(errors.RunError) as raised, capture_library_logs(log):
        logging.getLogger(library).error("pages of it %s", "\udcff")
        try:
            raise OSError("no room in /dev/shm")
        except OSError as cause:
            raise RuntimeError("backend has crashed") from cause
    said = str(raised.value)
    assert "no room in /dev/shm" in said and "RAY_TMPDIR" in said and str(log) in said and "\n" not in said
    assert "pages of it" in log.read_text() and "Traceback" in log.read_text()
    assert capfd.readouterr().err == ""


def test_an_error_of_fedcipher_that_libraries_have_wrapped_is_raised_as_it_was(tmp_path):
    ours = errors.StrategyError("ours")
    with pytest.raises(errors.StrategyError) as raised, capture_library_logs(tmp_path / "log"):
        try:
            raise ours
        except errors.StrategyError as cause:
            raise RuntimeError("backend has crashed") from cause
    assert raised.value is ours and not (tmp_path / "log").exists()


def test_afterwards_the_libraries_log_as_before(tmp_path):
    logger = logging.getLogger("flwr")
    before = list(logger.handlers), logger.level, logger.propagate
    with capture_library_logs(tmp_path / "log"):
        assert (list(logger.handlers), logger.level, logger.propagate) != before
    assert (list(logger.handlers), logger.level, logger.propagate) == before


@pytest.mark.skipif(sys.platform == "win32", reason="a limit of files")
def test_ray_that_does_not_start_costs_a_line_with_its_cause_and_advice(tmp_path):
    # No socket has a name as long.
    long = tmp_path / ("x" * 120)
    long.mkdir()
    program = (
        f"import os, sys; os.environ['RAY_TMPDIR'] = {str(long)!r}\n"
        "from fedcipher import cli\n"
        "sys.exit(cli.main(['train', '--clients', '3', '--rounds', '1', '--out', 'out']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=240, check=False
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    assert "RAY_TMPDIR" in done.stderr and "simulation.log" in done.stderr, done.stderr
    assert len(done.stderr.strip().splitlines()) <= 10, done.stderr
