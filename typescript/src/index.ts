import { createClient, type Client } from "./generated/client/index.js";
import { Entitlements } from "./entitlements.js";
import { ConfigurationError } from "./errors.js";
import { Api } from "./generated/sdk.gen.js";
import { revealed, Secret } from "./secret.js";
import { type Fetch, type Policy, send } from "./transport.js";
import { Auth } from "./verify.js";

export { EventFollower } from "./changes.js";
export type {
  ApiKeyEvent,
  AuditTrailEvent,
  ChangeEvent,
  EntitlementEvent,
  FollowParameters,
  GrantEvent,
  InvitationEvent,
  MemberEvent,
  TenantEvent,
} from "./changes.js";
export {
  APIError,
  ConfigurationError,
  ConnectionFailedError,
  CursorExpiredError,
  EntitlementDeniedError,
  FeatureNotGrantedError,
  QuotaExceededError,
  TenantryError,
  TimedOutError,
  UnreadableAnswerError,
} from "./errors.js";
export type { Consumption, ConsumeParameters } from "./entitlements.js";
export type * from "./generated/types.gen.js";
export type { ReceivedHeaders } from "./headers.js";
export { Page, Pager } from "./pager.js";
export { Secret } from "./secret.js";
export type { Principal, ReceivedRequest, VerifyOptions } from "./verify.js";
export * as webhooks from "./webhooks.js";

/** How to reach a service, and with which credential. */
export interface TenantryOptions extends Partial<Policy> {
  /** The service's address: https, or on this machine. */
  baseUrl: string;
  /** An API key, or an access token. `auth.verify` and `apiKeys.reportLeak` need none. */
  apiKey?: string | Secret | undefined;
  /** Returns an access token for each call, in place of `apiKey`. */
  tokens?: () => string | Promise<string>;
  /** One of the user's organizations, for a user of several. */
  organization?: string;
  /** Permit unencrypted connections to other machines. */
  allowHttp?: boolean;
  /** Replaces `globalThis.fetch`, for example to use a proxy. */
  fetch?: Fetch;
}

/** A client of one service with one credential. */
export class Tenantry extends Api {
  readonly #auth: Auth;
  readonly #entitlements: Entitlements;

  constructor(options: TenantryOptions) {
    const baseUrl = addressOf(options.baseUrl, options.allowHttp ?? false);
    const fetch: Fetch = (...request) => (options.fetch ?? globalThis.fetch)(...request);
    const client = clientOf(baseUrl, fetch, options);
    super({ client });
    this.#auth = new Auth({ client }, baseUrl, fetch);
    this.#entitlements = new Entitlements({ client });
  }

  override get auth(): Auth {
    return this.#auth;
  }

  override get entitlements(): Entitlements {
    return this.#entitlements;
  }
}

function clientOf(baseUrl: string, fetch: Fetch, options: TenantryOptions): Client {
  const { apiKey, tokens, organization, timeout = 30_000, attemptTimeout = 10_000, retries = 3 } = options;
  if (apiKey !== undefined && tokens !== undefined) throw new ConfigurationError("Pass apiKey or tokens, not both.");
  const fixed = apiKey === undefined ? undefined : credentialOf(apiKey, "apiKey");
  const policy: Policy = { timeout, attemptTimeout, retries };
  const client = createClient({
    baseUrl,
    auth: async () => (tokens === undefined ? fixed : credentialOf(await tokens(), "the result of tokens"))?.reveal(),
    bodySerializer: (body) => JSON.stringify(withoutMask(body)),
    cache: "no-store",
    fetch: (request) => send(request as Request, policy, fetch),
    headers: organization === undefined ? {} : { "X-Organization-Id": organization },
    redirect: "manual",
    responseTransformer: async (answer) => masked(answer),
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
function credentialOf(given: string | Secret, source: string): Secret {
  const credential = revealed(given).trim();
  if (credential === "") throw new ConfigurationError(`${source} is empty`);
  if (!/^[\x21-\x7e]+$/.test(credential)) throw new ConfigurationError(`${source} is not a credential`);
  return new Secret(credential);
}

/** Make the secret of a new key a `Secret`. */
function masked(answer: unknown): unknown {
  const isKey = typeof answer === "object" && answer !== null && "secret" in answer;
  return isKey && typeof answer.secret === "string" ? { ...answer, secret: new Secret(answer.secret) } : answer;
}

/** Reveal the secret of a leak report. */
function withoutMask(body: unknown): unknown {
  const isReport = typeof body === "object" && body !== null && "secret" in body;
  return isReport && body.secret instanceof Secret ? { ...body, secret: body.secret.reveal() } : body;
}

/** Return the address without the API's prefix and a trailing slash. The error does not show it: it may contain a password. */
function addressOf(baseUrl: string, allowHttp: boolean): string {
  const url = URL.canParse(baseUrl) ? new URL(baseUrl) : undefined;
  if (!url || !/^https?:$/.test(url.protocol) || url.username || url.password || url.search || url.hash) {
    throw new ConfigurationError("baseUrl is not an address such as https://accounts.example.com");
  }
  if (url.protocol === "http:" && !allowHttp && !/^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(url.hostname)) {
    throw new ConfigurationError("baseUrl must be https: it receives credentials");
  }
  return url.origin + url.pathname.replace(/(\/api\/v1)?\/*$/, "");
}
