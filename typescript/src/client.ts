// The requests of the generated methods, and their results.
import { ConfigurationError } from "./errors.js";
import { VERSION } from "./generated/version.gen.js";
import { Secret } from "./secret.js";
import { type CallOptions, type Settings, visible, withCallOptions } from "./settings.js";
import { type Answer, type Content, type Fetch, inTime, send, summaryOf } from "./transport.js";

/** The parts of a request. */
export interface Parts {
  method: string;
  /** The path, with ids as `{keyId}`. */
  url: string;
  path?: Record<string, unknown>;
  query?: Record<string, unknown>;
  body?: unknown;
  headers?: { "Idempotency-Key"?: unknown };
  /** The credentials that it needs: the client's own, and the tenant for which the operator acts; none if undefined. */
  security?: readonly { type: string; name?: string; scheme?: string }[];
  /** Whether each call gets an idempotency key, so that it can be repeated. */
  isKeyed?: boolean;
  /** What its successful response contains; by default something. */
  content?: Content;
  /** A parameter that the method does not have. */
  unknown?: string;
  /** The credential of a caller of the program's own service, in place of the client's. */
  caller?: Headers;
}

/** The result of a call, and the raw response that it came with. */
export interface WithResponse<T> {
  data: T;
  /** Its status, headers and body. */
  response: Response;
  /** The id of the request in the service's log. */
  requestId: string | null;
}

/** The result of a call. `withResponse` gives the raw response, too. */
export class Call<T> extends Promise<T> {
  readonly #answer: Promise<WithResponse<T>>;

  static override get [Symbol.species](): PromiseConstructor {
    return Promise;
  }

  constructor(answer: Promise<WithResponse<T>>) {
    super((resolve, reject) => answer.then(({ data }) => resolve(data), reject));
    this.#answer = answer;
  }

  /** Return the result together with the raw response. */
  withResponse(): Promise<WithResponse<T>> {
    this.catch(() => undefined); // an error is that of the promise which this returns
    return this.#answer;
  }
}

/** The credentials of calls that the operator makes for a tenant, too. */
export const OF_A_TENANT: Parts["security"] = [{ type: "http" }, { type: "apiKey" }];

/** Sends the requests of a client. */
export class Client {
  readonly #settings: Settings;

  constructor(settings: Settings) {
    this.#settings = settings;
  }

  get baseUrl(): string {
    return this.#settings.baseUrl;
  }

  get fetch(): Fetch {
    return this.#settings.fetch;
  }

  /** Return a client with other settings, which shares the rest. */
  with<A extends unknown[]>(change: (settings: Settings, ...args: A) => Settings, ...args: A): Client {
    return new Client(change(this.#settings, ...args));
  }

  /** Send a request, and return what its response says. */
  send<T>(parts: Parts, options: CallOptions = {}): Call<T> {
    return new Call(this.#send<T>(parts, options));
  }

  async #send<T>(parts: Parts, options: CallOptions): Promise<WithResponse<T>> {
    if (parts.unknown !== undefined) throw new TypeError(`there is no parameter ${parts.unknown}`);
    const settings = withCallOptions(this.#settings, options);
    const ends = performance.now() + settings.policy.timeout;
    const { content = "something", caller, security } = parts;
    const request = new Request(this.baseUrl + addressOf(parts), {
      method: parts.method,
      headers: headersOf(parts, settings),
      ...(parts.body !== undefined && { body: JSON.stringify(withoutMask(parts.body)) }),
      ...(options.signal && { signal: options.signal }),
      cache: "no-store",
      redirect: "manual",
    });
    if (caller === undefined && security !== undefined) await authorize(request, security, settings);
    const { policy, fetch } = settings;
    return resultOf<T>(await send({ request, policy, ends, fetch, content, isByCaller: caller !== undefined }));
  }
}

function resultOf<T>({ data, response }: Answer): WithResponse<T> {
  return { data: masked(data) as T, response, requestId: response.headers.get("x-request-id") };
}

/** Return the path with its ids, and the query. Throws `TypeError` for a path or an id that is none. */
function addressOf({ url, path, query }: Parts): string {
  if (!url.startsWith("/")) throw new TypeError("path must begin with /");
  const address = url.replace(/\{(\w+)\}/g, (_, name: string) => {
    const id = path?.[name];
    if (typeof id !== "string" || ["", ".", ".."].includes(id)) throw new TypeError(`${name} is not an id`);
    return encodeURIComponent(id);
  });
  const given = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== null);
  const parameters = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
  return given.length === 0 ? address : `${address}?${parameters}`;
}

/** Return the headers of a request, without a credential of the client's. Those that are for the client's own requests are not sent with a caller's credential. */
function headersOf(parts: Parts, settings: Settings): Headers {
  const { caller, isKeyed, body } = parts;
  const headers = new Headers(caller ?? settings.headers);
  identify(headers);
  if (body !== undefined) headers.set("Content-Type", "application/json");
  const key = parts.headers?.["Idempotency-Key"] ?? (isKeyed ? crypto.randomUUID() : undefined);
  if (key !== undefined) headers.set("Idempotency-Key", visible(key, "idempotencyKey"));
  return headers;
}

/** Name this client, unless the headers name another; a browser names itself. */
export function identify(headers: Headers): void {
  const { process } = globalThis as { process?: { versions?: { node?: string } } };
  if (process?.versions?.node && !headers.has("User-Agent")) headers.set("User-Agent", `tenantry-client/${VERSION}`);
}

/** Add the client's own credential, and whom it acts for. Throws `TimedOutError` and `AbortError`, as sending does. */
async function authorize(request: Request, security: NonNullable<Parts["security"]>, settings: Settings): Promise<void> {
  const { credential, organization, acting, policy } = settings;
  const { headers, signal } = request;
  const late = `${summaryOf(request)}: tokens gave no credential within ${policy.timeout} ms`;
  const secret = await inTime({ milliseconds: policy.timeout, late, signal }, () => credential.current());
  if (secret === undefined) {
    throw new ConfigurationError(
      "There is no credential: pass apiKey, tokens or operatorToken, or set TENANTRY_API_KEY or TENANTRY_OPERATOR_TOKEN.",
    );
  }
  headers.set("Authorization", `Bearer ${secret.reveal()}`);
  if (organization !== undefined) headers.set("X-Organization-Id", organization);
  if (acting !== undefined && security.some(({ type }) => type === "apiKey")) {
    for (const [name, value] of Object.entries(acting.headers)) headers.set(name, value);
    headers.set("X-Act-As-Organization", acting.tenantId);
  }
}

/** Make the secret of a new key a `Secret`. */
function masked(answer: unknown): unknown {
  const isKey = typeof answer === "object" && answer !== null && "secret" in answer;
  return isKey && typeof answer.secret === "string" ? { ...answer, secret: new Secret(answer.secret) } : answer;
}

/** Reveal the secret of a leak report. */
function withoutMask(body: unknown): unknown {
  const isReport = typeof body === "object" && body !== null && "secret" in body;
  return isReport && body.secret instanceof Secret ? { ...body, secret: body.secret.reveal() } : body;
}
