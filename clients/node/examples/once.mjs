// Writes a report once a night, although the timers of all hosts start this program.
import { Client } from 'fencepost-client';

const locks = new Client();

const report = await locks.once('report', { window: '24h', retry: true }, async (lock) => {
  console.log('writes the report, with the token', lock.token);
  return 17;
});
if (report.ran) {
  console.log('wrote', report.result, 'pages');
} else {
  console.log('has run already, with the exit code', report.run.exit_code);
}
await locks.close();
