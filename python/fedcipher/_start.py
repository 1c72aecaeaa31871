"""Imported first, so that Ctrl-C ends the program without a traceback also while it loads."""

import signal
import sys
from pathlib import PurePath

# "-m": a module of this package is about to run. A program that imports it is another.
_OURS = ("fedcipher", "-m")

if PurePath((sys.argv or [""])[0]).name in _OURS and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
