#!/usr/bin/python3
"""Servers and clients of the hosts: lib.bash describes their options.

  peer.py serve tcp|udp|ftp PORT [OPTION=VALUE…]
  peer.py ask   tcp|udp|ftp|ping ADDRESS PORT RATE [OPTION=VALUE…]

TCP speaks HTTP (curl works too). What became of each attempt is counted in the file $FELT."""
import asyncio
import collections
import contextlib
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
    with contextlib.suppress(OSError, asyncio.IncompleteReadError):
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
    def connection_made(self, transport):
        self.transport = transport
    def datagram_received(self, data, source):
        felt["datagrams"] += 1
        if not self.silent:
            self.transport.sendto(b"x" * int(data.split()[0]), source)

async def serve(kind, port, *options):
    o = dict(x.split("=", 1) for x in options)
    bind = o.get("bind", "0.0.0.0")
    if kind == "udp":
        AnswerUDP.silent = o.get("answer") == "no"
        await asyncio.get_running_loop().create_datagram_endpoint(AnswerUDP, (bind, int(port)))
    else:
        answer = answer_ftp if kind == "ftp" else answer_tcp
        await asyncio.start_server(lambda r, w: answer(r, w, o), bind, int(port), backlog=1000)
    await report(f"serves {kind} {port}")

def opened(address, kind, o):
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    s = socket.socket(family, socket.SOCK_DGRAM if kind == "udp" else socket.SOCK_STREAM)
    s.setblocking(False)
    s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    if "mark" in o:
        s.setsockopt(socket.SOL_SOCKET, socket.SO_MARK, int(o["mark"], 0))
    if "from" in o or "port" in o:
        s.bind((o.get("from", "::" if ":" in address else "0.0.0.0"), int(o.get("port", 0))))
    return s

async def ask_tcp(address, port, o, stage):
    loop, wait, up = asyncio.get_running_loop(), float(o.get("timeout", 2)), int(o.get("up", 0))
    s = opened(address, "tcp", o)
    await asyncio.wait_for(loop.sock_connect(s, (address, port)), wait)
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

async def ask_udp(address, port, o, stage):
    loop, s = asyncio.get_running_loop(), opened(address, "udp", o)
    try:
        await loop.sock_connect(s, (address, port))
        await loop.sock_sendall(s, str(o.get("down", 100)).encode().ljust(int(o.get("up", 50))))
        if o.get("answer") == "no":
            return "sent"
        await asyncio.wait_for(loop.sock_recv(s, 65536), float(o.get("timeout", 1)))
    finally:
        s.close()
    return "ok"

async def flow(address, port, rate, seconds, o):
    async def counted(what, f, *args):
        try:
            await f(*args)
            felt[what] += 1
            return True
        except OSError as e:
            felt[os.strerror(e.errno).lower()] += 1
    async def answers():
        while True:
            if await counted("answered", loop.sock_recv, s, 65536) and "echo" in o:
                await counted("echoed", loop.sock_sendall, s, b"100")
    loop, s = asyncio.get_running_loop(), opened(address, "udp", o)
    await loop.sock_connect(s, (address, port))
    reader = asyncio.create_task(answers())
    for _ in range(int(rate * seconds)):
        await counted("sent", loop.sock_sendall, s, str(o.get("down", 100)).encode().ljust(int(o.get("up", 50))))
        await asyncio.sleep(1 / rate)
    await reader

async def attempt(ask, *args):
    stage = [""]
    try:
        felt[await ask(*args, stage)] += 1
    except (asyncio.TimeoutError, asyncio.IncompleteReadError) as e:
        felt[stage[0] + ("closed" if hasattr(e, "partial") else "timeout")] += 1
    except OSError as e:
        felt[stage[0] + (os.strerror(e.errno) if e.errno else type(e).__name__).lower()] += 1

async def ping(address, rate, o):
    p = await asyncio.create_subprocess_exec(
        "setpriv", "--pdeathsig", "KILL", "ping", "-n", "-O", "-i", str(1 / rate), "-s", o.get("up", "56"), *(["-M", o["pmtu"]] if "pmtu" in o else []),
        *(["-I", o["from"]] if "from" in o else []), address, stdout=asyncio.subprocess.PIPE)
    while line := (await p.stdout.readline()).decode():
        if line.startswith("From "):
            felt[re.sub(r".*icmp_seq=\d+ ", "", line).strip().lower()] += 1
        elif "icmp_seq=" in line:
            felt["ok" if "bytes from" in line else "timeout"] += 1

async def ask(kind, address, port, rate, *options):
    o = dict(x.split("=", 1) for x in options)
    rate, seconds = float(rate), min(float(o.get("for", 60)), 60)
    shown = "".join(" " + x for x in options)
    reporting = asyncio.create_task(report(f"asks {kind} {address}:{port}, {rate:g}/s{shown}"))
    await asyncio.sleep(float(o.get("after", 0.7)))
    if kind == "ping":
        await asyncio.wait_for(ping(address, rate, o), seconds)
    if kind == "udp" and "port" in o:  # one flow, as of a phone
        return await flow(address, int(port), rate, seconds, o)
    what = {"tcp": ask_tcp, "udp": ask_udp, "ftp": ask_ftp}[kind]
    running = set()
    for _ in range(int(rate * seconds)):
        t = asyncio.create_task(attempt(what, address, int(port), o))
        running.add(t)
        t.add_done_callback(running.discard)
        await asyncio.sleep(1 / rate)
    await reporting

signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
asyncio.run({"serve": serve, "ask": ask}[sys.argv[1]](*sys.argv[2:]))
