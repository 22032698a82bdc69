#!/usr/bin/python3
"""Servers and clients of the hosts: lib.bash describes their options.

  peer.py serve tcp|udp|ftp PORT [OPTION=VALUE…]
  peer.py ask   tcp|udp|ftp|ping ADDRESS PORT RATE [OPTION=VALUE…]

TCP speaks HTTP (curl works too). What became of each attempt is counted in the file $FELT."""
import asyncio
import collections
import os
import re
import signal
import socket
import sys

felt = collections.Counter()

async def report(title):
    while True:
        counts = ", ".join(f"{what} {n}" for what, n in sorted(felt.items())) or "nothing yet"
        with open(os.environ["FELT"] + ".new", "w") as f:
            f.write(f"{os.environ['NODE']} {title}: {counts}\n")
        os.replace(os.environ["FELT"] + ".new", os.environ["FELT"])
        await asyncio.sleep(0.3)

async def answer_tcp(r, w, o):
    felt["connections"] += 1
    try:
        while line := await r.readline():
            up, down = 0, int(re.match(rb"GET /(\d*)", line)[1] or 100)
            while (line := (await r.readline()).lower().strip()):
                if line.startswith(b"content-length:"):
                    up = int(line[15:])
            await r.readexactly(up)
            await asyncio.sleep(float(o.get("delay", 0)))
            w.write(f"HTTP/1.1 200 OK\r\nServer: {os.environ['NODE']}\r\nContent-Length: {down}\r\n\r\n".encode())
            w.write(b"x" * down)
            await w.drain()
    except (OSError, asyncio.IncompleteReadError):
        pass
    w.close()

async def answer_ftp(r, w, o):
    address = w.get_extra_info("sockname")[0]
    data = await asyncio.start_server(lambda _, d: (d.write(b"file"), d.close()), address)
    port = data.sockets[0].getsockname()[1]
    w.write(b"220 ready\r\n")
    while line := await r.readline():
        if line.startswith(b"PASV"):
            at = f"{address.replace('.', ',')},{port >> 8},{port & 255}"
            w.write(f"227 Entering Passive Mode ({at}).\r\n".encode())
    data.close()
    w.close()

class AnswerUDP(asyncio.DatagramProtocol):
    def __init__(self, o):
        self.o = o

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, source):
        felt["datagrams"] += 1
        if self.o.get("answer") != "no":
            self.transport.sendto(b"x" * int(data.split()[0]), source)

async def serve(kind, port, *options):
    o = dict(x.split("=", 1) for x in options)
    bind = o.get("bind", "0.0.0.0")
    if kind == "udp":
        await asyncio.get_running_loop().create_datagram_endpoint(lambda: AnswerUDP(o), (bind, int(port)))
    else:
        answer = answer_ftp if kind == "ftp" else answer_tcp
        await asyncio.start_server(lambda r, w: answer(r, w, o), bind, int(port), backlog=1000)
    await report(f"serves {kind} {port}")

def opened(address, kind, o):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    s = socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    s.setblocking(False)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if "from" in o or "port" in o:
        s.bind((o.get("from", "::" if ":" in address else "0.0.0.0"), int(o.get("port", 0))))
    if "mark" in o:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, int(o["mark"], 0))
    return s

async def ask_tcp(address, port, o, stage):
    loop, wait, up = asyncio.get_running_loop(), float(o.get("timeout", 2)), int(o.get("up", 0))
    s = opened(address, "tcp", o)
    try:
        await asyncio.wait_for(loop.sock_connect(s, (address, port)), wait)
    except BaseException:
        s.close()
        raise
    r, w = await asyncio.open_connection(sock=s)
    try:
        for i in range(int(o.get("requests", 1))):
            stage[0] = "later " if i else "connected, then "
            w.write(f"GET /{o.get('down', 100)} HTTP/1.1\r\nHost: x\r\nContent-Length: {up}\r\n\r\n".encode() + b"x" * up)
            head = await asyncio.wait_for(r.readuntil(b"\r\n\r\n"), wait)
            await asyncio.wait_for(r.readexactly(int(head.split(b"Length: ")[1])), wait)
            if "want" in o and f"Server: {o['want']}\r".encode() not in head:
                return "wrong server"
            await asyncio.sleep(float(o.get("gap", 0)))
    finally:
        w.transport.abort() if "abort" in o else w.close()
    return "ok"

