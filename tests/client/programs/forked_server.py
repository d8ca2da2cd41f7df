"""A pre-forking web server: the client is made before the fork, and used before it as well."""

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from urllib.request import Request, urlopen

from helixqueue import HelixQueue, Queue

orders = Queue("forked.orders")
helix = HelixQueue(sys.argv[1], tenant="a")
helix.submit(orders, identity="at-start", payload={})


class Orders(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        order = json.loads(self.rfile.read(int(self.headers["content-length"])))
        done = helix.submit(orders, identity=order["id"], payload=order)
        self.send_response(200)
        self.end_headers()
        self.wfile.write(f"{done.decision} {os.getpid()}".encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


server = HTTPServer(("127.0.0.1", 0), Orders)
children = []
for _ in range(2):
    child = os.fork()
    if child == 0:
        for _ in range(3):
            server.handle_request()
        helix.close()
        os._exit(0)
    children.append(child)

answers = []
for number in range(6):
    body = json.dumps({"id": f"order-{number % 3}"}).encode()
    request = Request(f"http://127.0.0.1:{server.server_port}", data=body)
    with urlopen(request, timeout=30) as response:
        answers.append(response.read().decode().split())
for child in children:
    os.waitpid(child, 0)
print([decision for decision, _ in answers], len({pid for _, pid in answers}) <= 2)
print(helix.submit(orders, identity="order-0", payload={"id": "order-0"}).decision)
helix.close()
server.server_close()
