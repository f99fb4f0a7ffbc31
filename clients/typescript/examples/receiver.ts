// Receives signed callbacks with the library of Standard Webhooks, `npm install standardwebhooks`.
// HOOK_SECRET has the secret of the route, PORT the port.

import { createServer } from "node:http";
import { text } from "node:stream/consumers";

import { Webhook } from "standardwebhooks";

const webhook = new Webhook(process.env["HOOK_SECRET"]!);

const server = createServer(async (request, response) => {
  const body = await text(request);
  try {
    const payload = webhook.verify(body, request.headers as Record<string, string>);
    console.log(request.headers["keyfall-key"], JSON.stringify(payload));
    response.writeHead(204).end();
  } catch (error) {
    console.log(`refused: ${error}`);
    response.writeHead(401).end();
  }
});
server.listen(Number(process.env["PORT"]), "127.0.0.1");
