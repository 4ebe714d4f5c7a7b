// A real OpenID provider on loopback: `node server.js CLIENT...` serves clients of these ids, whose secret is
// CLIENT_SECRET, prints one line of JSON, {"issuer": ...}, when it is ready, and ends when its standard input does.
// A client_credentials request names the algorithm of its token by the resource (urn:tenantry:RS256, ...:ES256 and the
// others of ALGORITHMS); the members of the JSON object in its form field `claims` become claims of the token.
// `tenantry-cli` is a public client for signing in, and `dashboard` the one with CLIENT_SECRET of a dashboard at
// DASHBOARD_URL, whose tokens for urn:tenantry:api are good for four hours; at both any name is a user's. With
// PROTECTED_RESOURCE, an address, clients register themselves and get tokens for it with the scope reports:read.
import { generateKeyPairSync } from 'node:crypto';
import { createServer } from 'node:http';

import Provider from 'oidc-provider';

const AUDIENCE = 'tenantry-api';
const RSA = ['RS256', 'RS384', 'RS512', 'PS256', 'PS384', 'PS512'];
const ALGORITHMS = [...RSA, 'ES256', 'ES384', 'ES512', 'EdDSA', 'Ed25519'];
const PROTECTED = process.env.PROTECTED_RESOURCE;
const RESOURCE = new RegExp(`^urn:tenantry:(${ALGORITHMS.join('|')})$`);
const API = 'urn:tenantry:api';
const HOUR = 3600;
const SCOPES = 'projects:read projects:write tenants:read billing:read';

const CLI = {
  client_id: 'tenantry-cli',
  application_type: 'native',
  grant_types: ['authorization_code', 'refresh_token', 'urn:ietf:params:oauth:grant-type:device_code'],
  redirect_uris: ['http://127.0.0.1/callback'],
  response_types: ['code'],
  token_endpoint_auth_method: 'none',
};

const dashboardAt = (url) => ({
  client_id: 'dashboard',
  client_secret: process.env.CLIENT_SECRET,
  grant_types: ['authorization_code'],
  redirect_uris: [`${url}/sign-in/callback`],
  post_logout_redirect_uris: [`${url}/signed-out`],
  response_types: ['code'],
  token_endpoint_auth_method: 'client_secret_post',
});

// A key without `alg` signs with every algorithm that fits it.
const jwk = (type, options) => ({
  ...generateKeyPairSync(type, options).privateKey.export({ format: 'jwk' }),
  use: 'sig',
});

const configuration = {
  clients: [CLI, ...[process.env.DASHBOARD_URL].filter(Boolean).map(dashboardAt), ...process.argv.slice(2).map((client_id) => ({
    client_id,
    client_secret: process.env.CLIENT_SECRET,
    grant_types: ['client_credentials'],
    redirect_uris: [],
    response_types: [],
    token_endpoint_auth_method: 'client_secret_post',
  }))],
  extraTokenClaims: (ctx) => JSON.parse(ctx.oidc.body?.claims ?? '{}'),
  features: {
    clientCredentials: { enabled: true },
    deviceFlow: { enabled: true },
    devInteractions: { enabled: true },
    resourceIndicators: {
      enabled: true,
      getResourceServerInfo: (ctx, resource) => ({
        accessTokenFormat: 'jwt',
        accessTokenTTL: resource === API ? 4 * HOUR : HOUR,
        audience: [API, PROTECTED].includes(resource) ? resource : AUDIENCE,
        jwt: { sign: { alg: RESOURCE.exec(resource)?.[1] ?? 'ES256' } },
        scope: resource === PROTECTED ? 'reports:read' : SCOPES,
      }),
      useGrantedResource: () => true,
    },
    registration: { enabled: PROTECTED !== undefined },
    revocation: { enabled: true },
  },
  scopes: ['openid', 'offline_access', ...(PROTECTED ? ['reports:read'] : [])],
  ttl: { IdToken: 4 * HOUR },
  issueRefreshToken: (ctx, client) => client.grantTypeAllowed('refresh_token'),
  jwks: {
    keys: [
      jwk('rsa', { modulusLength: 2048 }),
      jwk('ec', { namedCurve: 'P-256' }),
      jwk('ec', { namedCurve: 'P-384' }),
      jwk('ec', { namedCurve: 'P-521' }),
      jwk('ed25519'),
    ],
  },
};

const server = createServer();
server.listen(0, '127.0.0.1', () => {
  const issuer = `http://127.0.0.1:${server.address().port}`;
  server.on('request', new Provider(issuer, configuration).callback());
  console.log(JSON.stringify({ issuer }));
});
process.stdin.on('end', () => process.exit(0)).resume();
