import { type Client, identify } from "./client.js";
import { consume, type Consumption, type ConsumeParameters } from "./entitlements.js";
import { errorOf, isRejection, TimedOutError, unavailable } from "./errors.js";
import { Auth as GeneratedAuth } from "./generated/sdk.gen.js";
import type { Mode, PrincipalKind, TenantAccess } from "./generated/types.gen.js";
import { type ReceivedHeaders, valuesOf } from "./headers.js";
import { type CallOptions, checkNames, checkTime } from "./settings.js";
import { attemptOnce, type Fetch } from "./transport.js";

/** A request that your service received: a `Request`, or that of Express, Fastify, Koa or `node:http`. */
export interface ReceivedRequest {
  headers: ReceivedHeaders;
  /** Every value of each header: Node.js keeps only the first `Authorization` in `headers`. */
  headersDistinct?: Record<string, string[] | undefined>;
  /** Where Fastify has the request of Node.js. */
  raw?: { headersDistinct?: Record<string, string[] | undefined> };
}

/** What a tenant's subscriptions give now, as every check says it. */
export type Access = Pick<TenantAccess, "state" | "plan">;

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
  /** The status that the provider last said. */
  subscriptionStatus: string;
  /** What the tenant's subscriptions give now. `whoami` says until when and why, too. */
  access: Access;
  /** The key's external id; undefined without one, and for a user. `whoami` has the metadata too. */
  externalId?: string;
  /** The features that the tenant has, in alphabetical order, as far as they fit into 256 bytes. */
  features: string[];
  /** Whether the tenant has more features than `features` names. */
  featuresCut: boolean;
  /** The plan whose limits count now; `free` without access. */
  readonly effectivePlan: string;
  /**
   * Whether the tenant has a feature. The check names the tenant's features, not those of the plan catalog: false may
   * also mean that the catalog does not declare the feature. If `featuresCut`, it cannot know of a feature that is not
   * named, and throws a `RangeError`. `verify` with `feature` knows both.
   */
  has(feature: string): boolean;
  /**
   * Count the use of a metered feature for the caller's tenant, as `entitlements.consume` does, with the credential of
   * the request that `verify` accepted.
   */
  consume(parameters: ConsumeParameters, options?: CallOptions): Promise<Consumption>;
}

export interface VerifyOptions {
  /** A feature of the plan catalog that the tenant needs, too. */
  feature?: string;
  /** The mode of keys that are accepted; `live` by default. Users act in live mode. */
  mode?: "live" | "test" | "any";
  /** The service's `API_KEY_HEADER`, such as `X-API-Key`, if your clients may send keys in it. */
  apiKeyHeader?: string;
  /**
   * The IP address of your client. It counts if the service trusts yours (`TRUSTED_PROXIES`): the service records it as
   * the last use of a key, and a key with allowed addresses is rejected without it.
   */
  clientAddress?: string;
  /** Milliseconds after which the request is rejected with 503; 5 s by default. */
  timeout?: number;
}

const SCOPE = /^([a-z][a-z0-9_-]{0,31}|\*):([a-z][a-z0-9_-]{0,31}|\*)$/;
const FEATURE = /^[a-z][a-z0-9_-]{0,63}$/;
const OPTIONS = ["feature", "mode", "apiKeyHeader", "clientAddress", "timeout"];
const MODES = ["live", "test", "any"];
const HEADER_NAME = /^[A-Za-z][A-Za-z0-9-]{0,63}$/;
const ADDRESS = /^[0-9A-Fa-f:.]{2,45}$/;
/** Instead of an address (RFC 7239, section 6.2). Without a header, the service would take this sender for the client. */
const UNKNOWN = "unknown";
const SENDABLE = /^[\x20-\x7e]+$/;
const CREDENTIAL_HEADERS = ["authorization", "x-organization-id"];
const PRINCIPAL_HEADERS = {
  kind: "x-principal-kind",
  id: "x-principal-id",
  orgId: "x-tenant-id",
  mode: "x-mode",
  plan: "x-plan",
  subscriptionStatus: "x-subscription-status",
};
const ACCESS_HEADERS = { state: "x-access", plan: "x-effective-plan" };
const MORE = "..."; // the end of a list of features from which some were cut
const UNKNOWN_FEATURE = "unknown_feature"; // a 404 about the check's own feature

