import { type Client, OF_A_TENANT } from "./client.js";
import {
  APIError,
  ConnectionFailedError,
  EntitlementDeniedError,
  isRejection,
  type TenantryError,
  unavailable,
} from "./errors.js";
import { Entitlements as GeneratedEntitlements } from "./generated/sdk.gen.js";
import type { Problem } from "./generated/types.gen.js";
import { type CallOptions, checkNames } from "./settings.js";

/** What to consume. */
export interface ConsumeParameters {
  /** The feature's id in the plan catalog. */
  feature: string;
  /** How much: 1 to 1,000,000,000; 1 by default. */
  amount?: number;
  /** Counts once, however often you call; by default a random one for each call. */
  idempotencyKey?: string;
  /** What to do if the service is unreachable, overloaded or broken; `raise` by default. */
  onUnavailable?: "raise" | "allow" | "deny";
}

/** The use of a metered feature after `consume`. Without an answer of the service, its numbers are null. */
export interface Consumption {
  /** What is used in this period. */
  used: number | null;
  /** The remaining quota of this period; null without a limit. */
  remaining: number | null;
  /** When the next period begins. */
  resetsAt: string | null;
  /** Whether the service counted the use. False only with `onUnavailable: "allow"`. */
  counted: boolean;
}

const NAMES = ["feature", "amount", "idempotencyKey", "onUnavailable"];
const CHOICES = ["raise", "allow", "deny"];
const UNAVAILABLE = new Set([408, 500, 502, 503, 504]);
const NOT_COUNTED: Consumption = { used: null, remaining: null, resetsAt: null, counted: false };
const DENIAL: Problem = {
  type: "urn:tenantry:problem:entitlement_unavailable",
  title: "Forbidden",
  status: 403,
  code: "entitlement_unavailable",
  detail: "The use of this feature cannot be counted at the moment.",
  requestId: "",
};

/** The features and quotas of the caller's organization. */
export class Entitlements extends GeneratedEntitlements {
  /**
   * Count the use of a metered feature, all of it or nothing.
   *
   * Retries count once. For 24 hours an `idempotencyKey` of yours counts once for the organization and the feature,
   * whichever of the organization's API keys and users sends it; live and test mode are apart. Rejects with a
   * `QuotaExceededError` if less is left, a `FeatureNotGrantedError` or an `UnknownFeatureError`. If the service is
   * unreachable, `onUnavailable` decides: `raise` rejects with that error, `deny` with an
   * `EntitlementDeniedError`, and `allow` returns a result whose `counted` is false.
   */
  consume(parameters: ConsumeParameters, options: CallOptions = {}): Promise<Consumption> {
    return consume(this.client, parameters, options);
  }
}

/** Consume with the client's own credential, or with the headers of a caller's check. */
export async function consume(
  client: Client,
  parameters: ConsumeParameters,
  options: CallOptions,
  caller?: Headers,
): Promise<Consumption> {
  checkNames(parameters, NAMES);
  const { feature, amount = 1, idempotencyKey, onUnavailable = "raise" } = parameters;
  if (!CHOICES.includes(onUnavailable)) {
    throw new TypeError(`onUnavailable is raise, allow or deny, not ${JSON.stringify(onUnavailable)}`);
  }
  try {
    const parts = {
      method: "POST",
      url: "/api/v1/entitlements/{feature}/consume",
      path: { feature },
      body: { amount },
      headers: { "Idempotency-Key": idempotencyKey },
      isKeyed: true,
      ...(caller === undefined ? { security: OF_A_TENANT } : { caller }),
    };
    const used = await client.send<Omit<Consumption, "counted">>(parts, options);
    return { ...used, counted: true };
  } catch (error) {
    if (caller !== undefined && error instanceof APIError) error.isForCaller ||= isRejection(error);
    if (!isUnavailable(error)) throw error;
    if (onUnavailable === "raise") throw caller === undefined || isTold(error) ? error : unavailable(error);
    if (onUnavailable === "deny") throw denial(error);
    return NOT_COUNTED;
  }
}

/** Whether the service could not answer. It may have counted the use nevertheless. */
function isUnavailable(error: unknown): error is TenantryError {
  if (error instanceof APIError) return UNAVAILABLE.has(error.statusCode);
  return error instanceof ConnectionFailedError;
}

/** Whether the service itself said that it is unavailable. */
function isTold(error: TenantryError): boolean {
  return error instanceof APIError && error.isForCaller;
}

function denial(cause: TenantryError): EntitlementDeniedError {
  const headers = new Headers({ "content-type": "application/problem+json" });
  const answer = { headers, content: JSON.stringify(DENIAL) };
  const denied = new EntitlementDeniedError(403, DENIAL, answer, { cause });
  if (cause.idempotencyKey !== undefined) denied.idempotencyKey = cause.idempotencyKey;
  return denied;
}
