"""KvikIO as one contestant of the benches.

Started by the benches with one argument, the job as JSON. Settings of KvikIO come by its own
environment variables. Says one line of JSON when it is ready, and answers each line of JSON on the
standard input with one: {"do": "run", "round": n} or {"do": "check"}. An answer with "error" is a
failure. Ends with the input.

It measures itself as the benches measure everybody: the window is first submit to last settle, CPU
time is that of all threads of this process. Starting up, obtaining memory, opening the file and
checking bytes lie outside.
"""

import gc
import json
import os
import random
import resource
import sys
import time
import traceback

CHECKED = 64 << 20


class CuPyMemory:
    """Bytes on the device, held by CuPy."""

    def __init__(self, length, device):
        import cupy

        self.cupy = cupy
        self.name = "CuPy " + cupy.__version__
        cupy.cuda.Device(device).use()
        self.array = cupy.empty(length, dtype=cupy.uint8)

    def part(self, start, end):
        return self.array[start:end]

    def bytes(self, start, end):
        return self.cupy.asnumpy(self.array[start:end]).tobytes()

    def put(self, start, data):
        import numpy

        self.array[start : start + len(data)].set(numpy.frombuffer(data, dtype=numpy.uint8))

    def settle(self):
        self.cupy.cuda.runtime.deviceSynchronize()


class TorchMemory:
    """Bytes on the device, held by PyTorch."""

    def __init__(self, length, device):
        import torch

        self.torch = torch
        self.name = "PyTorch " + torch.__version__
        torch.cuda.set_device(device)
        self.array = torch.empty(length, dtype=torch.uint8, device=f"cuda:{device}")

    def part(self, start, end):
        return self.array[start:end]

    def bytes(self, start, end):
        return self.array[start:end].cpu().numpy().tobytes()

    def put(self, start, data):
        source = self.torch.frombuffer(bytearray(data), dtype=self.torch.uint8)
        self.array[start : start + len(data)].copy_(source)

    def settle(self):
        self.torch.cuda.synchronize()


def memory(length, device):
    try:
        return CuPyMemory(length, device)
    except ImportError as no_cupy:
        try:
            return TorchMemory(length, device)
        except ImportError:
            raise no_cupy from None


class Window:
    """Wall clock and CPU time of all threads of this process."""

    def __init__(self):
        gc.collect()
        gc.disable()
        self.usage = resource.getrusage(resource.RUSAGE_SELF)
        # The clock that getrusage also reports, at a finer grain.
        self.cpu = time.process_time()
        self.since = time.perf_counter()

    def close(self):
        wall = time.perf_counter() - self.since
        cpu = time.process_time() - self.cpu
        usage = resource.getrusage(resource.RUSAGE_SELF)
        gc.enable()
        return {
            "wall_s": wall,
            "cpu_s": cpu,
            "user_s": usage.ru_utime - self.usage.ru_utime,
            "system_s": usage.ru_stime - self.usage.ru_stime,
        }


