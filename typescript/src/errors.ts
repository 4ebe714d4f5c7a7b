import type { Fault, Problem } from "./generated/types.gen.js";

/** The base class of all errors of a call. */
export class TenantryError extends Error {
  override name = "TenantryError";
  /** Set for a creation that may have succeeded: repeat the call with this key to get the result of the first one. */
  idempotencyKey?: string;
}

/** The client's settings are invalid. */
export class ConfigurationError extends TenantryError {
  override name = "ConfigurationError";
}

/** There was no complete response: the request may or may not have been handled. */
export class ConnectionFailedError extends TenantryError {
  override name = "ConnectionFailedError";
}

/** The call timed out. */
export class TimedOutError extends ConnectionFailedError {
  override name = "TimedOutError";
}

/** The response is not one of tenantry: a proxy, another service or an incompatible version sent it. */
export class UnreadableAnswerError extends TenantryError {
  override name = "UnreadableAnswerError";
}

/** What a service passes on to its own client together with a rejection. */
const PASSED_ON = ["Content-Type", "WWW-Authenticate", "Retry-After", "RateLimit", "RateLimit-Policy"];

/** A response that rejects a request. */
export interface Rejection {
  headers: Headers;
  /** The body. */
  content: string;
}

/** The service rejected the request. */
export class APIError extends TenantryError {
  override name = "APIError";
  /** The reason, for programs, such as `api_key_revoked`. It does not change. */
  readonly code: string;
  /** The reason, for people. */
  readonly detail: string;
  /** The invalid fields. */
  readonly errors: Fault[];
  /** The id of the request in the service's log, if the response had one. */
  readonly requestId: string | undefined;
  /** The headers of the response, with names in lower case. */
  readonly headers: Record<string, string>;
  /** Seconds to wait before a retry, if the service named them. */
  readonly retryAfter: number | undefined;
  /** The body of the response. */
  readonly content: string;

  constructor(
    /** The HTTP status. */
    readonly statusCode: number,
    /** The problem document (RFC 9457). */
    readonly document: Problem,
    { headers, content }: Rejection,
    options?: ErrorOptions,
  ) {
    const faults = document.errors ?? [];
    const lines = faults.map(({ location, message }) => `\n  ${location}: ${message}`);
    const requestId = headers.get("x-request-id") ?? (document.requestId || undefined);
    const request = requestId ? ` (request ${requestId})` : "";
    super(`${statusCode} ${document.code}: ${document.detail}${lines.join("")}${request}`, options);
    this.code = document.code;
    this.detail = document.detail;
    this.errors = faults;
    this.requestId = requestId;
    this.headers = Object.fromEntries(headers);
    this.retryAfter = secondsOf(headers.get("retry-after"));
    this.content = content;
  }

  /** The headers with which a service that called `verify` answers its own client, beside `content`. */
  get headersToPassOn(): Record<string, string> {
    const passed: Record<string, string> = { "Cache-Control": "no-store" };
    for (const name of PASSED_ON) {
      const value = this.headers[name.toLowerCase()];
      if (value !== undefined) passed[name] = value;
    }
    return passed;
  }
}

/** 403: the organization may not use the feature now. `consume` rejects with this class itself with `onUnavailable: "deny"`. */
export class EntitlementDeniedError extends APIError {
  override name = "EntitlementDeniedError";
}

/** 403: neither the plan nor anything else gives the organization this feature. */
export class FeatureNotGrantedError extends EntitlementDeniedError {
  override name = "FeatureNotGrantedError";
}

/** 403: the organization's quota of this feature has less left than was asked for. */
export class QuotaExceededError extends EntitlementDeniedError {
  override name = "QuotaExceededError";
}

/** 410: events after the cursor are not kept any more, or were lost. Read the objects again, and follow from a new cursor. */
export class CursorExpiredError extends APIError {
  override name = "CursorExpiredError";
}

const CLASSES = new Map<string, typeof APIError>([
  ["cursor_expired", CursorExpiredError],
  ["feature_not_granted", FeatureNotGrantedError],
  ["quota_exceeded", QuotaExceededError],
]);

/** The error of a response. One that is not a problem document of tenantry has the code `http_<status>`. */
export function errorOf(status: number, headers: Headers, content: string): APIError {
  const problem = problemIn(content) ?? unknownProblem(status, content);
  const kind = CLASSES.get(problem.code) ?? APIError;
  return new kind(status, problem, { headers, content });
}

function problemIn(body: string): Problem | undefined {
  try {
    const problem = JSON.parse(body) as Partial<Problem> | null;
    if (typeof problem?.code === "string" && typeof problem.detail === "string") return problem as Problem;
  } catch {
    // A gateway in front of the service answered.
  }
  return undefined;
}

function unknownProblem(status: number, body: string): Problem {
  const text = body.slice(0, 2000).replace(/[\p{C}\s]+/gu, " ").trim();
  const detail = (/<title>([^<]+)/i.exec(text)?.[1] ?? text).trim().slice(0, 200); // the title of a page
  const code = `http_${status}`;
  const found = status === 404 ? `baseUrl is not the address of tenantry: another server answered. ${detail}` : detail;
  return {
    type: "about:blank",
    title: code,
    status,
    code,
    detail: found.trim() || "The response gives no reason.",
    requestId: "",
  };
}

/** The seconds of a Retry-After header (RFC 9110 section 10.2.3); undefined without a valid one. */
function secondsOf(header: string | null): number | undefined {
  if (header !== null && /^\d{1,9}$/.test(header)) return Number(header);
  const moment = Date.parse(header ?? "");
  return Number.isNaN(moment) ? undefined : Math.max(0, (moment - Date.now()) / 1000);
}
