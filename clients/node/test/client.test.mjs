// What behaviour.json does not have: the ways of Node.
import assert from 'node:assert/strict';
import { spawnSync } from 'node:child_process';
import { once } from 'node:events';
import fs from 'node:fs';
import http from 'node:http';
import { createRequire } from 'node:module';
import test from 'node:test';
import util from 'node:util';

import * as fencepost from 'fencepost-client';

import { file, folder, Program, service } from './kit.mjs';

const { BusyError, Client, InvalidError, LostError, TimedOutError, UnreachableError } = fencepost;

test('import and require give the same classes', () => {
  const required = createRequire(import.meta.url)('fencepost-client');
  assert.deepEqual(Object.keys(required).sort(), Object.keys(fencepost).filter((name) => !/^(default|module.exports)$/.test(name)).sort());
  assert.equal(required.LostError, LostError);
});

test('nothing that is printed has a secret', async (t) => {
  let lease, key;
  const { url } = await service(t);
  const answers = http.createServer(async (request, response) => {
    key ??= request.headers['idempotency-key'];
    const parts = [];
    for await (const part of request) parts.push(part);
    const headers = { 'Content-Type': 'application/json', ...(key ? { 'Idempotency-Key': key } : {}) };
    const passed = await fetch(url + request.url, { method: 'POST', headers, body: Buffer.concat(parts) });
    const text = await passed.text();
    if (passed.status === 200) ({ lease } = JSON.parse(text));
    response.writeHead(passed.status, { 'Content-Type': 'application/json' }).end(passed.status === 204 ? undefined : text);
  }).listen(0, '127.0.0.1');
  t.after(() => answers.close());
  await once(answers, 'listening');
  const locks = new Client(`http://127.0.0.1:${answers.address().port}`, { token: 'the-access-token' });
  const lock = await locks.lock('secrets');
  const failure = await locks.lock('', { wait: 0 }).catch((error) => error);
  assert.ok(failure instanceof InvalidError && lease.length > 20 && key.length > 20);
  const printed = [locks, lock, failure].map((one) => util.inspect(one, { depth: 20, showHidden: true }) + JSON.stringify(one)).join();
  for (const secret of [lease, key, 'the-access-token']) assert.ok(!printed.includes(secret));
  await lock.release();
  await locks.close();
});

test('code beside the body of a lock does not enter it, and code in the body does', async (t) => {
  const { url } = await service(t);
  const locks = new Client(url);
  let inside = 0, most = 0;
  const work = () => locks.run('inner', async () => {
    most = Math.max(most, ++inside);
    await locks.run('inner', (nested) => nested.ensureHeld());
    inside -= 1;
  });
  await locks.run('outer', () => Promise.all([work(), work(), work()]));
  assert.equal(most, 1);
  // Code that outlives the body asks for a lock of its own.
  let later, ended;
  const hasEnded = new Promise((resolve) => { ended = resolve; });
  const token = await locks.run('outer', (lock) => {
    later = hasEnded.then(() => locks.tryLock('outer'));
    return lock.token;
  });
  ended();
  const lock = await later;
  assert.ok(lock.token > token);
  await lock.release();
  await locks.close();
});

test('an aborted signal ends a wait with its reason, and not a lock', async (t) => {
  const { url } = await service(t);
  const locks = new Client(url);
  const reason = new Error('enough');
  await assert.rejects(locks.lock('job', { signal: AbortSignal.abort(reason) }), reason);
  for (const hold of [false, true]) {
    const cancel = new AbortController();
    const lock = await locks.lock(`job ${hold}`, { signal: cancel.signal, hold });
    const waits = assert.rejects(locks.lock(`job ${hold}`, { signal: cancel.signal, hold }), reason);
    cancel.abort(reason);
    await waits;
    lock.ensureHeld();
    await lock.release();
    assert.throws(() => lock.ensureHeld(), { loss: 'released' });
    assert.equal(lock.signal.aborted, false);
  }
  await locks.close();
});

test('a request that is aborted at any moment leaves nothing behind', async (t) => {
  const { url } = await service(t);
  const locks = new Client(url);
  const began = performance.now();
  await locks.run('job', () => {});
  const took = performance.now() - began, steps = 40;
  for (const hold of [false, true]) {
    for (let step = 0; step < steps; step += 1) {
      const cancel = new AbortController();
      const work = locks.run('job', () => {}, { signal: cancel.signal, hold }).catch((error) => assert.equal(error.name, 'AbortError'));
      const end = performance.now() + took * step / steps;
      while (performance.now() < end) await new Promise(setImmediate);
      cancel.abort();
      await work;
      // What is left would stay for 30 s, and what is left of a stream for 10 s.
      await locks.run('job', () => {}, { wait: 5_000 });
    }
  }
  await locks.close();
});

