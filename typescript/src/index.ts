import { createClient, type Client } from "./generated/client/index.js";
import { Api } from "./generated/sdk.gen.js";
import { type Policy, send } from "./transport.js";
import { type Caller, type ReceivedRequest, type VerifyOptions, verifier } from "./verify.js";

export * from "./errors.js";
export type * from "./generated/types.gen.js";
export type { Caller, ReceivedRequest, VerifyOptions };

/** How to reach a service, and with which credential. */
export interface TenantryOptions extends Partial<Policy> {
  /** The service's address: https, or on this machine. */
  baseUrl: string;
  /** An API key, an access token, or a function that returns one for each call. `verify` needs none. */
  apiKey?: string | (() => string | Promise<string>) | undefined;
  /** One of the user's organizations, for a user of several. */
  organization?: string;
  /** Permit unencrypted connections to other machines. */
  allowHttp?: boolean;
  /** Replaces `globalThis.fetch`, for example to use a proxy. */
  fetch?: typeof globalThis.fetch;
}

/** A client of one service with one credential. */
export class Tenantry extends Api {
  readonly #ask: (request: ReceivedRequest, scope: string, options: VerifyOptions) => Promise<Caller>;

  constructor(options: TenantryOptions) {
    const baseUrl = addressOf(options.baseUrl, options.allowHttp ?? false);
    const fetch: typeof globalThis.fetch = (...request) => (options.fetch ?? globalThis.fetch)(...request);
    super({ client: clientOf(baseUrl, fetch, options) });
    this.#ask = verifier(baseUrl, fetch);
  }

  /**
   * Check the credential of a request to your own service, and return who sent it.
   *
   * `scope` is what the request needs, such as `reports:read`; `-` accepts any valid credential. tenantry decides about
   * each request, so that a revoked key is rejected on the next one. Throws `ApiError` with the status for your client:
   * 401, 403, 429, or 503 if tenantry cannot be asked.
   */
  async verify(request: ReceivedRequest, scope: string, options: VerifyOptions = {}): Promise<Caller> {
    return this.#ask(request, scope, options);
  }
}

/** One page of a list. */
export interface Page<T> {
  data: T[];
  nextCursor: string | null;
}

/**
 * All objects of a list; pages are fetched on demand.
 *
 * `for await (const key of paginate((page) => tenantry.apiKeys.list({ status: "active", ...page }))) { ... }`
 */
export async function* paginate<T>(list: (page: { cursor?: string }) => Promise<Page<T>>): AsyncGenerator<T, void> {
  let page = await list({});
  yield* page.data;
  while (page.nextCursor !== null) {
    page = await list({ cursor: page.nextCursor });
    yield* page.data;
  }
}

function clientOf(baseUrl: string, fetch: typeof globalThis.fetch, options: TenantryOptions): Client {
  const { apiKey, organization, timeout = 30_000, attemptTimeout = 10_000, retries = 3 } = options;
  const policy: Policy = { timeout, attemptTimeout, retries };
  const client = createClient({
    baseUrl,
    auth: async () => credentialOf(typeof apiKey === "function" ? await apiKey() : apiKey),
    cache: "no-store",
    fetch: (request) => send(request as Request, policy, fetch),
    headers: organization === undefined ? {} : { "X-Organization-Id": organization },
    redirect: "manual",
    throwOnError: true,
  });
  client.interceptors.request.use((request, call) => {
    for (const [, name = ""] of call.url.matchAll(/\{(\w+)\}/g)) {
      const value = call.path?.[name];
      if (typeof value !== "string" || ["", ".", ".."].includes(value)) throw new TypeError(`${name} is not an id`);
    }
    if (request.method === "POST" && request.headers.has("authorization") && !request.headers.has("idempotency-key")) {
      request.headers.set("Idempotency-Key", crypto.randomUUID());
    }
    if (call.url === "/api/v1/audit-events/export") call.parseAs = "text"; // JSON, a line for each event
    return request;
  });
  return client;
}

/** Return a credential that a header can carry. The error does not show it. */
function credentialOf(apiKey: string | undefined): string | undefined {
  const credential = apiKey?.trim();
  if (credential !== undefined && !/^[\x21-\x7e]+$/.test(credential)) throw new TypeError("apiKey is not a credential");
  return credential;
}

/** Return the address without a trailing slash. The error does not show it: it may contain a password. */
function addressOf(baseUrl: string, allowHttp: boolean): string {
  const url = URL.canParse(baseUrl) ? new URL(baseUrl) : undefined;
  if (!url || !/^https?:$/.test(url.protocol) || url.username || url.password || url.search || url.hash) {
    throw new TypeError("baseUrl is not an address such as https://accounts.example.com");
  }
  if (url.protocol === "http:" && !allowHttp && !/^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(url.hostname)) {
    throw new TypeError("baseUrl must be https: it receives credentials");
  }
  return url.href.replace(/\/+$/, "");
}
