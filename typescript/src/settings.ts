// What a client is made of: an address, a credential, time limits, and headers; from arguments and the environment.
import { ConfigurationError } from "./errors.js";
import type { Mode } from "./generated/types.gen.js";
import { revealed, Secret } from "./secret.js";
import type { Fetch, Policy } from "./transport.js";

/** Options that every method takes as its last argument; `withOptions` sets them, but no signal, for all calls of a copy. */
export interface CallOptions extends Partial<Policy> {
  /** Further headers, such as `X-Request-Id`. They are added to those of the client. */
  headers?: Record<string, string>;
  /** Cancels the call. */
  signal?: AbortSignal;
}

/** How to reach a service, and with which credential. */
export interface TenantryOptions extends Partial<Policy> {
  /** The service's address: https, or on this machine. By default `TENANTRY_BASE_URL`, then http://127.0.0.1:3001. */
  baseUrl?: string | undefined;
  /** An API key, or an access token; by default `TENANTRY_API_KEY`. `auth.verify` and `apiKeys.reportLeak` need none. */
  apiKey?: string | Secret | undefined;
  /**
   * The token of the service's operator (`OPERATOR_TOKEN`), in place of `apiKey`; by default `TENANTRY_OPERATOR_TOKEN`.
   * `tenant` acts for a tenant.
   */
  operatorToken?: string | Secret | undefined;
  /** Returns an access token for each call, in place of `apiKey`. The call's `timeout` and `signal` include it. */
  tokens?: () => string | Promise<string>;
  /** One of the user's organizations, for a user of several. */
  organization?: string;
  /** Permit unencrypted connections to other machines. */
  allowHttp?: boolean;
  /** Replaces `globalThis.fetch`, for example to use a proxy. */
  fetch?: Fetch;
}

/** What a copy of a client may change, beside the options of a call. */
export interface CopyOptions extends Omit<CallOptions, "signal"> {
  /** Another API key or access token. The copy names no organization but the one that you pass. */
  apiKey?: string | Secret;
  /** Another one of the user's organizations. */
  organization?: string;
}

/** How the operator acts for a tenant. */
export interface ActingOptions {
  /** `live` by default. */
  mode?: Mode;
  /** Who of your users wants it, for the audit trail: 1 to 255 visible ASCII characters. */
  onBehalfOf?: string;
}

/** What a client sends as its credential. */
interface Credential {
  isOperator: boolean;
  /** Returns the credential of the next request; undefined without any. */
  current(): Promise<Secret | undefined>;
}

/** The settings of a client. They hold secrets: a class keeps them private. */
export interface Settings {
  baseUrl: string;
  fetch: Fetch;
  credential: Credential;
  policy: Policy;
  /** The headers of the client's own requests. */
  headers: Record<string, string>;
  organization?: string | undefined;
  /** The tenant for which the operator acts, and the headers that say how. */
  acting?: { tenantId: string; headers: Record<string, string> };
}