test('busy, timed out and unreachable are told apart', async (t) => {
  const { url } = await service(t);
  const locks = new Client([url], { holder: 'first' });
  const lock = await locks.lock('job', { hold: true });
  for (const hold of [false, true]) {
    await assert.rejects(locks.lock('job', { wait: 0, hold }), (error) => error instanceof BusyError && !(error instanceof TimedOutError));
    const late = (error) => error instanceof TimedOutError && error.holders[0].holder === 'first' && error.message.includes('job');
    await assert.rejects(locks.lock('job', { wait: 300, hold }), late);
  }
  assert.equal(await locks.tryLock('job'), undefined);
  await lock.release();
  await assert.rejects(new Client('http://127.0.0.1:1').lock('job', { wait: 0 }), UnreachableError);
  await assert.rejects(locks.lock('job', { wait: 'soon' }), InvalidError);
  assert.throws(() => new Client('http://user:secret@host'), (error) => error instanceof InvalidError && !/secret/.test(error.message));
  await locks.close();
});

test('a wait that ends with the loss of another lock is withdrawn', async (t) => {
  const { url } = await service(t);
  const locks = new Client(url);
  const taken = await locks.lock('job');
  const reason = new LostError('the lock around it is lost');
  const cancel = new AbortController();
  const waits = assert.rejects(locks.lock('job', { signal: cancel.signal }), reason);
  const look = async () => (await fetch(`${url}/v1/lock?name=job`)).json();
  while ((await look()).waiters.length === 0);
  cancel.abort(reason);
  await waits;
  await locks.close();
  assert.equal((await look()).waiters.length, 0);
  await taken.release();
});

test('a lock that was lost after a renewal had failed is lost for its release, too', async (t) => {
  const { url } = await service(t);
  let extensions = 0;
  const answers = http.createServer(async (request, response) => {
    const parts = [];
    for await (const part of request) parts.push(part);
    if (request.url === '/v1/leases/extend') {
      extensions += 1;
      if (extensions === 1) return request.socket.destroy();
      return response.writeHead(410, { 'Content-Type': 'application/json' }).end('{"code": "lease-ended", "status": 410}');
    }
    const headers = { 'Content-Type': 'application/json', 'Idempotency-Key': request.headers['idempotency-key'] ?? '' };
    if (!headers['Idempotency-Key']) delete headers['Idempotency-Key'];
    const passed = await fetch(url + request.url, { method: 'POST', headers, body: Buffer.concat(parts) });
    const text = await passed.text();
    return response.writeHead(passed.status, { 'Content-Type': 'application/json' }).end(passed.status === 204 ? undefined : text);
  }).listen(0, '127.0.0.1');
  t.after(() => answers.close());
  await once(answers, 'listening');
  const locks = new Client(`http://127.0.0.1:${answers.address().port}`, { ttl: '3s' });
  const lock = await locks.lock('job');
  await once(lock.signal, 'abort');
  assert.equal(lock.loss.loss, 'deleted');
  await assert.rejects(lock.release(), LostError);
  await locks.close();
});

test('without a clock that runs during a suspension, the earlier verdict of two clocks counts', async (t) => {
  const { url } = await service(t);
  const place = folder(t);
  fs.writeFileSync(`${place}/clocks.cjs`, `
    const fs = require('node:fs'), { openSync } = fs, { now } = Date;
    fs.openSync = (path, ...rest) => { if (path === '/proc/uptime') throw new Error('not here'); return openSync(path, ...rest); };
    Date.now = () => now() + (globalThis.ahead ?? 0);
  `);
  const program = `
    const { Client } = require(${JSON.stringify(file('fencepost.cjs'))});
    (async () => {
      const locks = new Client(${JSON.stringify(url)}, { ttl: '30s' });
      const one = await locks.lock('one'), two = await locks.lock('two', { ttl: '1s' });
      globalThis.ahead = -60_000;
      console.log(one.isHeld());
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, 1100);
      console.log(two.isHeld(), two.loss.loss, two.signal.aborted);
      const { signal } = one;
      globalThis.ahead = 60_000;
      // The next renewal is due in some 10 s, and nobody asks.
      const began = performance.now();
      await new Promise((resolve) => signal.addEventListener('abort', resolve));
      console.log(performance.now() - began < 5_000);
      console.log(one.isHeld(), one.loss.loss);
      for (const lock of [one, two]) await lock.release().catch((error) => console.log(error.name));
      await locks.close();
    })();
  `;
  const started = new Program(t, process.execPath, ['--require', `${place}/clocks.cjs`, '-e', program]);
  assert.deepEqual(await started.end(), ['true', 'false expired true', 'true', 'false expired', 'LostError', 'LostError']);
});

test('the package that is published can be imported and required', async (t) => {
  const place = folder(t);
  const npm = (...args) => {
    const done = spawnSync('npm', [...args, '--offline', '--no-audit', '--no-fund'], { cwd: place, encoding: 'utf8' });
    assert.equal(done.status, 0, done.stderr);
    return done.stdout.trim().split('\n').at(-1);
  };
  const packed = npm('pack', file());
  fs.writeFileSync(`${place}/package.json`, '{}');
  npm('install', `./${packed}`);
  fs.writeFileSync(`${place}/a.mjs`, "import { Client } from 'fencepost-client'; console.log(typeof Client);");
  fs.writeFileSync(`${place}/b.cjs`, "const { Client } = require('fencepost-client'); console.log(typeof Client);");
  for (const name of ['a.mjs', 'b.cjs']) {
    assert.deepEqual(await new Program(t, process.execPath, [name], { cwd: place }).end(), ['function']);
  }
  assert.ok(fs.existsSync(`${place}/node_modules/fencepost-client/fencepost.d.cts`));
});
