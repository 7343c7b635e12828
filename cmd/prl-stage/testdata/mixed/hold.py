"""Holds rollouts in their middle, so that a process can be killed there."""

import os

held = 0


def hold():
    """Says whether the caller waits for ever. The first process that holds two writes its number to the file that PRL's test names;
    from then on nobody waits."""
    global held
    path = os.environ["MIXED_HELD"]
    if not path or os.path.exists(path):
        return False
    held += 1
    if held == 2:
        with open(path + ".new", "w") as f:
            f.write(str(os.getpid()))
        os.rename(path + ".new", path)
    return True
