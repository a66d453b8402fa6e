// A Restate server of one's own, on loopback alone; its log is synced (rocksdb-disable-wal-fsync = false, its default).

import { spawn } from "node:child_process";
import { createRequire } from "node:module";
import { createServer } from "node:net";
import { writeFile } from "node:fs/promises";
import { join } from "node:path";

/** How long it may take to be there, and to end when told to. */
const START_MS = 60_000;
const STOP_MS = 10_000;

async function freePort() {
  const server = createServer().listen(0, "127.0.0.1");
  await new Promise((resolve) => server.once("listening", resolve));
  const { port } = server.address();
  await new Promise((resolve) => server.close(resolve));
  return port;
}

/** The program in the package for this kind of machine. */
function program() {
  const require = createRequire(import.meta.url);
  return require.resolve(`@restatedev/restate-server-${process.platform}-${process.arch}/bin/restate-server`);
}

export class Server {
  static async start(folder) {
    const server = new Server();
    const [fabric, ingress, admin] = [await freePort(), await freePort(), await freePort()];
    Object.assign(server, { ingress, admin });
    const file = join(folder, "restate.toml");
    const settings = [
      'node-name = "bench"',
      `base-dir = ${JSON.stringify(join(folder, "data"))}`,
      'listen-mode = "tcp"',
      "disable-telemetry = true",
      'bind-ip = "127.0.0.1"',
      'advertised-host = "127.0.0.1"',
      `bind-port = ${fabric}`,
      "[ingress]",
      `bind-port = ${ingress}`,
      "[admin]",
      `bind-port = ${admin}`,
      "disable-web-ui = true",
      "[log-server]",
      "rocksdb-disable-wal-fsync = false",
    ];
    await writeFile(file, settings.join("\n") + "\n");
    server.said = "";
    server.child = spawn(program(), ["--config-file", file, "--no-logo"], { stdio: ["ignore", "pipe", "pipe"] });
    server.kill = () => server.child.kill("SIGKILL");
    process.once("exit", server.kill);
    const hear = (text) => (server.said = (server.said + text).slice(-2000));
    server.child.stdout.on("data", hear);
    server.child.stderr.on("data", hear);
    server.gone = new Promise((resolve) => server.child.once("exit", resolve).once("error", resolve));
    await server.isThere().catch(async (error) => {
      await server.stop();
      throw error;
    });
    return server;
  }

  async isThere() {
    const until = performance.now() + START_MS;
    for (const [port, path] of [[this.admin, "/health"], [this.ingress, "/restate/health"]]) {
      for (;;) {
        const there = await fetch(`http://127.0.0.1:${port}${path}`).then((told) => told.ok).catch(() => false);
        if (there) break;
        if (this.child.exitCode !== null || performance.now() > until) {
          throw new Error(`restate-server does not start: ${this.said}`);
        }
        await new Promise((resolve) => setTimeout(resolve, 50));
      }
    }
  }

  async ask(path, body) {
    const told = await fetch(`http://127.0.0.1:${this.admin}${path}`, {
      method: "POST",
      headers: { "content-type": "application/json", accept: "application/json" },
      body: JSON.stringify(body),
    });
    if (!told.ok) throw new Error(`${path}: ${told.status} ${await told.text()}`);
    return told.json();
  }

  /** The one number that a query gives. */
  async count(query) {
    return Number(Object.values((await this.ask("/query", { query })).rows[0])[0]);
  }

  async stop() {
    this.child.kill("SIGTERM");
    const timer = setTimeout(this.kill, STOP_MS);
    await this.gone;
    clearTimeout(timer);
    process.off("exit", this.kill);
  }
}
