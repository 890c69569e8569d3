"""What an exit says, in words that tell what to do.

Codes 200 to 245 are systemd's own, when it could not set the process up (systemd.exec(5), "Process Exit Codes").
"""

import signal

EXITED, KILLED, DUMPED = 1, 2, 3
"""CLD_* of waitid(2)."""

_SETUP = {
    200: "the working directory does not exist or cannot be entered; check spec.workingDir",
    202: "a file descriptor could not be set up",
    203: "the program could not be executed: it does not exist, is not executable, or is made for another platform",
    205: "a resource limit could not be set",
    206: "the out-of-memory score could not be set",
    208: "standard input could not be set up",
    209: "standard output could not be set up; is the journal running?",
    213: "the capabilities could not be set",
    214: "the scheduling priority could not be set",
    215: "the scheduler could not be set",
    216: "the group could not be set: it has no account on the node",
    217: "the user could not be set: it has no account on the node",
    218: "the capabilities could not be dropped",
    219: "the control group could not be entered",
    221: "the timer slack could not be set",
    222: "the secure bits could not be set",
    224: "PAM refused the session",
    225: "the network could not be separated",
    226: "the file systems could not be put together: a mountpoint or a source is missing",
    227: "no_new_privs could not be set",
    228: "the system call filter could not be applied; the node's kernel or systemd lacks it",
    229: "the SELinux context could not be set",
    230: "the personality could not be set",
    231: "the AppArmor profile could not be set",
    232: "the address families could not be restricted",
    233: "the runtime directory could not be made",
    235: "an owner could not be changed",
    236: "the accounts of the process could not be mapped to a namespace",
    237: "the keyring could not be set up",
    238: "the state directory could not be made",
    243: "a credential could not be loaded",
    244: "a BPF program could not be loaded",
    245: "an address family could not be set up",
}


def number(code: int, status: int) -> int | None:
    """Exit code as shells and Kubernetes count: 128 and the signal's number for a signal. None when nothing ended."""
    if code == EXITED:
        return status
    return 128 + status if code in (KILLED, DUMPED) else None


def setup_failure(code: int, status: int, ran_microseconds: int) -> str | None:
    """Why systemd could not set the process up, if that is what ended it: it then lived but for a moment."""
    if code != EXITED or ran_microseconds > 1_000_000:
        return None
    return _SETUP.get(status)


def sentence(code: int, status: int) -> str:
    """`exited with code 3`, `was killed by SIGSEGV and dumped core`."""
    if code == EXITED:
        return f"exited with code {status}"
    try:
        name = signal.Signals(status).name
    except ValueError:
        name = f"signal {status}"
    return f"was killed by {name}" + (" and dumped core" if code == DUMPED else "")
