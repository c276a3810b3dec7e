// Writes into PostgreSQL, which refuses the write of a holder that was paused for too long.
// The table has a column for the token:
// CREATE TABLE stock (id BIGINT PRIMARY KEY, pieces BIGINT NOT NULL, token BIGINT NOT NULL DEFAULT 0);
import { Client } from 'fencepost-client';
import pg from 'pg';

const locks = new Client();
const database = new pg.Pool({ connectionString: process.env.DATABASE_URL });

const READ = 'UPDATE stock SET token = $2 WHERE id = $1 AND token <= $2 RETURNING pieces';
const WRITE = 'UPDATE stock SET pieces = $3, token = $2 WHERE id = $1 AND token <= $2';

async function sell(id) {
  return locks.run(`stock/${id}`, async (lock) => {
    const { rows: [row] } = await database.query(READ, [id, lock.token]);
    if (!row) throw new Error('a later holder was here, or there is no such row');
    const pieces = Number(row.pieces) - 1;
    const { rowCount } = await database.query(WRITE, [id, lock.token, pieces]);
    if (rowCount !== 1) throw new Error('a later holder was here');
    return pieces;
  });
}

const pieces = await Promise.all([sell(42), sell(42), sell(42)]);
console.log('pieces left after each sale:', pieces.sort().join(', '));
await database.end();
await locks.close();
