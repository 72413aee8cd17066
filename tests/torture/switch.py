"""A switch between network interfaces that cuts hosts off, delays frames and loses some: no kernel module needed.

`switch.py INTERFACE ...`: forwards frames. Lines of JSON on the standard input say what happens to them from then on:
{"loss": 0.05, "delay": 0.02, "cut": ["to2"], "seed": 1}. `switch.py --plain INTERFACE`: makes an interface's owner
compute checksums and cut packets itself, since nothing behind a switch of this kind does it.
"""

from __future__ import annotations

import ctypes
import fcntl
import heapq
import json
import random
import select
import socket
import struct
import sys
import time

ALL_PROTOCOLS, OUTGOING = 3, 4
SET_FEATURE = 0x8946
CHECKSUMS, SEGMENTS, GENERIC_SEGMENTS, GENERIC_RECEIVE = 0x17, 0x1F, 0x24, 0x2C


def plain(interface: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for feature in (SEGMENTS, GENERIC_SEGMENTS, GENERIC_RECEIVE, CHECKSUMS):
            value = ctypes.create_string_buffer(struct.pack("II", feature, 0))
            fcntl.ioctl(asked, SET_FEATURE, struct.pack("16sP", interface.encode(), ctypes.addressof(value)))


def forward(names: list[str]) -> None:
    ports = {}
    for name in names:
        port = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(ALL_PROTOCOLS))
        port.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 23)
        port.bind((name, 0))
        port.setblocking(False)
        ports[name] = port
    by_port = {port.fileno(): name for name, port in ports.items()}
    known: dict[bytes, str] = {}
    waiting: list[tuple[float, int, str, bytes]] = []
    harm: dict[str, object] = {"loss": 0.0, "delay": 0.0, "cut": []}
    chance, count = random.Random(0), 0
    print("here", flush=True)
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for ready in select.select([*ports.values(), sys.stdin], [], [], left)[0]:
            if ready is sys.stdin:
                line = sys.stdin.readline()
                if not line:
                    return
                harm.update(json.loads(line))
                chance = random.Random(str(harm.get("seed")))
                print("done", flush=True)
                continue
            came = by_port[ready.fileno()]
            for _ in range(64):
                try:
                    frame, (_, _, kind, *_) = ready.recvfrom(1 << 16)
                except OSError:
                    break  # nothing left, or the host has ended
                if kind == OUTGOING:
                    continue
                known[frame[6:12]] = came
                to = known.get(frame[:6])
                cut = harm["cut"]
                assert isinstance(cut, list)
                if came in cut or chance.random() < float(str(harm["loss"])):
                    continue
                for name in [to] if to is not None else [name for name in names if name != came]:
                    if name not in cut:
                        count += 1
                        heapq.heappush(waiting, (time.monotonic() + float(str(harm["delay"])), count, name, frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, _, name, frame = heapq.heappop(waiting)
            try:
                ports[name].send(frame)
            except OSError:
                continue  # a full queue loses frames, as a real one does


if __name__ == "__main__":
    if sys.argv[1] == "--plain":
        plain(sys.argv[2])
    else:
        forward(sys.argv[1:])
