import type { Problem } from "./generated/types.gen.js";

/** The base class of all errors of a call. */
export class TenantryError extends Error {
  override name = "TenantryError";
  /** Set for a creation that may have succeeded: repeat the call with this key to get the result of the first one. */
  idempotencyKey?: string;
}

/** There was no complete response of tenantry: the request may or may not have been handled. */
export class ConnectionError extends TenantryError {
  override name = "ConnectionError";
}

/** The call timed out. */
export class TimeoutError extends ConnectionError {
  override name = "TimeoutError";
}

/** What a service passes on to its own client together with a rejection. */
const PASSED_ON = ["www-authenticate", "retry-after", "ratelimit", "ratelimit-policy"];

/** The service rejected the request. */
export class ApiError extends TenantryError {
  override name = "ApiError";
  /** The reason, for programs, such as `api_key_revoked`. It does not change. */
  readonly code: string;
  /** The id of the request in the service's log. */
  readonly requestId: string;
  /** Seconds to wait before a retry, if the service named them. */
  readonly retryAfter: number | undefined;
  /** The headers that you pass on to your own client with a rejection by `verify`. */
  readonly headers: Record<string, string> = {};

  constructor(
    readonly status: number,
    /** The problem document (RFC 9457); its `errors` list the invalid fields. */
    readonly problem: Problem,
    headers: Headers = new Headers(),
    options?: ErrorOptions,
  ) {
    const faults = (problem.errors ?? []).map(({ location, message }) => `\n  ${location}: ${message}`);
    const request = problem.requestId && ` (request ${problem.requestId})`;
    super(`${status} ${problem.code}: ${problem.detail}${faults.join("")}${request}`, options);
    this.code = problem.code;
    this.requestId = problem.requestId;
    this.retryAfter = secondsOf(headers.get("retry-after"));
    for (const name of PASSED_ON) {
      const value = headers.get(name);
      if (value !== null) this.headers[name] = value;
    }
  }
}

/** The error of a response. One that is not a problem document of tenantry has the code `http_<status>`. */
export function errorOf(status: number, headers: Headers, body: string): ApiError {
  return new ApiError(status, problemIn(body) ?? unknownProblem(status, headers, body), headers);
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

function unknownProblem(status: number, headers: Headers, body: string): Problem {
  const text = body.slice(0, 2000).replace(/[\p{C}\s]+/gu, " ").trim();
  const detail = (/<title>([^<]+)/i.exec(text)?.[1] ?? text).trim().slice(0, 200); // the title of a page
  const code = `http_${status}`;
  const requestId = headers.get("x-request-id") ?? "";
  return { type: "about:blank", title: code, status, code, detail: detail || "The response gives no reason.", requestId };
}

/** The seconds of a Retry-After header (RFC 9110 section 10.2.3); undefined without a valid one. */
function secondsOf(header: string | null): number | undefined {
  if (header !== null && /^\d{1,9}$/.test(header)) return Number(header);
  const moment = Date.parse(header ?? "");
  return Number.isNaN(moment) ? undefined : Math.max(0, (moment - Date.now()) / 1000);
}
