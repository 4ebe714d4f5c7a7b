// better-auth with its Stripe plugin, which keeps the subscriptions of users. `node server.js migrate` makes the
// tables, `node server.js` serves on PORT in PROCESSES processes.
import { createServer } from 'node:http';

import { stripe } from '@better-auth/stripe';
import { betterAuth } from 'better-auth';
import { getMigrations } from 'better-auth/db/migration';
import { toNodeHandler } from 'better-auth/node';
import pg from 'pg';
import Stripe from 'stripe';

import { runCluster } from '../cluster.mjs';

const pool = new pg.Pool({ max: Number(process.env.POOL_SIZE) });

const auth = betterAuth({
  database: pool,
  rateLimit: { enabled: false }, // its default is 100 requests in 10 seconds for each address
  plugins: [
    stripe({
      stripeClient: new Stripe('sk_test_unused'),
      stripeWebhookSecret: process.env.STRIPE_WEBHOOK_SECRET,
      subscription: {
        enabled: true,
        plans: [
          { name: 'free', priceId: 'price_free' },
          { name: 'pro', priceId: 'price_pro' },
        ],
      },
    }),
  ],
});

if (process.argv[2] === 'migrate') {
  const { runMigrations } = await getMigrations(auth.options);
  await runMigrations();
  await pool.end();
} else {
  await runCluster(() => {
    createServer(toNodeHandler(auth)).listen(Number(process.env.PORT), '127.0.0.1');
  });
}
