"""Nodes on this machine for the benchmarks of recovery: jobs, launchers, logs and twins."""
import json
import os
import signal
import socket
import subprocess
import tempfile
import time

root = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
program_default = os.path.join(root, "build/release/bin/rrfp-node")
node_timeout_ms = 1500


def job_text(nodes, tp, steps):
    """With several ranks, each stage is on two nodes."""
    places = [(stage + rank) % nodes for stage in range(nodes) for rank in range(tp)]
    return f"""
[pipeline]
stages = {nodes}
tp = {tp}
nodes = {places}
microbatches = 4
[model]
layers = {max(nodes, 2)}
hidden = 32
heads = 4
context = 32
[data]
text = ["/usr/share/common-licenses/GPL-3"]
microbatch_size = 1
sequence_length = 32
[train]
steps = {steps}
lr = 1e-3
[transport]
heartbeat_ms = 100
node_timeout_ms = {node_timeout_ms}
"""


class log:
    """The lines of a JSON log, as they come. A killed node may leave half a line, which another one continues."""

    def __init__(self, path):
        self.path, self.lines, self.offset = path, [], 0

    def read(self):
        try:
            with open(self.path, "rb") as f:
                f.seek(self.offset)
                *whole, _ = f.read().split(b"\n")
        except FileNotFoundError:
            return self.lines
        for line in whole:
            self.offset += len(line) + 1
            try:
                self.lines.append(json.loads(line))
            except ValueError:
                pass
        return self.lines


def lines_of(path):
    return log(path).read()


def newest_step(lines):
    return max((line["step"] for line in lines if line.get("event") == "step"), default=0)


def ip(*arguments):
    return subprocess.run(["ip", *arguments], capture_output=True, text=True)


class launcher:
    """Nodes that a launcher starts, and starts again."""

    def __init__(self, program, folder, nodes, settings):
        self.log = log(os.path.join(folder, "out.jsonl"))
        self.output = open(os.path.join(folder, "output"), "w+")
        command = [program, "run", os.path.join(folder, "job.toml"), "--local-nodes", str(nodes), "--json", self.log.path]
        self.process = subprocess.Popen(command + settings, stdout=self.output, stderr=subprocess.STDOUT)

    def pid(self, node):
        with open(f"/proc/{self.process.pid}/task/{self.process.pid}/children") as f:
            for pid in f.read().split():
                try:
                    with open(f"/proc/{pid}/cmdline") as c:
                        words = c.read().split("\0")
                except OSError:
                    continue
                if "--node-rank" in words and words[words.index("--node-rank") + 1] == str(node):
                    return int(pid)
        return None

    def fault(self, kind, node, stop_s):
        """Returns when the fault is over, or None if the node is gone."""
        try:
            pid = self.pid(node)
            if pid is None:
                return None
            os.kill(pid, signal.SIGKILL if kind == "kill" else signal.SIGSTOP)
            if kind == "stop":
                time.sleep(stop_s)
                os.kill(pid, signal.SIGCONT)
        except OSError:
            return None
        return time.monotonic()

    def over(self):
        return self.process.poll() is not None

    def end(self):
        if not self.over():
            self.process.send_signal(signal.SIGKILL)
        code = self.process.wait()
        self.output.seek(0)
        return code, self.output.read()


class loops:
    """Nodes that are started one by one, each by a loop that starts it again until it ends with 0."""

    def __init__(self, program, folder, nodes, settings):
        self.log = log(os.path.join(folder, "out.jsonl"))
        self.output = open(os.path.join(folder, "output"), "w+")
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            self.rendezvous = f"127.0.0.1:{s.getsockname()[1]}"
        self.command = [program, "join", os.path.join(folder, "job.toml"), "--nnodes", str(nodes), "--rendezvous", self.rendezvous,
                        "--set", "recovery.hold_s=120"] + settings
        self.nodes, self.due = [None] * nodes, {n: 0 for n in range(nodes)}
        self.replaced, self.wrong, self.at = [], [], []
        self.poll()

    def start(self, node):
        command = self.command + ["--node-rank", str(node)] + (["--json", self.log.path] if node == 0 else [])
        self.nodes[node] = subprocess.Popen(command, stdout=self.output, stderr=subprocess.STDOUT)

    def poll(self):
        now = time.monotonic()
        for when, action in [one for one in self.at if one[0] <= now]:
            action()
        self.at = [one for one in self.at if one[0] > now]
        for node, process in enumerate(self.nodes):
            if node in self.due:
                if self.due[node] <= now:
                    del self.due[node]
                    self.start(node)
            elif process.poll() not in (None, 0):
                if process.returncode not in (3, -signal.SIGKILL):
                    self.wrong.append(f"node {node} ended with {process.returncode}")
                self.due[node] = now + 0.2

    def replace(self, old, node, resumes_after):
        """The stopped process goes on a while after its replacement has started."""
        if old.poll() is not None or self.nodes[node] is not old:
            return
        self.replaced.append((node, old))
        self.start(node)
        self.at.append((time.monotonic() + resumes_after, lambda: old.send_signal(signal.SIGCONT)))

    def fault(self, kind, node, stop_s, random):
        """Returns when the fault is over, or None if the node is gone."""
        process = self.nodes[node]
        if node in self.due or process.poll() is not None:
            return None
        if kind != "replace":
            process.kill()
            return time.monotonic()
        process.send_signal(signal.SIGSTOP)
        over = time.monotonic() + stop_s
        resumes = random.choice([0, 0.3, 3, 8])
        self.at.append((over, lambda: self.replace(process, node, resumes)))
        return over + resumes

    def over(self):
        self.poll()
        ended = all(n not in self.due and p.poll() == 0 for n, p in enumerate(self.nodes))
        return ended and not self.at and all(old.poll() is not None for _, old in self.replaced)

    def end(self):
        waiting = [p for p in self.nodes + [old for _, old in self.replaced] if p is not None and p.poll() is None]
        for process in waiting:
            self.wrong.append(f"a process waits in vain: {process.pid}: {process.args[-3:]}")
            process.send_signal(signal.SIGUSR1)  # asks for a hang report
        if waiting:
            time.sleep(1)
        for process in waiting:
            process.kill()
            process.wait()
        # One that was stopped after the end is told so.
        self.wrong += [f"node {n}, replaced, ended with {old.returncode}" for n, old in self.replaced if old.returncode not in (0, 3)]
        self.output.seek(0)
        return int(bool(self.wrong)), self.output.read() + "".join(line + "\n" for line in self.wrong)