class Peer:
    def __init__(self, job):
        import kvikio
        import kvikio.defaults

        self.kvikio = kvikio
        self.job = job
        if "KVIKIO_AUTO_DIRECT_IO_READ" in os.environ:
            # A version that does not know it would silently be another contestant.
            if kvikio.defaults.get("auto_direct_io_read") in (False, None):
                raise ValueError("this KvikIO has no automatic direct reads")
        self.length, self.block, self.depth = job["length"], job["block"], job["depth"]
        self.write = job["access"] == "write"
        self.random = job["access"] == "random"
        needed = self.block * self.depth if self.random else self.length
        self.memory = memory(needed, job["device"])
        self.memory.settle()
        self.file = kvikio.CuFile(job["path"], "r+" if self.write else "r")
        # What cannot read here at all is no contestant, and says so now.
        self.file.pread(self.memory.part(0, self.block), self.block, 0).get()
        if self.write:
            self.fill()
        self.memory.settle()
        # Of its own: for durability, and to look at the bytes.
        self.fd = os.open(job["path"], os.O_RDWR if self.write else os.O_RDONLY)
        self.last = []

    def about(self):
        settings = {}
        for name in ("compat_mode", "num_threads", "task_size", "gds_threshold",
                     "bounce_buffer_size", "auto_direct_io_read", "auto_direct_io_write"):
            try:
                settings[name] = str(self.kvikio.defaults.get(name))
            except Exception:  # Not every version knows every name.
                pass
        version = getattr(self.kvikio, "__version__", "unknown")
        # With cuFile the path may lead through cuFile's own compatibility mode, which nobody sees.
        compat = self.kvikio.defaults.is_compat_mode_preferred()
        version += " (compatibility mode)" if compat else " (cuFile)"
        return {"kvikio": version, "memory": self.memory.name, "settings": settings}

    def source(self, start, end):
        """The bytes that this contestant writes, which are no one else's."""
        return random.Random(f"{self.job['seed']} {self.job['name']} {start}").randbytes(end - start)

    def pieces(self):
        length = self.block * self.depth if self.random else self.length
        for start in range(0, length, CHECKED):
            yield start, min(length, start + CHECKED)

    def fill(self):
        for start, end in self.pieces():
            self.memory.put(start, self.source(start, end))

    def run(self, number):
        if not self.random:
            return self.run_in_order()
        if self.depth == 1:
            return self.run_one_at_a_time(self.offsets(number))
        return self.run_many(self.offsets(number))

    def run_in_order(self):
        buffer = self.memory.part(0, self.length)
        window = Window()
        if self.write:
            done = self.file.write(buffer)
            os.fdatasync(self.fd)
        else:
            done = self.file.read(buffer)
        answer = window.close()
        answer.update(bytes=done, operations=self.length // self.block)
        return answer

    def offsets(self, number):
        """Drawn before the window opens; more than a run can use, or used again."""
        draws = random.Random((self.job["seed"] << 64) ^ number)
        blocks = self.length // self.block
        return [int(draws.random() * blocks) * self.block for _ in range(1 << 18)]

    def run_one_at_a_time(self, offsets):
        """In the caller's thread, by the shortest way that KvikIO has."""
        buffer, block, read = self.memory.part(0, self.block), self.block, self.file.raw_read
        latencies, clock, done = [], time.perf_counter_ns, 0
        window = Window()
        end = clock() + int(self.job["seconds"] * 1e9)
        index, now = 0, 0
        while now < end:
            offset = offsets[index & 0x3FFFF]
            since = clock()
            done += read(buffer, block, offset)
            now = clock()
            latencies.append(now - since)
            index += 1
        answer = window.close()
        self.last = [offsets[(index - 1) & 0x3FFFF]]
        answer.update(bytes=done, operations=index, latencies_ns=latencies)
        return answer

    def run_many(self, offsets):
        """`depth` futures in flight, taken in order: a future of KvikIO can only be waited for, so
        a latency lasts until it is looked at."""
        block, pread, depth = self.block, self.file.pread, self.depth
        buffers = [self.memory.part(i * block, (i + 1) * block) for i in range(depth)]
        latencies, clock, done = [], time.perf_counter_ns, 0
        window = Window()
        end = clock() + int(self.job["seconds"] * 1e9)
        flight = []
        last = list(offsets[:depth])
        for slot in range(depth):
            flight.append((clock(), pread(buffers[slot], block, last[slot])))
        index, now, open_slots = depth, clock(), depth
        slot = 0
        while open_slots:
            since, future = flight[slot]
            done += future.get()
            now = clock()
            latencies.append(now - since)
            if now < end:
                last[slot] = offsets[index & 0x3FFFF]
                index += 1
                flight[slot] = (now, pread(buffers[slot], block, last[slot]))
            else:
                open_slots -= 1
            slot = (slot + 1) % depth
        answer = window.close()
        self.last = last
        answer.update(bytes=done, operations=index, latencies_ns=latencies)
        return answer

    def check(self):
        """Every byte, by the ordinary calls of the system."""
        self.memory.settle()
        if self.random:
            for slot, offset in enumerate(self.last):
                found = self.memory.bytes(slot * self.block, (slot + 1) * self.block)
                if found != os.pread(self.fd, self.block, offset):
                    raise ValueError(f"a block is not the file's at {offset}")
            return {}
        for start, end in self.pieces():
            there = bytearray()
            while len(there) < end - start:
                got = os.pread(self.fd, end - start - len(there), start + len(there))
                if not got:
                    raise ValueError(f"the file ends at {start + len(there)}")
                there += got
            expected = self.source(start, end) if self.write else self.memory.bytes(start, end)
            if expected != bytes(there):
                raise ValueError(f"wrong bytes in the 64 MiB from {start}")
            if not self.write:
                # What the next runs do not write is found by the next check.
                self.memory.put(start, bytes(end - start))
        self.memory.settle()
        return {}


def main():
    # What libraries print does not belong among the answers.
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def answer(value):
        print(json.dumps(value), file=answers, flush=True)

    try:
        peer = Peer(json.loads(sys.argv[1]))
        answer(peer.about())
    except Exception as error:
        answer({"error": f"{type(error).__name__}: {error}"})
        return
    for line in sys.stdin:
        command = json.loads(line)
        try:
            answer(peer.run(command["round"]) if command["do"] == "run" else peer.check())
        except Exception as error:
            traceback.print_exc()
            answer({"error": f"{type(error).__name__}: {error}"})


main()
