// A private Redis, and daemons on it that tests start and kill.

import { type ChildProcess, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtempSync, openSync, rmSync, writeFileSync } from "node:fs";
import { connect, createServer, type AddressInfo } from "node:net";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

export const REPOSITORY = process.env["KEYFALL_REPOSITORY"]!;
export const KEYFALL = process.env["KEYFALL_BINARY"]!;
/** Nothing here takes as long, unless it fails. */
export const PATIENCE = 60_000;

/** Waits until the condition holds. */
export async function eventually(what: string, condition: () => unknown): Promise<void> {
  const until = performance.now() + PATIENCE;
  while (!(await condition())) {
    if (performance.now() > until) {
      throw new Error(`not in time: ${what}`);
    }
    await sleep(20);
  }
}

export async function freePort(): Promise<number> {
  const server = createServer().listen(0, "127.0.0.1");
  await once(server, "listening");
  const { port } = server.address() as AddressInfo;
  server.close();
  await once(server, "close");
  return port;
}

function listens(port: number): Promise<boolean> {
  return new Promise((resolve) => {
    const socket = connect(port, "127.0.0.1");
    socket.on("connect", () => resolve(true)).on("error", () => resolve(false));
    socket.on("connect", () => socket.destroy());
  });
}

/** A server in a process of its own. */
export class Server {
  readonly folder = mkdtempSync(join(tmpdir(), "keyfall-typescript-"));
  readonly #command: (folder: string) => readonly string[];
  readonly #environment: Record<string, string>;
  #process: ChildProcess | undefined;

  constructor(
    readonly port: number,
    command: (folder: string) => readonly string[],
    environment: Record<string, string> = {},
  ) {
    this.#command = command;
    this.#environment = environment;
  }

  /** Starts it, again on the same port. */
  async start(): Promise<this> {
    const [program, ...flags] = this.#command(this.folder);
    const log = openSync(join(this.folder, "log"), "a");
    const env = { ...process.env, ...this.#environment };
    this.#process = spawn(program!, flags, { stdio: ["ignore", log, log], env });
    await eventually(`${program} listens`, () => listens(this.port));
    return this;
  }

  async kill(): Promise<void> {
    if (this.#process?.exitCode === null && this.#process.signalCode === null) {
      this.#process.kill("SIGKILL");
      await once(this.#process, "exit");
    }
  }

  async close(): Promise<void> {
    await this.kill();
    rmSync(this.folder, { recursive: true });
  }
}

export async function startRedis(): Promise<Server> {
  const port = await freePort();
  const config = join(REPOSITORY, "redis.conf");
  const command = (dir: string) => ["redis-server", config, "--port", `${port}`, "--dir", dir];
  return new Server(port, command).start();
}

export async function startDaemon(
  redis: Server,
  options: { flags?: string[]; config?: string; environment?: Record<string, string> } = {},
): Promise<Server & { url: string }> {
  const port = await freePort();
  const { flags = [], config, environment } = options;
  const command = (folder: string) => {
    const file = join(folder, "keyfall.toml");
    writeFileSync(file, config ?? "");
    const url = `redis://127.0.0.1:${redis.port}`;
    const listen = `127.0.0.1:${port}`;
    return [KEYFALL, "serve", "--config", file, "--redis-url", url, "--http-listen", listen, ...flags];
  };
  const server = await new Server(port, command, environment).start();
  return Object.assign(server, { url: `http://127.0.0.1:${port}` });
}
