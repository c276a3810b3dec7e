// Waits for at most 2 s, and says who holds the lock.
import { BusyError, Client } from 'fencepost-client';

const locks = new Client();

try {
  await locks.run('import', () => console.log('imports'), { wait: '2s' });
} catch (error) {
  if (!(error instanceof BusyError)) throw error;
  console.log('not now:', error.holders[0]?.holder ?? 'somebody', 'is at work');
}
await locks.close();
