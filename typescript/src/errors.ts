import type { Fault, Problem } from "./generated/types.gen.js";

/** The base class of all errors of a call. */
export class TenantryError extends Error {
  override name = "TenantryError";
  /** Set for a creation that may have succeeded, never for another: repeat the call with it to get the result of the first. */
  idempotencyKey?: string;
  /** The id of the request in the service's log, if there was a response that had one. */
  readonly requestId: string | undefined;

  constructor(message: string, { requestId, ...options }: ErrorOptions & { requestId?: string | undefined } = {}) {
    super(message, options);
    this.requestId = requestId;
  }
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

/** The caller's `signal` ended the call: `cause` is its reason. */
export class AbortError extends TenantryError {
  override name = "AbortError";
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

/** The service rejected the request. Each status has its own subclass. */
export class APIError extends TenantryError {
  override name = "APIError";
  /** The reason, for programs, such as `api_key_revoked`. It does not change. */
  readonly code: string;
  /** The reason, for people. */
  readonly detail: string;
  /** The invalid fields. */
  readonly errors: Fault[];
  /** The headers of the response, with names in lower case. */
  readonly headers: Record<string, string>;
  /** Seconds to wait before a retry, if the service named them. */
  readonly retryAfter: number | undefined;
  /** The body of the response. */
  readonly content: string;
  /**
   * Whether it rejects a caller of your own service, as errors of `verify` do: the handlers of frameworks answer with it.
   * Others are about your service's own calls.
   */
  isForCaller = false;

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
    super(`${statusCode} ${document.code}: ${document.detail}${lines.join("")}${request}`, { ...options, requestId });
    this.code = document.code;
    this.detail = document.detail;
    this.errors = faults;
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

/** 400: the request is malformed. */
export class BadRequestError extends APIError {
  override name = "BadRequestError";
}

/** 401: the credential is missing, invalid, revoked or expired. */
export class AuthenticationError extends APIError {
  override name = "AuthenticationError";
}

/** 403: the credential has no permission for this. */
export class PermissionDeniedError extends APIError {
  override name = "PermissionDeniedError";
}

/** 403: the organization may not use the feature now. `consume` rejects with this class itself with `onUnavailable: "deny"`. */
export class EntitlementDeniedError extends PermissionDeniedError {
  override name = "EntitlementDeniedError";
  override isForCaller = true;
}

/** 403: neither the plan nor anything else gives the organization this feature. */
export class FeatureNotGrantedError extends EntitlementDeniedError {
  override name = "FeatureNotGrantedError";
}

/** 403: the organization's quota of this feature has less left than was asked for. */
export class QuotaExceededError extends EntitlementDeniedError {
  override name = "QuotaExceededError";
}

/** 404: the object does not exist in the caller's tenant. */
export class NotFoundError extends APIError {
  override name = "NotFoundError";
}

/** 404: the plan catalog does not declare this feature: its name is probably misspelt. */
export class UnknownFeatureError extends NotFoundError {
  override name = "UnknownFeatureError";
}

/** 405: the address does not support this method; it may not be that of a tenantry service. */
export class MethodNotAllowedError extends APIError {
  override name = "MethodNotAllowedError";
}

/** 408: the request did not arrive in time. */
export class RequestTimeoutError extends APIError {
  override name = "RequestTimeoutError";
}

/** 409: the request conflicts with the current state. */
export class ConflictError extends APIError {
  override name = "ConflictError";
}

/** 410: events after the cursor are not kept any more, or were lost. Read the objects again, and follow from a new cursor. */
export class CursorExpiredError extends APIError {
  override name = "CursorExpiredError";
}

/** 413: the request is too large. */
export class PayloadTooLargeError extends APIError {
  override name = "PayloadTooLargeError";
}

/** 415: the body is not JSON. */
export class UnsupportedMediaTypeError extends APIError {
  override name = "UnsupportedMediaTypeError";
}

/** 422: `errors` lists the invalid fields. */
export class ValidationFailedError extends APIError {
  override name = "ValidationFailedError";
}

/** 429: too many requests; retry after `retryAfter` seconds. */
export class RateLimitedError extends APIError {
  override name = "RateLimitedError";
}

/** 431: the address or the headers are too long. */
export class HeadTooLargeError extends APIError {
  override name = "HeadTooLargeError";
}

/** 500: an internal error of the service. */
export class ServerError extends APIError {
  override name = "ServerError";
}

/** 501: the operator has not configured this feature. */
export class NotConfiguredError extends APIError {
  override name = "NotConfiguredError";
}

/** 502: the payment provider rejected the request, or a gateway got an invalid response. */
export class BadGatewayError extends APIError {
  override name = "BadGatewayError";
}

/** 503: the service, its database or its identity provider is unreachable or overloaded. */
export class UnavailableError extends APIError {
  override name = "UnavailableError";
}

/** 504: a gateway in front of the service timed out. */
export class GatewayTimeoutError extends APIError {
  override name = "GatewayTimeoutError";
}

const BY_STATUS = new Map<number, typeof APIError>([
  [400, BadRequestError],
  [401, AuthenticationError],
  [403, PermissionDeniedError],
  [404, NotFoundError],
  [405, MethodNotAllowedError],
  [408, RequestTimeoutError],
  [409, ConflictError],
  [410, CursorExpiredError],
  [413, PayloadTooLargeError],
  [415, UnsupportedMediaTypeError],
  [422, ValidationFailedError],
  [429, RateLimitedError],
  [431, HeadTooLargeError],
  [500, ServerError],
  [501, NotConfiguredError],
  [502, BadGatewayError],
  [503, UnavailableError],
  [504, GatewayTimeoutError],
]);

const BY_CODE = new Map<string, typeof APIError>([
  ["feature_not_granted", FeatureNotGrantedError],
  ["quota_exceeded", QuotaExceededError],
  ["unknown_feature", UnknownFeatureError],
]);

/** The error of a response. One that is not a problem document of tenantry has the code `http_<status>`. */
export function errorOf(status: number, headers: Headers, content: string): APIError {
  const problem = problemIn(content) ?? unknownProblem(status, content);
  const kind = BY_CODE.get(problem.code) ?? BY_STATUS.get(status) ?? APIError;
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

const REJECTIONS = new Set([401, 403, 429, 431, 503]);

/** Whether the service rejected a caller: another status, or a page of a proxy, says nothing about the credential. */
export function isRejection({ statusCode, code }: APIError): boolean {
  return REJECTIONS.has(statusCode) && !code.startsWith("http_");
}

const CHECK_UNAVAILABLE: Problem = {
  type: "urn:tenantry:problem:auth_unavailable",
  title: "Service Unavailable",
  status: 503,
  code: "auth_unavailable",
  detail: "The credential cannot be checked at the moment.",
  requestId: "",
};

/** The error of a caller's request while tenantry cannot be asked. */
export function unavailable(cause: unknown): UnavailableError {
  const headers = new Headers({ "content-type": "application/problem+json", "retry-after": "1" });
  const rejection = { headers, content: JSON.stringify(CHECK_UNAVAILABLE) };
  return Object.assign(new UnavailableError(503, CHECK_UNAVAILABLE, rejection, { cause }), { isForCaller: true });
}
