"""The nodes of a gang meet before any of them starts its command.

The name of a pod that has ended resolves no more. So a node whose command is short could end
before a late one, whose image is still pulled, has found it. Hence each node, once it has found
all names, tells node 0 so, and goes on at node 0's word, which comes when all have.

Node 0 listens on its pod's own address. What its port answers tells the others how things are:

- refused: its container has not started (or, after it had answered, it has gone on);
- nothing, no route, something else: packets are dropped, or another program has the port.

Node 0 knocks at the same port of those that it misses, where nobody listens, and reads the same.
Only the second ends the wait early, and no end of the wait is a failure: a node that waits no
longer says so and starts its command, and leaves a process behind that goes on telling the
others, so that none of them waits for it. Else the port is closed before the command starts.
"""

__all__ = ["MEET", "PORT"]

#: Beside MASTER_PORT (29400), which is the command's own; below the ports that Linux hands out by
#: itself (32768 and up: ip_local_port_range in
#: https://docs.kernel.org/networking/ip-sysctl.html).
PORT = 29399

#: Its words: the gang and its attempt, the pod's own address, rank, port, how long to wait in all
#: and while nothing answers (seconds), and the addresses of all nodes by rank. For Python 3.6 on.
MEET = """\
import os, random, resource, selectors, socket, struct, sys, time
now, own = time.monotonic, sys.argv[2]
hello = ("gpufabric %s " % sys.argv[1]).encode()
rank, port, limit, quiet = map(int, sys.argv[3:7])
ips = sys.argv[7:]
begun, until = now(), now() + limit
lost, why, told, alone = None, "", False, False
def tell(text):
    sys.stderr.write("gpufabric: %s\\n" % text)
    sys.stderr.flush()
def answered():
    global lost
    lost = None
def silent(exc):
    global lost, why
    lost, why = lost or now(), str(exc)
    if isinstance(exc, socket.timeout):
        why += ": does a NetworkPolicy let them meet?"
def look(names, links=()):
    global told, alone, until
    late = now() > until
    if alone:
        if late:
            sys.exit()
    elif late or lost and now() - lost > quiet:
        tell("%s not reached at port %d in %d s (%s); the command starts here without waiting"
             % (names, port, now() - begun, why if lost else "not started"))
        for link in links:
            send(link, b"go\\n")
        if os.fork():
            os._exit(0)
        null = os.open(os.devnull, os.O_RDWR)
        for fd in range(3):
            os.dup2(null, fd)
        alone, until = True, now() + limit
    elif not (told or lost) and now() - begun > quiet:
        told = True
        tell("waiting up to %d s for %s to start" % (limit, names))
def pause():
    time.sleep(min(1, max(.05, (now() - begun) / 10)))
def send(link, word):
    try:
        link.send(word)
    except OSError:
        pass  # it comes again
def gather():
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    except (OSError, ValueError):
        pass  # as many as may be
    while True:
        server = socket.socket(socket.AF_INET6 if ":" in own else socket.AF_INET)
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            server.bind((own, port))
            server.listen(1024)
            break
        except OSError as exc:
            server.close()
            silent(exc)
            look("the others")
        pause()
    answered()
    server.setblocking(False)
    loop, missing, links, tick = selectors.DefaultSelector(), set(range(1, len(ips))), {}, 0
    def admit(_):
        link = server.accept()[0]
        link.setblocking(False)
        link.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # no TIME_WAIT: the command may use the port. A word that is lost so is not missed
        link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        loop.register(link, 1, hear)
        links[link] = "new"
    def hear(link):
        words = link.recv(512)
        if words.startswith(hello):
            links[link] = "met"
            missing.discard(int(words[len(hello):]))
            send(link, b"go\\n" if alone else b"wait\\n")
        else:
            if words:
                send(link, b"no\\n")
            drop(link)
    def drop(link):
        loop.unregister(link)
        link.close()
        del links[link]
    loop.register(server, 1, admit)
    while missing:
        for key, _ in loop.select(1):
            try:
                key.data(key.fileobj)
            except (OSError, ValueError):
                if key.fileobj in links:
                    drop(key.fileobj)
        if not missing or now() < tick:
            continue
        for link, state in list(links.items()):
            if state == "met":
                send(link, b"wait\\n")  # so that it sees when this machine is lost
            elif state == "old":
                drop(link)
            else:
                links[link] = "old"
        if not alone:
            try:
                socket.create_connection((ips[random.choice(list(missing))], port), 1).close()
                answered()
            except ConnectionRefusedError:
                answered()
            except OSError as exc:
                silent(exc)
        look("node %s%s" % (", ".join(map(str, sorted(missing)[:8])),
                            " and others" if len(missing) > 8 else ""), list(links))
        tick = now() + 1
    for link in links:
        send(link, b"go\\n")
def ask():
    global until
    heard = False
    while True:
        try:
            with socket.create_connection((ips[0], port), min(5, quiet)) as link:
                link.sendall(hello + str(rank).encode())
                heard = True  # what is refused after this has gone on
                words = link.makefile("rb")
                while True:
                    word = words.readline(8)
                    if word == b"go\\n":
                        return
                    if word != b"wait\\n":
                        heard = not word
                        raise OSError("another program answers" if word else "it hangs up")
                    until = now() + limit
                    link.settimeout(30)
                    answered()
        except ConnectionRefusedError:
            if heard:
                return
            answered()
        except OSError as exc:
            silent(exc)
        look("node 0")
        pause()
if rank:
    ask()
else:
    gather()"""
