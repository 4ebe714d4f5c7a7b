import { APIError, ConnectionFailedError, errorOf, type TenantryError, TimedOutError, UnreadableAnswerError } from "./errors.js";

/** The time limits of a call in milliseconds, and how often it is retried. */
export interface Policy {
  /** Of a whole call, retries included; 30 s by default. */
  timeout: number;
  /** Of each attempt; 10 s by default. */
  attemptTimeout: number;
  /** How often reads, deletions and creations are repeated if the response is lost or says so; 3 by default. */
  retries: number;
}

export type Fetch = typeof globalThis.fetch;

const RETRIED = new Set([408, 429, 502, 503, 504]);
const INVITATION_LIMIT = "invitation_limit_reached"; // a 429 of 24 hours, or until somebody acts
const MAYBE_DONE = new Set([408, 502, 503, 504]);
const PROJECT = /\/api\/v1\/projects\/[^/]+$/; // other deleted objects keep a record, so that repeating succeeds
const NO_BODY = new Set([204, 205, 304]);
const FIRST_DELAY = 250;
const LONGEST_DELAY = 8000;
const IN_FLIGHT_DELAY = 500;

/** Return the milliseconds before another attempt: exponential backoff with full jitter. */
export function delayBefore(attempt: number): number {
  return Math.random() * Math.min(LONGEST_DELAY, FIRST_DELAY * 2 ** (attempt - 1));
}

/** Whether the same call may succeed a little later. */
export function mayPass(error: unknown): boolean {
  if (error instanceof APIError) return RETRIED.has(error.statusCode) && error.code !== INVITATION_LIMIT;
  return error instanceof ConnectionFailedError;
}

/** Return the milliseconds that the service itself waits before it answers; time limits count from then on. */
function waitOf(request: Request): number {
  return 1000 * Number(new URL(request.url).searchParams.get("wait") ?? 0);
}

/** Send a request with retries, and return its successful response. Throws TenantryError. */
export async function send(request: Request, policy: Policy, fetch: Fetch): Promise<Response> {
  const wait = waitOf(request);
  const ends = performance.now() + policy.timeout + wait;
  const idempotencyKey = request.headers.get("idempotency-key");
  const repeatable = ["GET", "HEAD", "DELETE"].includes(request.method) || idempotencyKey !== null;
  let lost = false; // whether an earlier attempt may have succeeded
  for (let attempt = 1; ; ) {
    let delay = delayBefore(attempt);
    let error: TenantryError;
    let again = true;
    let counts = 1;
    try {
      const limit = Math.min(policy.attemptTimeout + wait, ends - performance.now());
      const response = await attemptOnce(request.clone(), limit, fetch);
      if (response.ok) return await expectTenantry(response, request);
      if (response.status === 404 && lost && request.method === "DELETE" && PROJECT.test(request.url)) {
        return new Response(null, { status: 204 }); // the attempt whose response was lost deleted it
      }
      const rejection = errorOf(response.status, response.headers, await response.text());
      error = rejection;
      again = mayPass(rejection);
      if (rejection.code === "idempotency_in_flight" && lost) {
        again = true; // the lost attempt still runs; it does not count
        counts = 0;
        delay += IN_FLIGHT_DELAY;
      }
      if (MAYBE_DONE.has(response.status)) lost = true;
      delay += 1000 * (rejection.retryAfter ?? 0);
    } catch (failure) {
      if (!(failure instanceof ConnectionFailedError)) throw failure;
      error = failure;
      lost = true;
    }
    attempt += counts;
    if (!again || !repeatable || attempt > policy.retries + 1 || performance.now() + delay >= ends) {
      if (idempotencyKey !== null) error.idempotencyKey = idempotencyKey;
      throw error;
    }
    await pause(delay, request.signal);
  }
}

/** Send a request once, and return the complete response. Throws ConnectionFailedError, or what the caller's signal says. */
export async function attemptOnce(request: Request, limit: number, fetch: Fetch): Promise<Response> {
  const { origin, pathname } = new URL(request.url);
  const what = `${request.method} ${pathname}`;
  const controller = new AbortController();
  const stop = () => controller.abort();
  const timer = setTimeout(stop, limit);
  request.signal.addEventListener("abort", stop);
  try {
    request.signal.throwIfAborted();
    const response = await fetch(request, { signal: controller.signal });
    const body = await response.arrayBuffer();
    // A browser hides a redirect as status 0; tenantry never redirects.
    if (response.status === 0) throw new TypeError("redirected");
    return new Response(NO_BODY.has(response.status) ? null : body, response);
  } catch (cause) {
    request.signal.throwIfAborted();
    if (controller.signal.aborted) throw new TimedOutError(`${what}: no complete response within ${Math.round(limit)} ms`);
    throw new ConnectionFailedError(`${what}: the connection to ${origin} failed`, { cause });
  } finally {
    clearTimeout(timer);
    request.signal.removeEventListener("abort", stop);
  }
}

/**
 * Return a successful response. Throws `ConnectionFailedError` if its JSON is incomplete, which HTTP does not always report,
 * and `UnreadableAnswerError` if it is not one that tenantry sends, as with a proxy's page.
 */
async function expectTenantry(response: Response, { method, url }: Request): Promise<Response> {
  const type = response.headers.get("content-type") ?? "";
  if (response.status === 204 ? method !== "DELETE" : !/^application\/(json|x-ndjson)\b/.test(type)) {
    throw new UnreadableAnswerError(`The response (${response.status}, ${type || "no type"}) is not one of tenantry.`);
  }
  if (type.startsWith("application/json")) {
    try {
      await response.clone().json();
    } catch (cause) {
      throw new ConnectionFailedError(`${method} ${new URL(url).pathname}: the response was incomplete`, { cause });
    }
  }
  return response;
}

/** Wait. Rejects with what the caller's signal says. */
export function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}
