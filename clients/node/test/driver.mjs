// The driver of this client: docs/clients.md has its commands.
import { AsyncLocalStorage } from 'node:async_hooks';
import readline from 'node:readline';

import { BusyError, CertificateError, DeniedError, InvalidError, Client, LostError, TimedOutError, UnreachableError, UnsupportedError }
  from 'fencepost-client';

const clients = new Map(), locks = new Map(), requests = new Map(), candidates = new Map(), owners = new Map();

const say = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

class Cancelled extends Error {}
class BodyError extends Error {}

const WORDS = [
  [TimedOutError, 'timeout'], [BusyError, 'busy'], [LostError, 'lost'], [Cancelled, 'cancelled'], [DeniedError, 'denied'],
  [UnreachableError, 'unreachable'], [CertificateError, 'certificate'], [InvalidError, 'invalid'], [UnsupportedError, 'unsupported'],
  [BodyError, 'body'],
];

function failure(error) {
  const word = WORDS.find(([type]) => error instanceof type)?.[1] ?? 'unknown';
  const attached = error.lost instanceof LostError ? 'lost' : undefined;
  return { error: word, message: error.stack, holder: error.holders?.[0]?.holder, loss: error.loss, why: error.why, attached };
}

function look(lock) {
  const held = lock.isHeld();
  return { held, token: lock.token, ...(held ? {} : { loss: lock.loss.loss, why: lock.loss.why }) };
}

/** Client as an owner: the second lock of an owner is taken by code that runs in the body of the first one. */
function lockOf(owner, client, name, options) {
  return new Promise((resolve, reject) => {
    const take = () => client.run(name, (lock) => new Promise((end) => {
      const around = owners.get(owner);
      owners.set(owner, AsyncLocalStorage.snapshot());
      locks.set(lock, () => { owners.set(owner, around); end(); return done; });
      resolve(lock);
    }), options);
    const done = (owners.get(owner) ?? ((body) => body()))(take);
    done.catch(reject);
  });
}

const until = (signal) => signal.aborted ? undefined : new Promise((end) => signal.addEventListener('abort', end));

async function body(lock, kind) {
  if (kind.endsWith('after-loss')) await until(lock.signal);
  if (kind.startsWith('fail')) throw new BodyError('the body fails');
}

const COMMANDS = {
  open({ as, urls, token_file: tokenFile, ca: caFile }) {
    clients.set(as, new Client(urls, { tokenFile, caFile }));
    return {};
  },
  async lock({ client, as, name, mode, permits, take, ttl, wait, holder, owner, via }) {
    const cancel = new AbortController();
    requests.set(as, cancel);
    const options = { mode, permits, take, ttl, wait: wait ?? 0, holder, signal: cancel.signal };
    const locker = clients.get(client);
    const lock = await (owner ? lockOf(owner, locker, name, options)
      : via === 'hold' ? locker.lock(name, { ...options, hold: true }) : locker.lock(name, options));
    locks.set(as, lock);
    lock.signal.addEventListener('abort', () => say({ event: 'lost', lock: as, loss: lock.loss.loss, why: lock.loss.why }));
    return look(lock);
  },
  check: ({ lock }) => look(locks.get(lock)),
  async release({ lock }) {
    const held = locks.get(lock);
    await (locks.has(held) ? locks.get(held)() : held.release());
    return {};
  },
  cancel({ request }) {
    requests.get(request).abort(new Cancelled('the request was cancelled'));
    return {};
  },
  async run({ client, name, ttl, body: kind }) {
    await clients.get(client).run(name, (lock) => body(lock, kind), { ttl });
    return {};
  },
  async once({ client, name, window, retry, body: kind }) {
    const { ran, run } = await clients.get(client).once(name, { window, retry, wait: 0 }, (lock) => body(lock, kind));
    return { ran, exit_code: run?.exit_code };
  },
  check_job: ({ client, name, max_age: maxAge, max_held: maxHeld }) => clients.get(client).check(name, { maxAge, maxHeld }),
  elect({ client, as, name, ttl }) {
    const resign = new AbortController();
    const lead = async (lock, signal) => {
      say({ event: 'leads', candidate: as });
      await until(signal);
      say({ event: 'follows', candidate: as });
    };
    const ended = clients.get(client).elect(name, lead, { ttl, signal: resign.signal });
    // `resign` has the error.
    ended.catch(() => {});
    candidates.set(as, { resign, ended });
    return {};
  },
  async resign({ candidate }) {
    const { resign, ended } = candidates.get(candidate);
    resign.abort();
    await ended;
    return {};
  },
  block({ for: time, check }) {
    Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, parseInt(time, 10) * (time.endsWith('ms') ? 1 : 1000));
    return look(locks.get(check));
  },
};

say({ client: 'node', pid: process.pid, can: ['event-loop', 'reentrant'] });
readline.createInterface({ input: process.stdin }).on('line', async (line) => {
  const { id, do: command, ...fields } = JSON.parse(line);
  try {
    say({ id, ok: await COMMANDS[command](fields) });
  } catch (error) {
    say({ id, ...failure(error) });
  }
}).on('close', () => process.exit(0));