async def ask_ftp(address, port, o, stage):
    r, w = await asyncio.wait_for(asyncio.open_connection(address, port), 2)
    try:
        stage[0] = "control "
        await asyncio.wait_for(r.readline(), 2)
        w.write(b"PASV\r\n")
        n = re.search(rb"\((.*)\)", await asyncio.wait_for(r.readline(), 2))[1].split(b",")
        stage[0] = "data "
        d = await asyncio.wait_for(asyncio.open_connection(b".".join(n[:4]).decode(), int(n[4]) * 256 + int(n[5])), 2)
        d[1].close()
    finally:
        w.close()
    return "ok"

async def ask_udp(address, port, o, stage, s=None):
    loop, own = asyncio.get_running_loop(), s is None
    s = s or opened(address, "udp", o)
    try:
        if own:
            await loop.sock_connect(s, (address, port))
        await loop.sock_sendall(s, str(o.get("down", 100)).encode().ljust(int(o.get("up", 50))))
        if o.get("answer") == "no":
            return "sent"
        await asyncio.wait_for(loop.sock_recv(s, 65536), float(o.get("timeout", 1)))
    finally:
        if own:
            s.close()
    return "ok"

async def attempt(ask, *args):
    stage = [""]
    try:
        felt[await ask(*args, stage)] += 1
    except asyncio.TimeoutError:
        felt[stage[0] + "timeout"] += 1
    except asyncio.IncompleteReadError:
        felt[stage[0] + "closed"] += 1
    except OSError as e:
        felt[stage[0] + (os.strerror(e.errno) if e.errno else type(e).__name__).lower()] += 1

async def ping(address, rate, o):
    p = await asyncio.create_subprocess_exec(
        "setpriv", "--pdeathsig", "KILL", "ping", "-n", "-O", "-i", str(1 / rate), "-s", o.get("up", "56"), *(["-M", o["pmtu"]] if "pmtu" in o else []),
        *(["-I", o["from"]] if "from" in o else []), address, stdout=asyncio.subprocess.PIPE)
    while line := (await p.stdout.readline()).decode():
        if "bytes from" in line:
            felt["ok"] += 1
        elif "no answer yet" in line:
            felt["timeout"] += 1
        elif line.startswith("From "):
            felt[re.sub(r".*icmp_seq=\d+ ", "", line).strip().lower()] += 1

async def ask(kind, address, port, rate, *options):
    o = dict(x.split("=", 1) for x in options)
    rate, seconds = float(rate), min(float(o.get("for", 60)), 60)
    shown = "".join(" " + x for x in options)
    task = asyncio.create_task(report(f"asks {kind} {address}:{port}, {rate:g}/s{shown}"))
    await asyncio.sleep(float(o.get("after", 0.7)))
    if kind == "ping":
        await asyncio.wait_for(ping(address, rate, o), seconds)
    what, s = {"tcp": ask_tcp, "udp": ask_udp, "ftp": ask_ftp}[kind], None
    if kind == "udp" and "port" in o:  # one flow, as of a phone
        s = opened(address, kind, o)
        await asyncio.get_running_loop().sock_connect(s, (address, int(port)))
    running = set()
    for _ in range(int(rate * seconds)):
        args = (address, int(port), o)
        t = asyncio.create_task(attempt(lambda *a: what(*a, s) if s else what(*a), *args))
        running.add(t)
        t.add_done_callback(running.discard)
        await asyncio.sleep(1 / rate)
    await task

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
asyncio.run({"serve": serve, "ask": ask}[sys.argv[1]](*sys.argv[2:]))
