import { ApiError, errorOf, TimeoutError } from "./errors.js";
import type { Mode, PrincipalKind, Problem, TenantAccess } from "./generated/types.gen.js";
import { attemptOnce } from "./transport.js";

/** A request that your service received: a `Request`, or that of Express, Fastify, Koa or `node:http`. */
export interface ReceivedRequest {
  headers: Headers | Record<string, string | string[] | undefined>;
  /** Every value of each header: Node.js keeps only the first `Authorization` in `headers`. */
  headersDistinct?: Record<string, string[] | undefined>;
}

/** Who sent a request, and what the tenant has. */
export interface Caller {
  tenantId: string;
  /** The key's id, or the user's at the identity provider. */
  principalId: string;
  principalKind: PrincipalKind;
  mode: Mode;
  plan: string;
  subscriptionStatus: string;
  access: TenantAccess["state"];
  /** The plan whose limits count now. */
  effectivePlan: string;
}

export interface VerifyOptions {
  /** The mode of keys that are accepted; `live` by default. Users act in live mode. */
  mode?: "live" | "test" | "any";
  /** Milliseconds after which the request is rejected with 503; 5 s by default. */
  timeout?: number;
}

const SCOPE = /^(-|([a-z][a-z0-9_-]{0,31}|\*):([a-z][a-z0-9_-]{0,31}|\*))$/;
const MODES = ["live", "test", "any"];
const SENDABLE = /^[\x20-\x7e]+$/;
const CREDENTIAL_HEADERS = ["authorization", "x-organization-id"];
const IDENTITY_HEADERS: Record<keyof Caller, string> = {
  tenantId: "x-tenant-id",
  principalId: "x-principal-id",
  principalKind: "x-principal-kind",
  mode: "x-mode",
  plan: "x-plan",
  subscriptionStatus: "x-subscription-status",
  access: "x-access",
  effectivePlan: "x-effective-plan",
};
const REJECTIONS = new Set([401, 403, 429, 503]);
const UNAVAILABLE: Problem = {
  type: "urn:tenantry:problem:auth_unavailable",
  title: "Service Unavailable",
  status: 503,
  code: "auth_unavailable",
  detail: "The credential cannot be checked now. Retry later.",
  requestId: "",
};

/** Return a function that asks tenantry about the credential of a request. */
export function verifier(baseUrl: string, fetch: typeof globalThis.fetch) {
  return async (received: ReceivedRequest, scope: string, options: VerifyOptions): Promise<Caller> => {
    const { mode = "live", timeout = 5000 } = options;
    if (!SCOPE.test(scope)) throw new TypeError(`${JSON.stringify(scope)} is not a scope`);
    if (!MODES.includes(mode)) throw new TypeError(`${JSON.stringify(mode)} is not live, test or any`);
    const url = `${baseUrl}/api/v1/auth/verify/${scope}/mode/${mode}`;
    const init: RequestInit = { headers: credentialOf(received), redirect: "manual", cache: "no-store" };
    let response: Response;
    try {
      response = await ask(() => new Request(url, init), timeout, fetch);
    } catch (cause) {
      throw unavailable(cause);
    }
    const caller = response.status === 200 ? callerIn(response.headers) : undefined;
    if (caller) return caller;
    const error = errorOf(response.status, response.headers, await response.text());
    // Another status, or a page of a proxy, says nothing about the credential.
    throw REJECTIONS.has(response.status) && !error.code.startsWith("http_") ? error : unavailable(error);
  };
}

/** Send a check. A lost connection is retried once, because tenantry may have closed it while it was idle. */
async function ask(check: () => Request, timeout: number, fetch: typeof globalThis.fetch): Promise<Response> {
  const ends = performance.now() + timeout;
  try {
    return await attemptOnce(check(), timeout, fetch);
  } catch (error) {
    if (error instanceof TimeoutError) throw error;
    return attemptOnce(check(), ends - performance.now(), fetch);
  }
}

function unavailable(cause: unknown): ApiError {
  return new ApiError(503, UNAVAILABLE, new Headers({ "retry-after": "1" }), { cause });
}

/** The headers that say who sends a request. A value that no client of tenantry sends becomes an invalid one. */
function credentialOf({ headers, headersDistinct }: ReceivedRequest): Headers {
  const found = new Headers();
  for (const name of CREDENTIAL_HEADERS) {
    const values = isHeaders(headers) ? [headers.get(name)] : valuesOf(headers, name);
    const [value, ...others] = values.filter((value) => value !== undefined && value !== null);
    const isOne = others.length === 0 && (headersDistinct?.[name]?.length ?? 1) === 1;
    if (value !== undefined) {
      found.set(name, typeof value === "string" && SENDABLE.test(value) && isOne ? value : "?");
    }
  }
  return found;
}

/** The values of a header. Node.js writes its name in lower case, but not every gateway does. */
function valuesOf(headers: Record<string, unknown>, name: string): unknown[] {
  return Object.keys(headers).filter((key) => key.toLowerCase() === name).map((key) => headers[key]);
}

/** Whether these are `Headers`, which a framework may have a class of its own for. */
function isHeaders(headers: ReceivedRequest["headers"]): headers is Headers {
  return typeof headers.get === "function";
}

/** The identity in the headers; undefined if another service answered. */
function callerIn(headers: Headers): Caller | undefined {
  const found = Object.entries(IDENTITY_HEADERS).map(([name, header]) => [name, headers.get(header)]);
  return found.every(([, value]) => value) ? (Object.fromEntries(found) as Caller) : undefined;
}
