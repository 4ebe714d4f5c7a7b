// better-auth with organizations that own API keys, and an API behind these keys. `node server.js migrate` makes the
// tables, `node server.js` serves on PORT in PROCESSES processes. The keys are in secondary storage alone, as the
// plugin's documentation advises for high performance; each process's memory replaces the Redis of its example, and is
// filled from the table at the start.
import { createServer } from 'node:http';
import { json } from 'node:stream/consumers';

import { apiKey } from '@better-auth/api-key';
import { betterAuth } from 'better-auth';
import { getMigrations } from 'better-auth/db/migration';
import { organization } from 'better-auth/plugins';
import pg from 'pg';

import { runCluster } from '../cluster.mjs';

const pool = new pg.Pool({ max: Number(process.env.POOL_SIZE) });
const stored = new Map();
const inMemory = {
  storage: 'secondary-storage',
  customStorage: {
    get: (name) => stored.get(name) ?? null,
    set: (name, value) => void stored.set(name, value),
    delete: (name) => void stored.delete(name),
  },
  deferUpdates: true,
};

const auth = betterAuth({
  database: pool,
  plugins: [
    organization(),
    apiKey({
      references: 'organization',
      rateLimit: { enabled: false }, // its default is 10 requests a day for each key
      ...inMemory,
    }),
  ],
  advanced: { backgroundTasks: { handler: (promise) => promise.catch(console.error) } },
});

async function authenticate(request) {
  const key = request.headers['x-api-key'];
  if (key === undefined) return null;
  const found = await auth.api.verifyApiKey({ body: { key, permissions: { projects: ['read'] } } });
  return found.valid ? found.key : null;
}

async function listProjects(key) {
  const found = await pool.query({
    name: 'projects',
    text: `SELECT id, org_id AS "orgId", name, description, created_at AS "createdAt", updated_at AS "updatedAt"
             FROM projects WHERE org_id = $1 ORDER BY created_at DESC, id DESC LIMIT 20`,
    values: [key.referenceId],
  });
  return { data: found.rows };
}

async function describe(key) {
  return { keyId: key.id, orgId: key.referenceId, permissions: key.permissions };
}

const routes = { 'GET /projects': listProjects, 'GET /verify': describe };

async function answer(request) {
  if (request.method === 'POST' && request.url === '/revoke') {
    const { keyId, userId } = await json(request);
    await auth.api.updateApiKey({ body: { keyId, userId, enabled: false } });
    return [200, { revoked: keyId }];
  }
  const route = routes[`${request.method} ${request.url}`];
  if (route === undefined) return [404, { error: 'Not found' }];
  const key = await authenticate(request);
  return key === null ? [401, { error: 'Invalid API key' }] : [200, await route(key)];
}

async function handle(request, response) {
  const [status, body] = await answer(request).catch((error) => {
    console.error(error);
    return [500, { error: 'Internal error' }];
  });
  const text = JSON.stringify(body);
  response.writeHead(status, { 'Content-Type': 'application/json', 'Content-Length': Buffer.byteLength(text) });
  response.end(text);
}

async function fillMemory() {
  const { rows } = await pool.query('SELECT * FROM apikey');
  for (const row of rows) {
    const value = JSON.stringify(row);
    stored.set(`api-key:${row.key}`, value);
    stored.set(`api-key:by-id:${row.id}`, value);
    const list = `api-key:by-ref:${row.referenceId}`;
    stored.set(list, JSON.stringify([...JSON.parse(stored.get(list) ?? '[]'), row.id]));
  }
}

if (process.argv[2] === 'migrate') {
  const { runMigrations } = await getMigrations(auth.options);
  await runMigrations();
  await pool.end();
} else {
  await runCluster(async () => {
    await fillMemory();
    createServer(handle).listen(Number(process.env.PORT), '127.0.0.1');
  });
}
