import {
  AbortError,
  APIError,
  ConnectionFailedError,
  errorOf,
  TenantryError,
  TimedOutError,
  UnreadableAnswerError,
} from "./errors.js";

/** The time limits of a call in milliseconds, at most a day, and how often it is retried. */
export interface Policy {
  /** Of a whole call, retries included; 30 s by default. */
  timeout: number;
  /** Of each attempt; 10 s by default. */
  attemptTimeout: number;
  /** How often reads, deletions and creations are repeated if the response is lost or says so; 3 by default. */
  retries: number;
}

export type Fetch = typeof globalThis.fetch;

/** What the successful response to a request contains. */
export type Content = "something" | "nothing" | "either";

/** A request, and how to send it. */
export interface Transmission {
  request: Request;
  policy: Policy;
  /** When the call ends, as `performance.now()`. */
  ends: number;
  fetch: Fetch;
  content: Content;
  /** Whether it has the credential of a caller of the program's own service, who decides whether to wait for a limit. */
  isByCaller: boolean;
}

/** A successful response, and what it says: JSON, text, or nothing. */
export interface Answer {
  response: Response;
  data: unknown;
}

const RETRIED = new Set([408, 429, 502, 503, 504]);
const TOO_MANY = 429;
const INVITATION_LIMIT = "invitation_limit_reached"; // a 429 of 24 hours, or until somebody acts
const IN_FLIGHT = "idempotency_in_flight";
const REPLAY = "idempotency_replay";
const PROJECT = /\/api\/v1\/projects\/[^/]+$/; // other deleted objects keep a record, so that repeating succeeds
const NO_BODY = new Set([204, 205, 304]);
const FIRST_DELAY = 250;
const LONGEST_DELAY = 8000;
const IN_FLIGHT_DELAY = 500;
/** A credential that was passed as an id, in a path. */
const CREDENTIAL = /svc_\w{8,}|[a-z0-9]{2,16}_(?:live|test)_\w{20,}|eyJ[\w-]{8,}(?:\.[\w-]*)*/g;

/** Return the milliseconds before another attempt: exponential backoff with full jitter. */
export function delayBefore(attempt: number): number {
  return Math.random() * Math.min(LONGEST_DELAY, FIRST_DELAY * 2 ** (attempt - 1));
}

/** Whether the same call may succeed a little later. */
export function mayPass(error: unknown): boolean {
  if (error instanceof APIError) return RETRIED.has(error.statusCode) && error.code !== INVITATION_LIMIT;
  return error instanceof ConnectionFailedError;
}

/** Whether a request that was answered with this status may have been handled nevertheless. */
function mayBeDone(status: number): boolean {
  return status === 408 || (status >= 500 && status !== 501);
}

/** Return the milliseconds that the service itself waits before it answers; time limits count from then on. */
function waitOf(request: Request): number {
  return 1000 * Number(new URL(request.url).searchParams.get("wait") ?? 0);
}

/** Return the method and the path, for errors. */
export function summaryOf({ method, url }: Request): string {
  return `${method} ${new URL(url).pathname.replace(CREDENTIAL, "**********")}`;
}

/** Send a request with retries, and return its successful response. Throws TenantryError. */
export async function send(sent: Transmission): Promise<Answer> {
  const attempts = new Attempts(sent);
  try {
    return await sendRepeatedly(sent, attempts);
  } catch (error) {
    throw attempts.final(error);
  }
}

async function sendRepeatedly(sent: Transmission, attempts: Attempts): Promise<Answer> {
  const { request, fetch } = sent;
  for (;;) {
    checkAborted(request.signal);
    let delay: number;
    try {
      const response = await attemptOnce(request.clone(), attempts.limit, fetch);
      if (response.ok) return await answerIn(response, sent);
      if (attempts.hasDeleted(response)) return { response, data: undefined };
      delay = attempts.afterRejection(errorOf(response.status, response.headers, await response.text()));
    } catch (error) {
      if (error instanceof APIError) throw error;
      delay = attempts.afterLoss(error);
    }
    await pause(delay, request.signal);
  }
}

/** The attempts of one call: after each that failed, the delay before the next one, or the error. */
class Attempts {
  readonly #sent: Transmission;
  readonly #ends: number;
  readonly #wait: number;
  readonly #idempotencyKey: string | null;
  #attempt = 1;
  #isLost = false; // whether an earlier attempt may have succeeded

  constructor(sent: Transmission) {
    this.#sent = sent;
    this.#wait = waitOf(sent.request);
    this.#ends = sent.ends + this.#wait;
    this.#idempotencyKey = sent.request.headers.get("idempotency-key");
  }