const BASE_URL = "TENANTRY_BASE_URL";
const API_KEY = "TENANTRY_API_KEY";
const OPERATOR_TOKEN = "TENANTRY_OPERATOR_TOKEN";
const DEFAULT_ADDRESS = "http://127.0.0.1:3001";
const DEFAULT_POLICY: Policy = { timeout: 30_000, attemptTimeout: 10_000, retries: 3 };
const LONGEST = 86_400_000; // a day
const VISIBLE = /^[\x21-\x7e]{1,255}$/;
const HEADER_NAME = /^[A-Za-z0-9!#$%&'*+.^_`|~-]+$/;
const HEADER_VALUE = /^[\x21-\x7e](?:[\x20-\x7e\t]*[\x21-\x7e])?$/;
const RESERVED = new Set([
  "authorization",
  "content-length",
  "content-type",
  "host",
  "idempotency-key",
  "transfer-encoding",
]);
const ORGANIZATION = "x-organization-id";
const ACTING = new Set(["x-act-as-organization", "x-act-in-mode", "x-on-behalf-of"]);
const POLICY = ["timeout", "attemptTimeout", "retries"];
const CALL_OPTIONS = [...POLICY, "headers", "signal"];
const COPY_OPTIONS = [...POLICY, "headers", "apiKey", "organization"];
const ACTING_OPTIONS = ["mode", "onBehalfOf"];
const OPTIONS = [
  "baseUrl",
  "apiKey",
  "operatorToken",
  "tokens",
  "organization",
  "allowHttp",
  "fetch",
  ...POLICY,
];

/** Return the settings of a new client. Throws `ConfigurationError`, and `TypeError` or `RangeError` for a time limit that is none. */
export function settingsOf(options: TenantryOptions): Settings {
  if (typeof options !== "object") throw new TypeError("the options are an object: new Tenantry({ apiKey })");
  checkNames(options, OPTIONS);
  const { organization, fetch, allowHttp = false } = options;
  const credential = credentialOf(options);
  checkOrganization(credential, organization);
  return {
    baseUrl: addressOf(options.baseUrl, allowHttp),
    fetch: (...request) => (fetch ?? globalThis.fetch)(...request),
    credential,
    policy: changedPolicy(DEFAULT_POLICY, options),
    headers: {},
    organization: organization === undefined ? undefined : visible(organization, "organization"),
  };
}

/** Return the settings of a copy. Throws as `settingsOf`, and for headers that the client sets itself. */
export function copiedSettings(settings: Settings, copied: CopyOptions): Settings {
  checkNames(copied, COPY_OPTIONS);
  const { apiKey, organization, ...options } = copied;
  const changed = withCallOptions(settings, options);
  if (apiKey !== undefined) {
    changed.credential = fixed(checked(apiKey, "apiKey"));
    delete changed.acting;
    delete changed.organization;
  }
  if (organization !== undefined) changed.organization = visible(organization, "organization");
  checkOrganization(changed.credential, organization);
  return changed;
}

/** Return the settings of the operator's client that acts for a tenant. */
export function actingSettings(settings: Settings, tenantId: string, options: ActingOptions): Settings {
  checkNames(options, ACTING_OPTIONS);
  const { mode, onBehalfOf } = options;
  if (!settings.credential.isOperator) {
    throw new ConfigurationError("tenant() acts with the operator's token: pass operatorToken.");
  }
  if (mode !== undefined && !["live", "test"].includes(mode)) throw new TypeError("mode is live or test");
  const headers = {
    ...(mode === "test" && { "X-Act-In-Mode": mode }),
    ...(onBehalfOf !== undefined && { "X-On-Behalf-Of": visible(onBehalfOf, "onBehalfOf") }),
  };
  return { ...settings, acting: { tenantId: visible(tenantId, "tenantId"), headers } };
}

/** Return the settings of one call. Throws `TypeError` or `RangeError` for an option that is none. */
export function withCallOptions(settings: Settings, options: CallOptions): Settings {
  checkNames(options, CALL_OPTIONS);
  return {
    ...settings,
    policy: changedPolicy(settings.policy, options),
    headers: { ...settings.headers, ...checkedHeaders(options.headers ?? {}) },
  };
}

/** Throw `TypeError` for an option that is none, which would change nothing. */
export function checkNames(options: object, names: readonly string[]): void {
  const unknown = Object.keys(options).find((name) => !names.includes(name));
  if (unknown !== undefined) throw new TypeError(`there is no option ${unknown}: they are ${names.join(", ")}`);
}

function changedPolicy(policy: Policy, options: Partial<Policy>): Policy {
  const { timeout = policy.timeout, attemptTimeout = policy.attemptTimeout, retries = policy.retries } = options;
  checkTime("timeout", timeout);
  checkTime("attemptTimeout", attemptTimeout);
  if (!Number.isInteger(retries) || retries < 0) throw new RangeError("retries must be a whole number, 0 or more");
  return { timeout, attemptTimeout, retries };
}

/** Throw `RangeError` for a time limit that is none. */
export function checkTime(name: string, value: number): void {
  if (typeof value === "number" && value > 0 && value <= LONGEST) return;
  throw new RangeError(`${name} must be a number of milliseconds, above 0 and at most ${LONGEST}`);
}

/** Return headers with names in lower case. The errors do not show a value, which may be a secret. */
function checkedHeaders(headers: Record<string, string>): Record<string, string> {
  const lower = Object.entries(headers).map(([name, value]) => [name.toLowerCase(), value] as const);
  for (const [name, value] of lower) {
    if (!HEADER_NAME.test(name) || !HEADER_VALUE.test(value)) {
      throw new TypeError(`the header ${JSON.stringify(name)} has characters that no header can carry`);
    }
    if (name === ORGANIZATION) throw new TypeError("pass organization instead of a header");
    if (ACTING.has(name)) throw new TypeError("call client.tenant() instead of a header");
    if (RESERVED.has(name)) throw new TypeError(`the client sets the header ${name} itself`);
  }
  return Object.fromEntries(lower);
}

/** Return a value that a header can carry. Throws `TypeError`. */
export function visible(value: unknown, name: string): string {
  if (typeof value !== "string" || !VISIBLE.test(value)) throw new TypeError(`${name} must be 1 to 255 visible ASCII characters`);
  return value;
}

function checkOrganization({ isOperator }: Credential, organization: string | undefined): void {
  if (isOperator && organization !== undefined) {
    throw new ConfigurationError("organization is for users: the operator acts by client.tenant().");
  }
}

/** Return the given credential, else that of the environment, or none without any. */
function credentialOf({ apiKey, operatorToken, tokens }: TenantryOptions): Credential {
  const given = Object.entries({ apiKey, operatorToken, tokens }).filter(([, value]) => value !== undefined);
  if (given.length > 1) throw new ConfigurationError(`Pass ${given.map(([name]) => name).join(" or ")}, not both.`);
  if (tokens !== undefined) {
    return { isOperator: false, current: async () => checked(await tokens(), "the result of tokens") };
  }
  if (apiKey !== undefined) return fixed(checked(apiKey, "apiKey"));
  if (operatorToken !== undefined) return fixed(checked(operatorToken, "operatorToken"), true);
  return credentialOfEnvironment();
}

function credentialOfEnvironment(): Credential {
  const [key, token] = [variable(API_KEY), variable(OPERATOR_TOKEN)];
  if (key && token) {
    throw new ConfigurationError(`${API_KEY} and ${OPERATOR_TOKEN} are both set: pass apiKey or operatorToken.`);
  }
  if (token) return fixed(checked(token, OPERATOR_TOKEN), true);
  return fixed(key ? checked(key, API_KEY) : undefined);
}

const fixed = (secret: Secret | undefined, isOperator = false): Credential => ({
  isOperator,
  current: async () => secret,
});

/** Return a credential that a header can carry. The error does not show it. */
function checked(given: string | Secret, source: string): Secret {
  const text: unknown = revealed(given);
  const credential = typeof text === "string" ? text.trim() : "\0";
  if (credential === "") throw new ConfigurationError(`${source} is empty`);
  if (!/^[\x21-\x7e]+$/.test(credential)) throw new ConfigurationError(`${source} is not a credential`);
  return new Secret(credential);
}

/** Return an environment variable; undefined where there is no environment, as in a browser. */
function variable(name: string): string | undefined {
  const { process } = globalThis as { process?: { env?: Record<string, string | undefined> } };
  return process?.env?.[name]?.trim() || undefined;
}

/** Return the address without the API's prefix and a trailing slash. The errors do not show it: it may contain a password. */
function addressOf(given: string | undefined, allowHttp: boolean): string {
  const source = given === undefined ? BASE_URL : "baseUrl";
  const address = given ?? variable(BASE_URL) ?? DEFAULT_ADDRESS;
  const url = URL.canParse(address) ? new URL(address) : undefined;
  if (!url || !/^https?:$/.test(url.protocol) || url.username || url.password || url.search || url.hash) {
    throw new ConfigurationError(`${source} is not an address such as https://accounts.example.com`);
  }
  if (url.protocol === "http:" && !allowHttp && !/^(localhost|127\.\d+\.\d+\.\d+|\[::1\])$/.test(url.hostname)) {
    throw new ConfigurationError(`${source} must be https: it receives credentials`);
  }
  return url.origin + url.pathname.replace(/(\/api\/v1)?\/*$/, "");
}
