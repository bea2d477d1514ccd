"""A rank without torch: it stops by 75 as a `Run` does, or fails. Arguments: seconds, and a text to fail with."""

import os
import signal
import sys
import time

names = []
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, lambda number, _: names.append(signal.Signals(number).name))
rank = f"{os.environ['RANK']} of {os.environ['WORLD_SIZE']}"
place = f"{os.environ['SLURMD_NODENAME']} {os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
print(f"began {os.environ['PENSTOCK_ATTEMPT']}: {rank} on {place}\n", end="", flush=True)
until = time.monotonic() + float(sys.argv[1])
while not names and time.monotonic() < until:
    time.sleep(0.05)
if names:
    time.sleep(1)  # it saves
    print(f"heard {names[0]}\n", end="", flush=True)
    sys.exit(75)
if len(sys.argv) > 2:
    raise ValueError(sys.argv[2])
print("done\n", end="", flush=True)
