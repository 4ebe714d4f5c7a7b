// A real MCP client: `node client.js ADDRESS` knows the address of a server alone. It prints a line of JSON with the
// address at which its user signs in, reads the authorization code as a line, and prints the names of the server's tools.
import { createInterface } from 'node:readline';

import { UnauthorizedError } from '@modelcontextprotocol/sdk/client/auth.js';
import { Client } from '@modelcontextprotocol/sdk/client/index.js';
import { StreamableHTTPClientTransport } from '@modelcontextprotocol/sdk/client/streamableHttp.js';

const address = new URL(process.argv[2]);
const print = (value) => console.log(JSON.stringify(value));
const stored = {};
const provider = {
  redirectUrl: 'http://127.0.0.1/callback',
  clientMetadata: {
    application_type: 'native',
    client_name: 'MCP client',
    grant_types: ['authorization_code'],
    redirect_uris: ['http://127.0.0.1/callback'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
  },
  clientInformation: () => stored.client,
  saveClientInformation: (client) => { stored.client = client; },
  tokens: () => stored.tokens,
  saveTokens: (tokens) => { stored.tokens = tokens; },
  codeVerifier: () => stored.verifier,
  saveCodeVerifier: (verifier) => { stored.verifier = verifier; },
  redirectToAuthorization: (url) => { print({ url }); },
};
const connect = async (transport) => {
  const client = new Client({ name: 'tests', version: '1' });
  await client.connect(transport);
  return client;
};

const first = new StreamableHTTPClientTransport(address, { authProvider: provider });
try {
  await connect(first);
  throw new Error('connected without a token');
} catch (error) {
  if (!(error instanceof UnauthorizedError)) throw error;
}
const lines = createInterface({ input: process.stdin });
await first.finishAuth((await lines[Symbol.asyncIterator]().next()).value);
const client = await connect(new StreamableHTTPClientTransport(address, { authProvider: provider }));
const { tools } = await client.listTools();
print({ tools: tools.map(({ name }) => name), scope: stored.tokens.scope });
await client.close();
process.exit(0);