  /** The time limit of the next attempt in milliseconds. */
  get limit(): number {
    return Math.min(this.#sent.policy.attemptTimeout + this.#wait, this.#ends - performance.now());
  }

  /** Whether the attempt whose response was lost deleted the object, so that this one does not find it. */
  hasDeleted({ status }: Response): boolean {
    const { method, url } = this.#sent.request;
    return status === 404 && this.#isLost && method === "DELETE" && PROJECT.test(url);
  }

  /** Return the delay after a lost response. Throws its error if no attempts are left, and any other error. */
  afterLoss(error: unknown): number {
    this.#isLost = true;
    if (!(error instanceof ConnectionFailedError)) throw error;
    return this.#delay(error, delayBefore(this.#attempt));
  }

  /** Return the delay after a rejection. Throws it if no attempts are left, or if another one would not help. */
  afterRejection(error: APIError): number {
    if (mayBeDone(error.statusCode)) this.#isLost = true;
    const delay = delayBefore(this.#attempt) + 1000 * (error.retryAfter ?? 0);
    if (error.code === IN_FLIGHT && this.#isLost) {
      this.#attempt -= 1; // the lost attempt still runs; it does not count
      return this.#delay(error, delay + IN_FLIGHT_DELAY);
    }
    const isCallersOwn = this.#sent.isByCaller && error.statusCode === TOO_MANY;
    if (!mayPass(error) || isCallersOwn) throw error;
    return this.#delay(error, delay);
  }

  #delay(error: TenantryError, delay: number): number {
    const { request, policy } = this.#sent;
    const isRepeatable = ["GET", "HEAD", "DELETE"].includes(request.method) || this.#idempotencyKey !== null;
    this.#attempt += 1;
    const isOver = this.#attempt > policy.retries + 1 || performance.now() + delay >= this.#ends;
    if (!isRepeatable || isOver) throw error;
    return delay;
  }

  /** Return the error that ends the call. That of a creation which may have succeeded gets its idempotency key. */
  final(error: unknown): unknown {
    const isKnown = error instanceof APIError && [IN_FLIGHT, REPLAY].includes(error.code); // an earlier call sent the key
    const mayExist = this.#idempotencyKey !== null && (this.#isLost || isKnown);
    if (mayExist && error instanceof TenantryError) error.idempotencyKey = this.#idempotencyKey;
    return error;
  }
}

function abortOf(signal: AbortSignal): AbortError {
  return new AbortError("the signal ended the call", { cause: signal.reason });
}

/** Throw `AbortError` if the caller's signal ended the call. */
function checkAborted(signal: AbortSignal): void {
  if (signal.aborted) throw abortOf(signal);
}

/** How long something may take. */
interface Limits {
  milliseconds: number;
  /** The message when it takes longer. */
  late: string;
  signal: AbortSignal;
}

/** Return what `work` promises; its signal stops it. Throws `TimedOutError`, or `AbortError` when the caller's signal says so. */
export async function inTime<T>(limits: Limits, work: (stop: AbortSignal) => Promise<T>): Promise<T> {
  const { milliseconds, late, signal } = limits;
  checkAborted(signal);
  const controller = new AbortController();
  const stop = () => controller.abort();
  const stopped = new Promise<never>((_, reject) => {
    controller.signal.addEventListener("abort", () => {
      reject(signal.aborted ? abortOf(signal) : new TimedOutError(late));
    });
  });
  const timer = setTimeout(stop, milliseconds);
  signal.addEventListener("abort", stop);
  try {
    return await Promise.race([work(controller.signal), stopped]);
  } finally {
    clearTimeout(timer);
    signal.removeEventListener("abort", stop);
  }
}

/** Send a request once, and return the complete response. Throws `ConnectionFailedError`, or `AbortError`. */
export function attemptOnce(request: Request, limit: number, fetch: Fetch): Promise<Response> {
  const what = summaryOf(request);
  const late = `${what}: no complete response within ${Math.round(limit)} ms`;
  return inTime({ milliseconds: limit, late, signal: request.signal }, async (signal) => {
    try {
      const response = await fetch(request, { signal });
      const body = await response.arrayBuffer();
      // A browser hides a redirect as status 0; tenantry never redirects.
      if (response.status === 0) throw new TypeError("redirected");
      return new Response(NO_BODY.has(response.status) ? null : body, response);
    } catch (cause) {
      throw new ConnectionFailedError(`${what}: the connection to ${new URL(request.url).origin} failed`, { cause });
    }
  });
}

/**
 * Return what a successful response says. Throws `ConnectionFailedError` if its JSON is incomplete, which HTTP does not
 * always report, and `UnreadableAnswerError` if it is not one that tenantry sends, as with a proxy's page.
 */
async function answerIn(response: Response, { request, content }: Transmission): Promise<Answer> {
  const type = response.headers.get("content-type") ?? "";
  const requestId = response.headers.get("x-request-id") ?? undefined;
  const found = response.status === 204 ? "nothing" : /^application\/(json|x-ndjson)\b/.test(type) && "something";
  if (found === false || ![found, "either"].includes(content)) {
    const message = `The response (${response.status}, ${type || "no type"}) is not one of tenantry: check baseUrl.`;
    throw new UnreadableAnswerError(message, { requestId });
  }
  if (found === "nothing") return { response, data: undefined };
  const text = await response.clone().text();
  if (!type.startsWith("application/json")) return { response, data: text };
  try {
    return { response, data: JSON.parse(text) };
  } catch (cause) {
    const message = `${summaryOf(request)}: the response was incomplete`;
    throw new ConnectionFailedError(message, { cause, requestId });
  }
}

/** Wait. Rejects with `AbortError` when the caller's signal says so. */
export function pause(milliseconds: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve, reject) => {
    const stop = () => {
      clearTimeout(timer);
      if (signal) reject(abortOf(signal));
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", stop);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", stop, { once: true });
  });
}
