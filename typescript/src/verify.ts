import { APIError, errorOf, TimedOutError } from "./errors.js";
import { Auth as GeneratedAuth } from "./generated/sdk.gen.js";
import type { Mode, PrincipalKind, Problem, TenantAccess } from "./generated/types.gen.js";
import { type ReceivedHeaders, valuesOf } from "./headers.js";
import { attemptOnce, type Fetch } from "./transport.js";

/** A request that your service received: a `Request`, or that of Express, Fastify, Koa or `node:http`. */
export interface ReceivedRequest {
  headers: ReceivedHeaders;
  /** Every value of each header: Node.js keeps only the first `Authorization` in `headers`. */
  headersDistinct?: Record<string, string[] | undefined>;
}

/** The caller of a request that `verify` accepted. */
export interface Principal {
  kind: PrincipalKind;
  /** The key's id, or the user's at the identity provider. */
  id: string;
  /** The tenant that the caller acts for. */
  orgId: string;
  mode: Mode;
  /** The plan that the provider last said. */
  plan: string;
  subscriptionStatus: string;
  access: TenantAccess["state"];
  /** The plan whose limits count now. */
  effectivePlan: string;
  /** The key's external id; undefined without one, and for a user. `whoami` has the metadata too. */
  externalId?: string;
  /**
   * The features that the tenant has, in alphabetical order. `...` at the end says that there are more than the service
   * names: pass `feature` to `verify` instead.
   */
  features: string[];
}

export interface VerifyOptions {
  /** A feature of the plan catalog that the tenant needs, too. */
  feature?: string;
  /** The mode of keys that are accepted; `live` by default. Users act in live mode. */
  mode?: "live" | "test" | "any";
  /** The service's `API_KEY_HEADER`, such as `X-API-Key`, if your clients may send keys in it. */
  apiKeyHeader?: string;
  /** Milliseconds after which the request is rejected with 503; 5 s by default. */
  timeout?: number;
}

const SCOPE = /^([a-z][a-z0-9_-]{0,31}|\*):([a-z][a-z0-9_-]{0,31}|\*)$/;
const FEATURE = /^[a-z][a-z0-9_-]{0,63}$/;
const MODES = ["live", "test", "any"];
const HEADER_NAME = /^[A-Za-z][A-Za-z0-9-]{0,63}$/;
const SENDABLE = /^[\x20-\x7e]+$/;
const CREDENTIAL_HEADERS = ["authorization", "x-organization-id"];
const PRINCIPAL_HEADERS: Record<Exclude<keyof Principal, "externalId" | "features">, string> = {
  kind: "x-principal-kind",
  id: "x-principal-id",
  orgId: "x-tenant-id",
  mode: "x-mode",
  plan: "x-plan",
  subscriptionStatus: "x-subscription-status",
  access: "x-access",
  effectivePlan: "x-effective-plan",
};
const REJECTIONS = new Set([401, 403, 429, 431, 503]);
const UNKNOWN_FEATURE = "unknown_feature"; // a 404 about the check's own feature
const UNAVAILABLE: Problem = {
  type: "urn:tenantry:problem:auth_unavailable",
  title: "Service Unavailable",
  status: 503,
  code: "auth_unavailable",
  detail: "The credential cannot be checked at the moment.",
  requestId: "",
};

/** The caller, and the check of other callers. */
export class Auth extends GeneratedAuth {
  readonly #baseUrl: string;
  readonly #fetch: Fetch;

  constructor(args: NonNullable<ConstructorParameters<typeof GeneratedAuth>[0]>, baseUrl: string, fetch: Fetch) {
    super(args);
    this.#baseUrl = baseUrl;
    this.#fetch = fetch;
  }

