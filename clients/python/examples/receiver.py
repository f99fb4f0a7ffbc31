"""Receives signed callbacks with the library of Standard Webhooks, `pip install keyfall[webhooks]`.

Arguments: port, and a file for what was received. HOOK_SECRET has the secret of the route.
"""

import os
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

from standardwebhooks.webhooks import Webhook, WebhookVerificationError

webhook = Webhook(os.environ["HOOK_SECRET"])


class Receiver(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"]))
        try:
            payload = webhook.verify(body, dict(self.headers.items()))
        except WebhookVerificationError as error:
            self.answer(401, f"refused: {error}")
            return
        self.answer(204, f"{self.headers['keyfall-key']} {payload}")

    def answer(self, status: int, line: str) -> None:
        with open(sys.argv[2], "a") as file:
            file.write(f"{line}\n")
        self.send_response(status)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """The file has what was received."""


HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
