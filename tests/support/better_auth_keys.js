// better-auth with its API key plugin makes an organization and NUMBER keys in the database that libpq's variables
// name. Prints {"orgId": ..., "secrets": [...]}. The folder that it runs in has the packages.
import { apiKey } from '@better-auth/api-key';
import { betterAuth } from 'better-auth';
import { getMigrations } from 'better-auth/db/migration';
import { organization } from 'better-auth/plugins';
import pg from 'pg';

const pool = new pg.Pool();
const auth = betterAuth({
  baseURL: 'http://127.0.0.1',
  secret: 'secret-of-the-tests-0123456789-0123456789',
  database: pool,
  emailAndPassword: { enabled: true },
  plugins: [organization(), apiKey({ references: 'organization', storage: 'database' })],
});
const { runMigrations } = await getMigrations(auth.options);
await runMigrations();

const account = { name: 'Ada', email: 'ada@acme.example', password: 'password-of-the-tests' };
const { user } = await auth.api.signUpEmail({ body: account });
const org = await auth.api.createOrganization({ body: { name: 'Acme', slug: 'acme', userId: user.id } });
const secrets = [];
for (let number = 0; number < Number(process.env.NUMBER); number += 1) {
  const permissions = { projects: ['read'] };
  const body = { organizationId: org.id, userId: user.id, name: `key ${number}`, permissions };
  secrets.push((await auth.api.createApiKey({ body })).key);
}
await pool.end();
console.log(JSON.stringify({ orgId: org.id, secrets }));