  /**
   * Check the credential of a request that your own service received, and return its caller.
   *
   * The caller needs `scope`, such as `reports:read`; null accepts every valid credential. With `feature` the tenant
   * needs this feature, too, or the error is a `FeatureNotGrantedError`. tenantry decides about each
   * request, so that a revoked key is rejected on the next one. Rejects with the `APIError` to answer your client with:
   * 401, 403, 404 if the plan catalog lacks the feature, 429, 431, or 503 if tenantry cannot be asked.
   */
  async verify(received: ReceivedRequest, scope: string | null, options: VerifyOptions = {}): Promise<Principal> {
    const { feature, mode = "live", timeout = 5000, apiKeyHeader } = options;
    if (scope !== null && !SCOPE.test(scope)) throw new TypeError(`${JSON.stringify(scope)} is not a scope`);
    if (feature !== undefined && !FEATURE.test(feature)) {
      throw new TypeError(`${JSON.stringify(feature)} is not the id of a feature`);
    }
    if (!MODES.includes(mode)) throw new TypeError(`mode is live, test or any, not ${JSON.stringify(mode)}`);
    if (apiKeyHeader !== undefined && !HEADER_NAME.test(apiKeyHeader)) {
      throw new TypeError(`${JSON.stringify(apiKeyHeader)} is not the name of a header`);
    }
    const needed = `${scope ?? "-"}${feature === undefined ? "" : `/feature:${feature}`}`;
    const url = `${this.#baseUrl}/api/v1/auth/verify/${needed}/mode/${mode}`;
    const init: RequestInit = { headers: credentialOf(received, apiKeyHeader), redirect: "manual", cache: "no-store" };
    let response: Response;
    try {
      response = await ask(() => new Request(url, init), timeout, this.#fetch);
    } catch (cause) {
      throw unavailable(cause);
    }
    const principal = response.status === 200 ? principalIn(response.headers) : undefined;
    if (principal) return principal;
    const error = errorOf(response.status, response.headers, await response.text());
    // Another status, or a page of a proxy, says nothing about the credential.
    const isRejection = REJECTIONS.has(response.status) && !error.code.startsWith("http_");
    throw isRejection || error.code === UNKNOWN_FEATURE ? error : unavailable(error);
  }
}

/** Send a check. A lost connection is retried once, because tenantry may have closed it while it was idle. */
async function ask(check: () => Request, timeout: number, fetch: Fetch): Promise<Response> {
  const ends = performance.now() + timeout;
  try {
    return await attemptOnce(check(), timeout, fetch);
  } catch (error) {
    if (error instanceof TimedOutError) throw error;
    return attemptOnce(check(), ends - performance.now(), fetch);
  }
}

function unavailable(cause: unknown): APIError {
  const headers = new Headers({ "content-type": "application/problem+json", "retry-after": "1" });
  return new APIError(503, UNAVAILABLE, { headers, content: JSON.stringify(UNAVAILABLE) }, { cause });
}

/** The headers that say who sends a request. A value that no client of tenantry sends becomes an invalid one. */
function credentialOf({ headers, headersDistinct }: ReceivedRequest, apiKeyHeader?: string): Headers {
  const found = new Headers();
  const names = apiKeyHeader === undefined ? CREDENTIAL_HEADERS : [...CREDENTIAL_HEADERS, apiKeyHeader.toLowerCase()];
  for (const name of names) {
    const [value, ...others] = valuesOf(headers, name);
    const isOne = others.length === 0 && (headersDistinct?.[name]?.length ?? 1) === 1;
    if (value !== undefined) {
      found.set(name, typeof value === "string" && SENDABLE.test(value) && isOne ? value : "?");
    }
  }
  return found;
}

/** The identity in the headers; undefined if another service answered. */
function principalIn(headers: Headers): Principal | undefined {
  const found = Object.entries(PRINCIPAL_HEADERS).map(([name, header]) => [name, headers.get(header)]);
  if (!found.every(([, value]) => value)) return undefined;
  const externalId = headers.get("x-key-external-id") ?? undefined;
  const features = (headers.get("x-features") ?? "").split(",").filter((name) => name !== "");
  return { ...(Object.fromEntries(found) as Principal), features, ...(externalId && { externalId }) };
}
