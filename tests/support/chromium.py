"""A tiny driver of headless Chromium: the DevTools protocol over two pipes, nothing but the standard library."""

import base64
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile

_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--remote-debugging-pipe",
)
_PATIENCE = 300  # seconds; on a busy machine a page may take long
# Put the two pipes where the browser expects them, and become the browser.
_WIRE = """
import fcntl, os, sys
held = [fcntl.fcntl(int(end), fcntl.F_DUPFD, 10) for end in sys.argv[1:3]]
os.dup2(held[0], 3)
os.dup2(held[1], 4)
os.execv(sys.argv[3], sys.argv[3:])
"""


def find_browser():
    """Return the path of a Chromium, or None."""
    return next(
        (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
    )


class Chromium:
    """One browser with one page. `errors` collects exceptions, console errors and refused loads."""

    def __init__(self, path):
        self._profile = tempfile.mkdtemp(prefix="smle-browser-")
        down, up = os.pipe(), os.pipe()  # the browser reads file 3 and writes file 4
        ends = (down[0], up[1])
        command = [path, *_FLAGS, f"--user-data-dir={self._profile}", "about:blank"]
        self._process = subprocess.Popen(
            [sys.executable, "-c", _WIRE, *map(str, ends), *command],
            pass_fds=ends,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(down[0])
        os.close(up[1])
        self._write, self._read = down[1], up[0]
        self._buffer, self._count, self._session, self._loaded, self.errors = b"", 0, None, set(), []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")
        self.call("Page.setLifecycleEventsEnabled", enabled=True)

    def call(self, method, **params):
        """Send one command and return its result."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        while True:
            answer = self._next()
            if answer.get("id") == message["id"]:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                return answer["result"]

    def _next(self):
        while b"\0" not in self._buffer:
            if not select.select([self._read], [], [], _PATIENCE)[0]:
                raise RuntimeError(f"The browser said nothing for {_PATIENCE} s.")
            part = os.read(self._read, 1 << 20)
            if not part:
                raise RuntimeError("The browser ended.")
            self._buffer += part
        raw, self._buffer = self._buffer.split(b"\0", 1)
        message = json.loads(raw)
        self._note(message.get("method"), message.get("params", {}))
        return message

    def _note(self, event, params):
        if event == "Runtime.exceptionThrown":
            details = params["exceptionDetails"]
            self.errors.append(details.get("exception", {}).get("description") or details["text"])
        elif event == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning"):
            self.errors.append(str(params["args"]))
        elif event == "Log.entryAdded" and params["entry"]["level"] in ("error", "warning"):
            self.errors.append(params["entry"]["text"])
        elif event == "Page.lifecycleEvent" and params["name"] == "load":
            self._loaded.add(params["loaderId"])
        elif event == "Network.requestWillBeSent":
            url = params["request"]["url"]
            if not url.startswith(("file:", "data:", "about:")):
                self.errors.append(f"the page asked for {url}")

    def open(self, path, *, width=1280, height=900, dark=False):
        """Open a file and wait until it is loaded and drawn."""
        self.errors.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.call("Emulation.setEmulatedMedia", features=scheme)
        # The page that was open before is complete as well: wait for the event of this very page.
        loader = self.call("Page.navigate", url=path.resolve().as_uri())["loaderId"]
        while loader not in self._loaded:
            self._next()
        self.settle()

    def settle(self):
        """Wait for two frames, so that what was asked for is drawn."""
        self.run("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(true))))")

    def run(self, script):
        """Evaluate a script in the page and return its value."""
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in result:
            details = result["exceptionDetails"]
            raise RuntimeError(details.get("exception", {}).get("description") or details["text"])
        return result["result"].get("value")

    def key(self, key, code):
        """Press and release a key."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code)
        self.settle()

    def pdf(self):
        """Return the printed page."""
        return base64.b64decode(self.call("Page.printToPDF", printBackground=True)["data"])

    def close(self):
        """End the browser that was started here."""
        os.close(self._write)
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._read)
        shutil.rmtree(self._profile, ignore_errors=True)
