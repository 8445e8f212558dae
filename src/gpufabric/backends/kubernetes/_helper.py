"""The programs of the pod that serves code above 900 kB. They need `python3` and nothing else.

`SERVE` is the pod's own: it gives each part over HTTP to who shows the token. `TAKE` runs beside it
by `exec`, takes parts and token from its standard input, and lays them down only when they are
whole. Python 3.7 does.
"""

__all__ = ["ASK", "PORT", "SERVE", "TAKE"]

PORT = 8377

SERVE = """\
import hmac, http.server, os, signal, socket, sys
root, port = sys.argv[1], int(sys.argv[2])
signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
class Handler(http.server.BaseHTTPRequestHandler):
    timeout = 60
    def do_GET(self):
        try:
            with open(root + "/token", "rb") as file:
                wanted = b"Bearer " + file.read()
        except OSError:
            return self.send_error(503, "the code is still on its way")
        if not hmac.compare_digest(self.headers.get("Authorization", "").encode(), wanted):
            return self.send_error(401)
        name = self.path[1:]
        if name not in ("workdir.tar.gz", "files.tar.gz", "function.pickle"):
            return self.send_error(404)
        try:
            file = open(root + "/" + name, "rb")
        except OSError:
            return self.send_error(404)
        with file:
            self.send_response(200)
            self.send_header("Content-Type", "application/octet-stream")
            self.send_header("Content-Length", str(os.fstat(file.fileno()).st_size))
            self.end_headers()
            self.wfile.flush()
            self.connection.sendfile(file)
class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 512
    def server_bind(self):
        if self.address_family == getattr(socket, "AF_INET6", None):
            self.socket.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self.socket.bind(self.server_address)
    def handle_error(self, request, client):
        sys.stderr.write("%s: %s\\n" % (client[0], sys.exc_info()[1]))
try:
    Server.address_family = socket.AF_INET6
    server = Server(("::", port), Handler)
except OSError:
    Server.address_family = socket.AF_INET
    server = Server(("0.0.0.0", port), Handler)
server.serve_forever()
"""

#: Prints the token once the pod has the code.
ASK = """\
import os, sys
path = sys.argv[1] + "/token"
if os.path.exists(path):
    print(open(path).read())
"""

#: Prints the token that holds: that of who was first. Its input: a line of JSON
#: {"id", "token", "parts": [[name, size], ...]}, then of each part its bytes and the 64 digits
#: of their SHA-256.
TAKE = """\
import hashlib, json, os, sys
root, source = sys.argv[1], sys.stdin.buffer
head = json.loads(source.readline().decode())
made = []
def lay(name, chunks):
    path = "%s/.%s.%s" % (root, head["id"], name)
    made.append(path)
    with open(path, "wb") as file:
        for chunk in chunks:
            file.write(chunk)
    return path
def chunks(name, size, hash):
    while size:
        chunk = source.read(min(size, 1 << 20))
        if not chunk:
            sys.exit("%s broke off %d bytes before its end" % (name, size))
        size -= len(chunk)
        hash.update(chunk)
        yield chunk
try:
    for name, size in head["parts"]:
        hash = hashlib.sha256()
        lay(name, chunks(name, size, hash))
        if source.read(64).decode() != hash.hexdigest():
            sys.exit("%s is not what was sent" % name)
    for path, (name, size) in zip(list(made), head["parts"]):
        os.rename(path, root + "/" + name)
    try:
        os.link(lay("token", [head["token"].encode()]), root + "/token")
    except FileExistsError:
        pass
    print(open(root + "/token").read())
finally:
    for path in made:
        if os.path.exists(path):
            os.unlink(path)
"""
