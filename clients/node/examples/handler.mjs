// A request takes the lock of its order, works for a second, and answers.
// Another request for the same order waits for at most 3 s.
import http from 'node:http';
import { setTimeout as sleep } from 'node:timers/promises';

import { BusyError, Client, LostError } from 'fencepost-client';

const locks = new Client();

const server = http.createServer(async (request, response) => {
  const answer = (status, text) => response.writeHead(status, { 'Content-Type': 'text/plain' }).end(`${text}\n`);
  // If the caller hangs up, its request leaves the queue.
  const gone = new AbortController();
  response.once('close', () => gone.abort());
  try {
    const token = await locks.run(`order${request.url}`, async (lock) => {
      await sleep(1000, undefined, { signal: lock.signal });
      lock.ensureHeld();
      return lock.token;
    }, { wait: '3s', signal: gone.signal });
    answer(200, `done with the token ${token}`);
  } catch (error) {
    if (gone.signal.aborted) return;
    if (error instanceof BusyError) answer(409, 'another request works on this order');
    else if (error instanceof LostError || error.lost) answer(503, 'the lock was lost: ask what became of the order');
    else answer(500, 'the order failed');
  }
});
server.listen(Number(process.env.PORT ?? 8080), '127.0.0.1', () => {
  console.log(`listens at http://127.0.0.1:${server.address().port}`);
});
process.once('SIGTERM', () => server.close(() => locks.close()));
