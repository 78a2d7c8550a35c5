"""Become a server's user, tie this process to its owner, and turn into the program.

Run by path in a fresh interpreter, never imported: the steps have to happen between fork
and exec, and there a threaded owner may run no Python of its own.

    python launch.py UID:GID|- OWNER_PID PROGRAM [ARGUMENT…]
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1  # <sys/prctl.h>


def main(user: str, owner: str, *command: str) -> None:
    """Replace this process by `command`; it gets SIGQUIT when the thread that started it ends."""
    if user != "-":
        uid, gid = user.split(":")
        os.setgroups([])
        os.setgid(int(gid))
        os.setuid(int(uid))
    # After setuid: a change of user clears the signal.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGQUIT)
    if os.getppid() != int(owner):  # it died before the line above
        sys.exit("the owner is gone")
    # exec passes on what is ignored: SIGPIPE by Python, SIGQUIT by a shell that starts us behind `&`.
    for signum in (signal.SIGPIPE, signal.SIGQUIT):
        signal.signal(signum, signal.SIG_DFL)
    os.execv(command[0], command)  # noqa: S606 (a shell here would be one more process between us)


if __name__ == "__main__":
    main(*sys.argv[1:])