/** The caller, and the check of other callers. */
export class Auth extends GeneratedAuth {
  /**
   * Check the credential of a request that your own service received, and return its caller.
   *
   * The caller needs `scope`, such as `reports:read`; null accepts every valid credential. With `feature` the tenant
   * needs this feature, too, or the error is a `FeatureNotGrantedError`. tenantry decides about each
   * request, so that a revoked key is rejected on the next one. Rejects with the `APIError` to answer your client with:
   * 401, 403, 404 (`UnknownFeatureError`) if the plan catalog lacks the feature, 429, 431, or 503 if tenantry cannot be asked.
   */
  async verify(received: ReceivedRequest, scope: string | null, options: VerifyOptions = {}): Promise<Principal> {
    const { feature, mode = "live", timeout = 5000, apiKeyHeader, clientAddress = "" } = options;
    checkNames(options, OPTIONS);
    if (typeof received?.headers !== "object") throw new TypeError("verify needs the request that your service received: { headers }");
    if (scope !== null && !SCOPE.test(scope)) {
      throw new TypeError(`${JSON.stringify(scope)} is not a scope such as reports:read, or null for any credential`);
    }
    if (feature !== undefined && !FEATURE.test(feature)) {
      throw new TypeError(`${JSON.stringify(feature)} is not the id of a feature`);
    }
    if (!MODES.includes(mode)) throw new TypeError(`mode is live, test or any, not ${JSON.stringify(mode)}`);
    if (apiKeyHeader !== undefined && !HEADER_NAME.test(apiKeyHeader)) {
      throw new TypeError(`${JSON.stringify(apiKeyHeader)} is not the name of a header`);
    }
    checkTime("timeout", timeout);
    const needed = `${scope ?? "-"}${feature === undefined ? "" : `/feature:${feature}`}`;
    const url = `${this.client.baseUrl}/api/v1/auth/verify/${needed}/mode/${mode}`;
    const headers = credentialOf(received, apiKeyHeader);
    identify(headers);
    headers.set("x-forwarded-for", ADDRESS.test(clientAddress) ? clientAddress : UNKNOWN);
    const init: RequestInit = { headers, redirect: "manual", cache: "no-store" };
    let response: Response;
    try {
      response = await ask(() => new Request(url, init), timeout, this.client.fetch);
    } catch (cause) {
      throw unavailable(cause);
    }
    const principal = response.status === 200 ? this.#principalIn(response.headers, headers) : undefined;
    if (principal) return principal;
    const error = errorOf(response.status, response.headers, await response.text());
    error.isForCaller = isRejection(error);
    throw error.isForCaller || error.code === UNKNOWN_FEATURE ? error : unavailable(error);
  }

  /** The identity in the headers of a response to a check; undefined if another service answered. */
  #principalIn(headers: Headers, check: Headers): Principal | undefined {
    const identity = valuesIn(headers, PRINCIPAL_HEADERS);
    const access = valuesIn(headers, ACCESS_HEADERS);
    if (!identity || !access) return undefined;
    const externalId = headers.get("x-key-external-id");
    const names = (headers.get("x-features") ?? "").split(",").filter((name) => name !== "");
    const fields = {
      ...(identity as typeof identity & Pick<Principal, "kind" | "mode">),
      access: access as Access,
      ...(externalId && { externalId }),
      features: names.filter((name) => name !== MORE),
      featuresCut: names.includes(MORE),
    };
    const sent = new Headers(check);
    sent.set("x-organization-id", identity.orgId);
    return new CheckedCaller(fields, (parameters, options = {}) => consume(this.client, parameters, options, sent));
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

/** The headers that say who sends a request. A value that no client of tenantry sends becomes an invalid one. */
function credentialOf({ headers, headersDistinct, raw }: ReceivedRequest, apiKeyHeader?: string): Headers {
  const found = new Headers();
  const distinct = headersDistinct ?? raw?.headersDistinct;
  const names = apiKeyHeader === undefined ? CREDENTIAL_HEADERS : [...CREDENTIAL_HEADERS, apiKeyHeader.toLowerCase()];
  for (const name of names) {
    const [value, ...others] = valuesOf(headers, name);
    const isOne = others.length === 0 && (distinct?.[name]?.length ?? 1) === 1;
    if (value !== undefined) {
      found.set(name, typeof value === "string" && SENDABLE.test(value) && isOne ? value : "?");
    }
  }
  return found;
}

/** Those headers of a response; undefined if one is missing. */
function valuesIn<Name extends string>(headers: Headers, names: Record<Name, string>): Record<Name, string> | undefined {
  const found = Object.entries<string>(names).map(([name, header]) => [name, headers.get(header)]);
  return found.every(([, value]) => value) ? (Object.fromEntries(found) as Record<Name, string>) : undefined;
}

type Consume = Principal["consume"];

/** The caller that a check accepted. Its credential is only in `#consume`. */
class CheckedCaller implements Principal {
  declare kind: PrincipalKind;
  declare id: string;
  declare orgId: string;
  declare mode: Mode;
  declare plan: string;
  declare subscriptionStatus: string;
  declare access: Access;
  declare externalId?: string;
  declare features: string[];
  declare featuresCut: boolean;
  readonly #consume: Consume;

  constructor(fields: Omit<Principal, "effectivePlan" | "has" | "consume">, consume: Consume) {
    Object.assign(this, fields);
    this.#consume = consume;
  }

  get effectivePlan(): string {
    return this.access.plan;
  }

  has(feature: string): boolean {
    if (this.features.includes(feature)) return true;
    if (this.featuresCut) {
      throw new RangeError(`The service named only some of the features: pass feature: ${JSON.stringify(feature)} to verify()`);
    }
    return false;
  }

  consume(...args: Parameters<Consume>): Promise<Consumption> {
    return this.#consume(...args);
  }
}
