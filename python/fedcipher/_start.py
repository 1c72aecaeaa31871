"""Makes Ctrl-C end the program without a traceback while it loads. Imported first."""

import signal
import sys
from pathlib import PurePath

# "-m" means that a module of this package is about to run. Other programs that import the package stay unchanged.
_PROGRAMS = ("fedcipher", "-m")

if PurePath((sys.argv or [""])[0]).name in _PROGRAMS and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
