'use strict';
/**
 * The client of the lock service: docs/clients.md has the rules that it keeps, and fencepost.d.cts its types. A request for a lock goes
 * from `Client` through `Service`, which repeats it, and ends in a `Lease`, which renews it. A `Lock` is a caller's handle on a lease.
 */

const { AsyncLocalStorage } = require('node:async_hooks');
const { randomUUID } = require('node:crypto');
const fs = require('node:fs');
const http = require('node:http');
const https = require('node:https');
const os = require('node:os');

// ---- Errors

class LockError extends Error {
  get name() { return this.constructor.name; }
}

/** The lock was not granted, because others hold it. */
class BusyError extends LockError {
  constructor(message, { holders = [], waiters } = {}) {
    super(message);
    Object.assign(this, { holders, waiters });
  }
}

/** The time of the wait is over. */
class TimedOutError extends BusyError {}

/** The lock was lost: another one may hold it. */
class LostError extends LockError {
  constructor(message, { loss = 'deleted', why, cause } = {}) {
    super(message, cause && { cause });
    this.loss = loss;
    if (why !== undefined) this.why = why;
  }
}

/** The access token is missing or unknown, has expired, or is not for this name. */
class DeniedError extends LockError {}

/** No service answers. */
class UnreachableError extends LockError {}

/** The certificate of the service is not trusted. */
class CertificateError extends LockError {}

/** The request breaks a rule. The message says what to change. */
class InvalidError extends LockError {}

/** The engine behind the service does not have this. */
class UnsupportedError extends LockError {}

/** A firing that has run already: `once` makes its answer from it. */
class AlreadyRun extends LockError {}

/** A failure after which the same request is sent again. A copy of the service that is `closing` has answered until now. */
class Passing extends UnreachableError {
  isClosing = false;
  get name() { return 'UnreachableError'; }
}

const AGAIN = ['closing', 'in-progress', 'overloaded', 'too-many-requests', 'too-many-waiting', 'unreachable'];

/** Makes the error for a problem of the service. Without a `code` something else has answered, for example a proxy. */
function errorOf(status, problem, name) {
  const { code, detail: text = `the answer has status ${status} and is none of the lock service` } = problem ?? {};
  const detail = name ? `the lock ${name}: ${text}` : text;
  if (AGAIN.includes(code) || (!code && status >= 500)) return Object.assign(new Passing(detail), { isClosing: code === 'closing' });
  switch (code) {
    case 'busy': return new BusyError(detail, problem);
    case 'timed-out': return new TimedOutError(detail, problem);
    case 'already-run': return Object.assign(new AlreadyRun(detail), { run: problem.run });
    case 'lease-ended': return new LostError(detail, problem);
    case 'unsupported': return new UnsupportedError(detail);
  }
  if (status === 401 || status === 403) return new DeniedError(detail);
  return status >= 500 ? new LockError(detail) : new InvalidError(detail);
}

/** Makes the error for a request without an answer. */
function brokenBy(cause) {
  if (cause instanceof LockError) return cause;
  if (/CERT|SELF_SIGNED|UNABLE_TO_/.test(cause.code ?? '')) return new CertificateError(cause.message, { cause });
  // Node refuses what it cannot send, for example an access token with a line break.
  if (/^ERR_(INVALID|UNESCAPED)/.test(cause.code ?? '')) return new InvalidError(cause.message);
  return new Passing(cause.message || cause.code, { cause });
}

// ---- Time

/** The clock that also runs while the machine is suspended, in steps of 10 ms. */
const uptime = (() => {
  try {
    const file = fs.openSync('/proc/uptime', 'r');
    const buffer = Buffer.alloc(64);
    const read = () => 1000 * parseFloat(buffer.latin1Slice(0, fs.readSync(file, buffer, 0, 64, 0)));
    return read() > 0 ? read : undefined;
  } catch {
    return undefined;
  }
})();

/** Returns this moment by one clock, or by two where no clock runs during a suspension. */
const moment = () => uptime ? [uptime()] : [performance.now(), Date.now()];

/** Returns the milliseconds since a moment: the most that they can be, so that nobody believes in a lock for too long. */
const elapsed = (since) => Math.max(...moment().map((now, clock) => now - since[clock])) + (uptime ? 10 : 0);

