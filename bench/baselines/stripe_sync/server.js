// A Stripe sync engine behind fastify, as in its own server: it keeps the provider's objects in the schema `stripe`.
// `node server.js migrate` makes the tables, `node server.js` serves on PORT in PROCESSES processes.
import { createRequire } from 'node:module';

import fastify from 'fastify';

import { runCluster } from '../cluster.mjs';

// The package's ES module looks for its migrations in `__dirname`, which only its CommonJS one has.
const { runMigrations, StripeSync } = createRequire(import.meta.url)('@supabase/stripe-sync-engine');

const SCHEMA = 'stripe';

async function serve() {
  const sync = new StripeSync({
    poolConfig: { max: Number(process.env.POOL_SIZE) },
    schema: SCHEMA,
    stripeSecretKey: 'sk_test_unused',
    stripeWebhookSecret: process.env.STRIPE_WEBHOOK_SECRET,
    backfillRelatedEntities: false,
    autoExpandLists: false,
  });
  const app = fastify();
  app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (_request, body, done) => done(null, body));
  app.post('/webhooks', async (request, reply) => {
    try {
      await sync.processWebhook(request.body, request.headers['stripe-signature']);
    } catch (error) {
      console.error(error);
      return reply.code(400).send({ error: error.message });
    }
    return { received: true };
  });
  await app.listen({ port: Number(process.env.PORT), host: '127.0.0.1' });
}

if (process.argv[2] === 'migrate') {
  await runMigrations({ schema: SCHEMA, logger: { info: () => {}, error: console.error } });
} else {
  await runCluster(serve);
}
