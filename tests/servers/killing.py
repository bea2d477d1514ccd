"""An S3 server, moto, in a process of its own that kills who writes to it: `killing.py` prints its port, and serves.

    /-/kill?pid=P&at=K&when=W    count requests that write from now on (PUT, POST, DELETE), and kill process P (SIGKILL)
                                 at the K-th: W "before" it is done, which it then is not, or "after", unanswered
    /-/spare                     kill nobody: whoever ended has a number that another process may get
    /-/count                     how many there were
    /-/fork                      number and port of a process that has all that this one holds, from now on its own

All end when the input of the first is closed. One request at a time: moto looks whether a key is there and then
writes it.
"""

import logging
import os
import signal
import threading
import warnings
from contextlib import suppress
from urllib.parse import parse_qs


class Killing:
    """A WSGI application around another. make_server(app): one that listens."""

    def __init__(self, app, make_server):
        self._app, self._make_server, self._turn = app, make_server, threading.Lock()
        self._pid, self._at, self._when, self._count = 0, 0, "", 0

    def serve(self, server):
        """Until it is told to end."""
        self._server = server
        threading.Thread(target=self._with_the_input, daemon=True).start()
        server.serve_forever()

    def __call__(self, environ, start_response):
        with self._turn:
            if environ["PATH_INFO"].startswith("/-/"):
                said = self._told(environ["PATH_INFO"][3:], parse_qs(environ["QUERY_STRING"])).encode()
                start_response("200 OK", [("Content-Type", "text/plain"), ("Content-Length", str(len(said)))])
                return [said]
            writes = environ["REQUEST_METHOD"] in ("PUT", "POST", "DELETE")
            self._count += writes
            hit = writes and self._pid and self._count == self._at
            if hit and self._when == "before":
                os.kill(self._pid, signal.SIGKILL)
                start_response("503 Slow Down", [])
                return [b""]
            answer = list(self._app(environ, start_response))
            if hit:
                os.kill(self._pid, signal.SIGKILL)
            return answer

    def _told(self, what, said):
        if what == "kill":
            self._pid, self._at, self._when = int(said["pid"][0]), int(said["at"][0]), said["when"][0]
            self._count = 0
        elif what == "spare":
            self._pid = 0
        elif what == "fork":
            return self._fork()
        return str(self._count)

    def _fork(self):
        """Of all threads this one alone is in the new process, where it serves; none is at work in moto (`_turn`)."""
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # earlier ones, which were killed
        server = self._make_server(self)
        if pid := os.fork():
            server.server_close()
            return f"{pid} {server.server_port}"
        self._turn, self._pid = threading.Lock(), 0
        try:
            self.serve(server)
        finally:
            os._exit(0)

    def _with_the_input(self):
        os.read(0, 1)
        self._server.shutdown()


def main():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # third-party imports
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server
    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    app = Killing(
        DomainDispatcherApplication(create_backend_app),
        lambda app: make_server("127.0.0.1", 0, app, threaded=True),
    )
    server = app._make_server(app)
    print(server.server_port, flush=True)
    app.serve(server)


if __name__ == "__main__":
    main()
