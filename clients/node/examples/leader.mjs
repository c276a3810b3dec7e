// One of several processes leads. Ctrl-C and SIGTERM make it stand down.
import { setTimeout as sleep } from 'node:timers/promises';

import { Client } from 'fencepost-client';

const locks = new Client();
const ended = new AbortController();
for (const signal of ['SIGINT', 'SIGTERM']) process.once(signal, () => ended.abort());

console.log('is a candidate');
await locks.elect('leader', async (lock, signal) => {
  console.log('leads, with the token', lock.token);
  // The signal is aborted when the lock is lost, and when this process stands down.
  while (!signal.aborted) {
    lock.ensureHeld();          // before each step that cannot be undone
    await sleep(1000, undefined, { signal }).catch(() => {});
  }
  console.log('leads no more');
}, { ttl: '10s', signal: ended.signal });
await locks.close();