const UNITS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000 };

/** Reads a duration: milliseconds, or a text such as `1m30s`. */
function milliseconds(duration) {
  if (typeof duration === 'number' && duration >= 0) return duration;
  if (duration === 'forever') return Infinity;
  const parts = /^(\d+(ms|[smhd]))+$/.test(duration) ? duration.match(/\d+(ms|[smhd])/g) : undefined;
  if (!parts) throw new InvalidError(`"${duration}" is no duration: write milliseconds, or a text such as "500ms", "30s" and "1m30s"`);
  return parts.reduce((sum, part) => sum + parseInt(part, 10) * UNITS[part.replace(/\d+/, '')], 0);
}

/** Writes a duration for the service. */
const text = (duration) => typeof duration === 'number' ? `${Math.ceil(duration)}ms` : duration;

/** The longest time of a timer. */
const LONGEST = 2 ** 31 - 1;

/** Waits. Throws the reason of the signal when it is aborted. */
function pause(time, signal) {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) return reject(signal.reason);
    const end = () => { clearTimeout(timer); reject(signal.reason); };
    const timer = setTimeout(() => { signal?.removeEventListener('abort', end); resolve(); }, Math.min(time, LONGEST));
    signal?.addEventListener('abort', end, { once: true });
  });
}

// ---- Requests

/** The addresses of the service, and how requests get there. */
class Service {
  #urls; #agents; #token; #tokenFile;
  #at = 0;
  #late = new Set();