class namespaces:
    """Nodes with a network namespace each, connected by a switch; each in a loop that starts it again."""

    def __init__(self, program, folder, nodes, settings):
        self.log = log(os.path.join(folder, "out.jsonl"))
        self.names = [f"rrfp{os.getpid()}n{n}" for n in range(nodes)]
        self.hub = f"rrfp{os.getpid()}hub"
        self.output = open(os.path.join(folder, "output"), "w+")
        self.connect()
        key = os.path.join(folder, "key")
        with open(key, "w") as f:
            f.write("a key of more than sixteen bytes\n")
        os.chmod(key, 0o400)
        loop = 'for i in $(seq 20); do "$@"; code=$?; [ $code = 0 ] && exit 0; echo "ended with $code"; sleep .2; done; exit $code'
        self.processes = []
        for n, name in enumerate(self.names):
            node = [program, "join", os.path.join(folder, "job.toml"), "--nnodes", str(nodes), "--node-rank", str(n),
                    "--rendezvous", "10.213.78.1:29578", "--set", f"transport.listen=10.213.78.{n + 1}",
                    "--set", f"transport.key_file={key}", "--set", "transport.tls=tcp,self"] + settings
            if n == 0:
                node += ["--json", self.log.path]
            self.processes.append(subprocess.Popen(["ip", "netns", "exec", name, "/bin/bash", "-c", loop, "loop", *node],
                                                   stdout=self.output, stderr=subprocess.STDOUT, start_new_session=True))

    def connect(self):
        for name in self.names + [self.hub]:
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        ip("-n", self.hub, "link", "add", "switch0", "type", "bridge")
        ip("-n", self.hub, "link", "set", "switch0", "up")
        for n, name in enumerate(self.names):
            ip("-n", self.hub, "link", "add", f"port{n}", "type", "veth", "peer", "name", "cable0", "netns", name)
            ip("-n", self.hub, "link", "set", f"port{n}", "master", "switch0", "up")
            ip("-n", name, "address", "add", f"10.213.78.{n + 1}/24", "dev", "cable0")
            ip("-n", name, "link", "set", "cable0", "up")

    def fault(self, kind, node, stop_s):
        ip("-n", self.hub, "link", "set", f"port{node}", "down")
        time.sleep(stop_s)
        ip("-n", self.hub, "link", "set", f"port{node}", "up")
        return time.monotonic()

    def over(self):
        return all(p.poll() is not None for p in self.processes)

    def end(self):
        for p in self.processes:
            if p.poll() is None:
                os.killpg(p.pid, signal.SIGKILL)
        codes = [p.wait() for p in self.processes]
        for name in self.names + [self.hub]:
            ip("netns", "delete", name)
        self.output.seek(0)
        return max(codes, key=abs), self.output.read()


def summary_of(log):
    found = [line for line in lines_of(log) if line.get("event") == "summary"]
    return found[-1] if found else {}


def hashes_of(summary):
    return [summary.get(key) for key in ("ending", "steps", "losses_xxh64", "weights_xxh64")]


twins = {}


def twin_of(program, nodes, tp, steps):
    if (nodes, tp) not in twins:
        with tempfile.TemporaryDirectory() as folder:
            path, log = os.path.join(folder, "job.toml"), os.path.join(folder, "out.jsonl")
            with open(path, "w") as f:
                f.write(job_text(nodes, tp, steps))
            subprocess.run([program, "run", path, "--local-nodes", str(nodes), "--json", log], check=True,
                           capture_output=True, timeout=300)
            twins[nodes, tp] = hashes_of(summary_of(log))
    return twins[nodes, tp]
