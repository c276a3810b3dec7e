// What the tests start: the lock service, a PostgreSQL server, and programs.
import { spawn, spawnSync } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import net from 'node:net';
import os from 'node:os';
import path from 'node:path';
import readline from 'node:readline';
import { fileURLToPath } from 'node:url';

const ROOT = path.resolve(path.dirname(fileURLToPath(import.meta.url)), '..');
export const file = (...names) => path.join(ROOT, ...names);

const LIMIT = 60_000;

export function folder(test) {
  const made = fs.mkdtempSync(path.join(os.tmpdir(), 'fencepost-node-'));
  test.after(() => fs.rmSync(made, { recursive: true, force: true }));
  return made;
}

/** A program that was started. It is killed at the end of the test. */
export class Program {
  lines = [];
  #changed;

  constructor(test, command, args, options = {}) {
    this.process = spawn(command, args, { stdio: ['ignore', 'pipe', 'pipe'], ...options });
    this.ended = once(this.process, 'close').then(([code]) => { this.#changed?.(); return code; });
    for (const stream of [this.process.stdout, this.process.stderr]) {
      readline.createInterface({ input: stream }).on('line', (line) => { this.lines.push(line); this.#changed?.(); });
    }
    test.after(() => { this.process.kill('SIGKILL'); return this.ended; });
  }

  /** Waits for a line, and returns what its groups match. */
  async line(wanted) {
    const timer = setTimeout(() => this.#changed?.(), LIMIT);
    const late = Date.now() + LIMIT;
    try {
      for (;;) {
        const found = this.lines.map((line) => wanted.exec(line)).find(Boolean);
        if (found) return found;
        if (Date.now() >= late || this.process.exitCode !== null) throw new Error(`no line ${wanted} in:\n${this.lines.join('\n')}`);
        await new Promise((resolve) => { this.#changed = resolve; });
      }
    } finally {
      clearTimeout(timer);
    }
  }

  /** Waits for its end. It has to be a good one. */
  async end() {
    const code = await this.ended;
    if (code !== 0) throw new Error(`ended with ${code}:\n${this.lines.join('\n')}`);
    return this.lines;
  }
}

/** Starts the lock service on a file of its own, and returns its address. */
export async function service(test, ...options) {
  const { FENCEPOST } = process.env;
  if (!FENCEPOST) throw new Error('set FENCEPOST to the program fencepost');
  const args = ['serve', '-b', `sqlite:${folder(test)}/locks.db`, '--listen', '127.0.0.1:0', ...options];
  const started = new Program(test, FENCEPOST, args);
  const [, url] = await started.line(/^the page: (.*)\/$/);
  return { url, process: started.process };
}

export function example(test, name, { url, ...options }) {
  const { env, ...rest } = options;
  return new Program(test, process.execPath, [file('examples', name)], { env: { ...process.env, FENCEPOST_URL: url, ...env }, ...rest });
}

/** Starts a PostgreSQL server, and returns its address; undefined if there is none on this machine. */
export async function postgres(test) {
  const bin = ['/usr/lib/postgresql', '/usr/local/lib/postgresql'].flatMap((place) => {
    try {
      return fs.readdirSync(place).map((version) => path.join(place, version, 'bin'));
    } catch {
      return [];
    }
  }).find((place) => fs.existsSync(path.join(place, 'postgres')));
  if (!bin) return undefined;
  const place = folder(test);
  // The server refuses to run as root.
  const user = process.getuid() === 0 ? Number(spawnSync('id', ['-u', 'nobody'], { encoding: 'utf8' }).stdout) : process.getuid();
  const group = process.getuid() === 0 ? Number(spawnSync('id', ['-g', 'nobody'], { encoding: 'utf8' }).stdout) : process.getgid();
  fs.chownSync(place, user, group);
  const options = { uid: user, gid: group, cwd: place };
  const made = spawnSync(path.join(bin, 'initdb'), ['--auth=trust', '--no-sync', '--username=test', `--pgdata=${place}/data`], options);
  if (made.status !== 0) throw new Error(`initdb: ${made.stderr}`);
  const port = await freePort();
  const args = ['-D', `${place}/data`, '-h', '127.0.0.1', '-p', String(port), '-k', place, '-c', 'fsync=off'];
  const server = new Program(test, path.join(bin, 'postgres'), args, options);
  await server.line(/ready to accept connections/);
  return `postgresql://test@127.0.0.1:${port}/postgres`;
}

async function freePort() {
  const server = net.createServer().listen(0, '127.0.0.1');
  await once(server, 'listening');
  const { port } = server.address();
  server.close();
  await once(server, 'close');
  return port;
}