  constructor(urls, { token, tokenFile, caFile }) {
    this.#urls = [urls].flat().map((url) => {
      const { protocol, username, host, pathname } = new URL(url);
      if (!/^https?:$/.test(protocol)) throw new InvalidError(`the address ${protocol}//${host} has to begin with http: or https:`);
      if (username) throw new InvalidError('an access token does not belong into the address: use token or tokenFile');
      return `${protocol}//${host}${pathname.replace(/\/$/, '')}`;
    });
    if (this.#urls.length === 0) throw new InvalidError('there is no address of the lock service');
    const ca = caFile === undefined ? undefined : fs.readFileSync(caFile);
    this.#agents = { 'http:': new http.Agent({ keepAlive: true }), 'https:': new https.Agent({ keepAlive: true, ca }) };
    this.#token = token;
    this.#tokenFile = tokenFile;
    if (tokenFile !== undefined) this.#token = this.#read();
  }

  #read() { return fs.readFileSync(this.#tokenFile, 'utf8').trim(); }

  /** Reads the file of the access token again. Returns whether the token is another one than that which was refused. */
  #hasNewToken(refused) {
    if (this.#tokenFile === undefined) return false;
    try {
      this.#token = this.#read() || this.#token;
    } catch {
      // The file is being replaced.
    }
    return this.#token !== refused;
  }

  close() { Object.values(this.#agents).forEach((agent) => agent.destroy()); }

  /** Sends a request whose outcome nobody waits for. */
  callLater(...request) {
    const work = this.call(...request).catch(() => {}).then(() => this.#late.delete(work));
    this.#late.add(work);
  }

  /** Waits until all such requests have ended. */
  settled() { return Promise.all(this.#late); }

  /** Sends a request to one address. `stillAlive` gives the answer that is under way another `limit` of time. */
  #send(at, path, body, { key, token, limit, signal }) {
    return new Promise((resolve, reject) => {
      signal?.throwIfAborted();
      const url = this.#urls[at] + path;
      const { protocol } = new URL(url);
      const content = JSON.stringify(body);
      const headers = !body ? {} : { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(content) };
      const method = body ? 'POST' : 'GET';
      if (key) headers['Idempotency-Key'] = key;
      if (token) headers.Authorization = `Bearer ${token}`;
      const send = protocol === 'https:' ? https.request : http.request;
      const request = send(url, { method, headers, signal, agent: this.#agents[protocol] });
      const timer = setTimeout(() => request.destroy(new Error(`no answer within ${limit} ms`)), limit);
      request.on('close', () => clearTimeout(timer));
      request.on('error', reject);
      request.on('response', (response) => resolve({ response, stillAlive: () => timer.refresh() }));
      request.end(content);
    });
  }

  /**
   * Sends a request until it has an answer that counts, for `patience` milliseconds after the first failure. `body` makes the body of each
   * attempt. `isFinal` says which errors end it that are no invitation to try again. With `events` it returns the response itself.
   */
  async call(path, body, { key, limit = 5000, signal, patience = 10_000, isFinal = () => true, at = this.#at, events, name, onFailure } = {}) {
    let failed, wait = 0;
    for (;;) {
      const sent = moment(), token = this.#token;
      let error;
      try {
        const time = typeof limit === 'function' ? limit() : limit;
        const { response, stillAlive } = await this.#send(at, path, body(), { key, token, limit: time, signal });
        const status = response.statusCode;
        if (events && status === 200) return { response, stillAlive, sent };
        const answer = await json(response);
        if (status === 204 || (status < 300 && answer)) {
          this.#at = at;
          return { ...answer, answer, status, sent, at };
        }
        if (status === 401 && this.#hasNewToken(token)) continue;
        error = errorOf(status, answer, name);
      } catch (cause) {
        if (signal?.aborted) throw signal.reason;
        error = brokenBy(cause);
      }
      onFailure?.(error);
      if (!(error instanceof Passing) && isFinal(error)) {
        if (failed) repeated.add(error);
        throw error;
      }
      if (!failed || error.isClosing) failed = moment();
      if (elapsed(failed) >= patience) throw unreachable(error);
      // A connection that was reset may have been idle for too long, and the position in the queue is kept at the same address.
      if (error.cause?.code !== 'ECONNRESET' || wait > 0) at = (at + 1) % this.#urls.length;
      await pause(wait, signal);
      wait = Math.min(1000, wait * 2 || 100);
    }
  }
}

/** The errors that answer a repeated request: an earlier attempt may have had its effect. */
const repeated = new WeakSet();

const unreachable = (cause) => new UnreachableError(`the lock service is unreachable: ${cause.message}`, { cause });

/** Reads an answer. It is undefined if it is no JSON. */
async function json(response) {
  const parts = [];
  for await (const part of response) parts.push(part);
  try {
    return JSON.parse(Buffer.concat(parts).toString());
  } catch {
    return undefined;
  }
}

/** Reads server-sent events. */
async function* read({ response, stillAlive }) {
  let rest = '', event;
  for await (const part of response.setEncoding('utf8')) {
    stillAlive();
    const lines = (rest + part).split(/\r?\n/);
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith('event:')) event = line.slice(6).trim();
      if (line.startsWith('data:')) yield { event, ...JSON.parse(line.slice(5)) };
    }
  }
}

/** Iterates without closing the iterator at a `return`, so that another loop can go on. */
const keptOpen = (events) => ({ [Symbol.asyncIterator]: () => ({ next: () => events.next() }) });

// ---- Leases and locks

/** A grant, and what keeps it. It is shared by the locks of one owner in each other. */
class Lease {
  #service; #secret; #sent; #valid; #timer; #failure; #response;
  #loss = new AbortController();
  #stop = new AbortController();
  /** How many locks share the lease. */
  users = 1;
  /** Why the lock is no longer held. */
  ended;

  constructor(service, name, mode, grant) {
    Object.assign(this, { name, mode, token: grant.token });
    this.#service = service;
    this.#secret = grant.lease;
    this.#believe(grant.sent, grant.valid_ms);
  }

  get signal() {
    this.isHeld();
    return this.#loss.signal;
  }

  #left() { return this.#valid - elapsed(this.#sent); }

  #believe(sent, valid) {
    if (this.ended) return;
    this.#sent = sent;
    this.#valid = valid;
    clearTimeout(this.#timer);
    // It looks each second, because timers stop while the machine is suspended.
    this.#timer = setTimeout(() => this.isHeld() && this.#believe(sent, valid), Math.min(1000, Math.max(1, this.#left())));
  }

  /** Looks at the clock: a process that was paused, or whose event loop was blocked, is told of the loss here. */
  isHeld() {
    if (!this.ended && this.#left() <= 0) {
      const why = this.#failure ? `: ${this.#failure.message}` : '';
      this.#lose(new LostError(`the lock ${this.name} is lost, because its lease was not renewed in time${why}`,
        { loss: 'expired', cause: this.#failure }));
    }
    return !this.ended;
  }

  #end(ended) {
    this.ended = ended;
    clearTimeout(this.#timer);
    this.#stop.abort();
  }

  #lose(error) {
    if (this.ended) return;
    this.#end(error);
    this.#loss.abort(error);
  }

  /** Renews the lease until it ends. */
  async renew() {
    const body = () => ({ lease: this.#secret });
    const onFailure = (error) => { this.#failure = error; };
    // A lease has ended if the service says so. All else can pass before the validity ends.
    const isFinal = (error) => error instanceof LostError;
    try {
      for (;;) {
        const next = this.#valid / 3 - elapsed(this.#sent);
        await pause(next, this.#stop.signal);
        if (!this.isHeld()) return;
        if (next > LONGEST) continue;
        // Half of what is left, so that there is time for another address.
        const limit = () => Math.min(5000, Math.max(100, this.#left() / 2));
        const signal = this.#stop.signal;
        const grant = await this.#service.call('/v1/leases/extend', body, { limit, signal, isFinal, onFailure, name: this.name, patience: Infinity });
        this.#failure = undefined;
        this.#believe(grant.sent, grant.valid_ms);
      }
    } catch (error) {
      if (!this.ended) this.#lose(error);
    }
  }

  /** Reads the events of the service that renews the lease. */
  async follow(response, sent, events) {
    this.#response = response;
    try {
      for await (const { event, ...data } of events) {
        if (event === 'held') this.#believe(sent, data.valid_ms);
        if (event === 'lost') return this.#lose(new LostError(`the lock ${this.name}: ${data.detail}`, data));
      }
    } catch (error) {
      this.#failure = error;
    }
    this.#lose(new LostError(`the lock ${this.name} is lost, because its stream has ended`, { loss: 'expired', cause: this.#failure }));
  }

  /** Ends one use of the lease, and releases it with the last one. Throws if the lock is lost. */
  async leave(report = {}) {
    this.users -= 1;
    const body = () => ({ lease: this.#secret, ...report });
    try {
      if (this.users > 0) {
        if (!this.isHeld()) throw this.ended;
      } else if (this.isHeld()) {
        const patience = Math.min(10_000, this.#left());
        this.#end(new LostError(`the lock ${this.name} was released`, { loss: 'released' }));
        await this.#service.call('/v1/leases/release', body, { patience, name: this.name }).catch((error) => {
          // The answer to an earlier attempt was lost.
          if (!(error instanceof LostError && repeated.has(error) && /^(released|deleted)$/.test(error.loss))) throw error;
        });
      } else {
        // The holder has stopped, so the next one need not wait. Whether the service is told makes no difference to the loss.
        this.#service.callLater('/v1/leases/release', body, { patience: 0 });
        throw this.ended;
      }
    } catch (error) {
      if (error instanceof LostError) this.ended = error;
      throw error;
    } finally {
      if (this.users === 0) this.#response?.destroy();
    }
  }
}

let leaseOf;

/** A lock that was granted. */
class Lock {
  #lease; #left; #released;

  constructor(lease) { this.#lease = lease; }

  static { leaseOf = (lock) => lock.#lease; }

  get name() { return this.#lease.name; }
  get token() { return this.#lease.token; }
  get signal() { return this.#lease.signal; }
  get loss() { return this.isHeld() ? undefined : (this.#lease.ended ?? this.#released); }

  isHeld() { return !this.#left && this.#lease.isHeld(); }

  ensureHeld() {
    if (!this.isHeld()) throw this.loss;
  }

  release(report) {
    this.#released ??= new LostError(`the lock ${this.name} was released`, { loss: 'released' });
    return this.#left ??= this.#lease.leave(report);
  }

  async [Symbol.asyncDispose]() { await end(this); }
}

/** Releases after work that ended well. A release that could not be sent is no failure of the work, because the lease ends by itself. */
async function end(lock) {
  try {
    await lock.release();
  } catch (error) {
    if (error instanceof LostError) throw error;
    process.emitWarning(`the lock ${lock.name} stays until its lease ends, because it could not be released: ${error.message}`);
  }
}

// ---- The client

class Client {
  #service; #defaults;
  /** The locks of `run` whose body is running here, the innermost first. */
  #scope = new AsyncLocalStorage();

  constructor(urls = process.env.FENCEPOST_URL, { token = process.env.FENCEPOST_SERVICE_TOKEN, tokenFile, caFile, ttl, holder } = {}) {
    if (urls === undefined) throw new InvalidError('name the address of the lock service, or set FENCEPOST_URL');
    this.#service = new Service(urls, { token, tokenFile, caFile });
    this.#defaults = { ttl, holder };
  }

  /** Waits for a lock. Throws `BusyError` or `TimedOutError` if it is not granted within `wait`. */
  async lock(name, options = {}) {
    const { ttl = this.#defaults.ttl, holder = this.#defaults.holder, reason, mode = 'exclusive', permits, take } = options;
    const { wait = Infinity, signal, hold, once } = options;
    const limit = milliseconds(wait);
    signal?.throwIfAborted();
    const nested = permits === undefined && !once && this.#nested(name, mode);
    if (nested) return new Lock(nested);
    const request = {
      name, ttl: text(ttl), holder, reason, once, process: { host: os.hostname(), pid: process.pid },
      ...(permits === undefined ? { mode } : { mode: 'permits', permits, take }),
    };
    return new Lock(await (hold ? this.#stream(request, limit, signal) : this.#acquire(request, limit, signal)));
  }

  /** Takes a lock if it is free. */
  async tryLock(name, options) {
    try {
      return await this.lock(name, { ...options, wait: 0 });
    } catch (error) {
      if (error instanceof BusyError) return undefined;
      throw error;
    }
  }

  /** Runs `body` while a lock is held. Client of the same name in `body` are this one. */
  async run(name, body, options) {
    const lock = await this.lock(name, options);
    return this.#within(lock, body, () => end(lock));
  }

  /** Runs a job once for each firing, although several hosts start it. */
  async once(name, { window, retry, ...options }, body) {
    let lock;
    try {
      lock = await this.lock(name, { ...options, once: { window: text(window), retry } });
    } catch (error) {
      if (error instanceof AlreadyRun) return { ran: false, run: error.run };
      throw error;
    }
    return { ran: true, result: await this.#within(lock, body, (exit_code) => lock.release({ exit_code })) };
  }

  /** Tells whether a job has succeeded lately. */
  async check(name, { maxAge, maxHeld, signal } = {}) {
    const limits = { max_age: text(maxAge), max_held: text(maxHeld) };
    const given = Object.entries({ name, ...limits }).filter(([, value]) => value !== undefined);
    const { answer } = await this.#service.call(`/v1/check?${new URLSearchParams(given)}`, () => undefined, { name, signal });
    return answer;
  }

  /** Leads again and again, until the signal is aborted. */
  async elect(name, lead, { signal, ...options } = {}) {
    while (!signal?.aborted) {
      let term;
      try {
        await this.run(name, (lock) => {
          term = signal ? AbortSignal.any([lock.signal, signal]) : lock.signal;
          return lead(lock, term);
        }, { ...options, wait: Infinity, signal });
      } catch (error) {
        // Work that was told to stop may say so by an error.
        const isOver = term ? term.aborted || error instanceof LostError : signal?.aborted || error instanceof UnreachableError;
        if (!isOver) throw error;
      }
    }
    await this.#service.settled();
  }

  /** Waits until requests that were cancelled are withdrawn, and closes the connections. */
  async close() {
    await this.#service.settled();
    this.#service.close();
  }

  async [Symbol.asyncDispose]() { await this.close(); }

  /** Finds the lease of a `run` around this code. */
  #nested(name, mode) {
    for (let scope = this.#scope.getStore(); scope; scope = scope.outer) {
      const lease = leaseOf(scope.lock);
      if (lease.name !== name || lease.mode !== mode || lease.users === 0) continue;
      if (!lease.isHeld()) throw lease.ended;
      lease.users += 1;
      return lease;
    }
    return undefined;
  }

  async #within(lock, body, end) {
    let result;
    try {
      result = await this.#scope.run({ lock, outer: this.#scope.getStore() }, body, lock);
    } catch (error) {
      await end(1).catch((failure) => {
        if (failure instanceof LostError && Object.isExtensible(Object(error)) && error instanceof Object) error.lost ??= failure;
      });
      throw error;
    }
    await end(0);
    return result;
  }

  async #acquire(request, limit, signal) {
    const key = randomUUID(), began = moment();
    const body = () => {
      const left = Math.max(0, limit - elapsed(began));
      return limit === 0 ? request : { ...request, wait: left > 10_000 ? 'forever' : text(left) };
    };
    let at;
    try {
      for (;;) {
        const grant = await this.#service.call('/v1/acquire', body, { name: request.name, key, at, signal, limit: limit === 0 ? 5000 : 15_000 });
        at = grant.at;
        // If it took too long, the repeated request extends the lease.
        if (grant.status !== 200 || elapsed(grant.sent) >= grant.valid_ms) continue;
        const lease = new Lease(this.#service, request.name, request.mode, grant);
        lease.renew();
        return lease;
      }
    } catch (error) {
      // The reason of a signal may be an error of this module, for example that of a lock around this one.
      const isUnknown = error instanceof UnreachableError || error instanceof CertificateError || !(error instanceof LockError);
      const gaveUp = signal?.aborted || isUnknown;
      if (gaveUp) this.#service.callLater('/v1/withdraw', body, { key });
      if (!gaveUp && limit > 0 && error instanceof BusyError) throw new TimedOutError(error.message, error);
      throw error;
    }
  }

  /**
   * Takes a lock that the service renews for as long as the stream lasts. The first event has the lease of the grant. If the stream ends
   * before the grant was read, the lease is released, because the service may have granted the lock at that moment. So a stream whose
   * signal is aborted is read until the first event.
   */
  async #stream(request, limit, signal) {
    const began = moment();
    for (let failed; ;) {
      const left = Math.max(0, limit - elapsed(began)), isLong = left > 300_000;
      const body = () => limit === 0 ? request : { ...request, wait: isLong ? 'forever' : text(left) };
      // It ends the wait and, unlike `signal`, not the stream of a lock that was granted.
      let told;
      const stop = new AbortController(), abort = () => stop.abort(signal.reason);
      const cancel = () => told ? abort() : setTimeout(abort, 1000).unref();
      signal?.addEventListener('abort', cancel);
      const late = () => stop.abort(new TimedOutError(`the lock ${request.name} was not granted in time`));
      const timer = isLong && left <= LONGEST ? setTimeout(late, left) : undefined;
      let error;
      try {
        const stream = await this.#service.call('/v1/hold', body, { name: request.name, limit: 10_000, signal: stop.signal, events: true });
        const events = read(stream);
        for await (const { event, ...data } of keptOpen(events)) {
          if (event === 'waiting') [failed, told] = [undefined, data.lease];
          if (event === 'waiting' && signal?.aborted) abort();
          if (event === 'refused') {
            told = undefined;
            throw errorOf(data.status, data, request.name);
          }
          if (event !== 'granted') continue;
          const lease = new Lease(this.#service, request.name, request.mode, { ...data, sent: stream.sent });
          told = undefined;
          lease.follow(stream.response, stream.sent, events);
          return lease;
        }
        error = brokenBy(new Error('the stream has ended'));
      } catch (cause) {
        if (stop.signal.aborted) throw stop.signal.reason;
        error = brokenBy(cause);
      } finally {
        signal?.removeEventListener('abort', cancel);
        clearTimeout(timer);
        if (told) this.#service.callLater('/v1/leases/release', () => ({ lease: told }), {});
      }
      if (limit > 0 && error instanceof BusyError) throw new TimedOutError(error.message, error);
      if (!(error instanceof Passing)) throw error;
      if (!failed || error.isClosing) failed = moment();
      if (elapsed(failed) > 10_000) throw unreachable(error);
      await pause(100, signal);
    }
  }
}

module.exports = {
  Client, LockError, BusyError, TimedOutError, LostError, DeniedError, UnreachableError, CertificateError, InvalidError, UnsupportedError,
};
