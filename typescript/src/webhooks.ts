// Verify and create the payment provider's webhook signatures, by the rules of the Python SDK.
import { TenantryError } from "./errors.js";
import { type ReceivedHeaders, valuesOf } from "./headers.js";
import { revealed, type Secret } from "./secret.js";

/** The header that carries the signature. `Stripe-Signature` is accepted too. */
export const HEADER = "Provider-Signature";

const OTHER = "stripe-signature";
const MOST_SIGNATURES = 16;
const TIME = /^[0-9]{1,12}$/;
const OUTER_SPACE = /^[ \t\n\r\v\f]+|[ \t\n\r\v\f]+$/g;

/** The signature is missing or invalid. Log `reason`, but never send it to the client. */
export class SignatureError extends TenantryError {
  override name = "SignatureError";

  constructor(readonly reason: string) {
    super(`The event's signature is invalid: ${reason}.`);
  }
}

/** The signature is valid, but the body is not an event. */
export class PayloadError extends TenantryError {
  override name = "PayloadError";
}

/** A provider event; `data.object` is its subscription, invoice or other object. */
export interface Event {
  type: string;
  data: Record<string, any>;
  id?: string | null;
  /** Seconds since the Unix epoch. */
  created?: number | null;
  livemode?: boolean | null;
}

export interface VerifyOptions {
  /** How many seconds old, or in the future, a signature may be; 300 by default. */
  tolerance?: number;
  /** The current time in seconds since the Unix epoch. */
  now?: number;
}

/**
 * Verify the signature of a webhook request, and return its event.
 *
 * `body` is the raw, unparsed body. The signature must match one of the `secrets`. Rejects with `SignatureError`, with
 * `PayloadError` for a signed body that is not an event, and with `TypeError` for empty secrets.
 */
export async function verify(
  body: string | Uint8Array | ArrayBuffer,
  headers: ReceivedHeaders,
  secrets: string | Secret | readonly (string | Secret)[],
  { tolerance = 300, now = Date.now() / 1000 }: VerifyOptions = {},
): Promise<Event> {
  const raw = bytesOf(body);
  const keys = keysOf(secrets);
  const { stamp, signatures } = parse(headerIn(headers));
  const expected = await Promise.all(keys.map((key) => signatureOf(raw, key, stamp)));
  const matches = expected.flatMap((one) => signatures.map((given) => isSame(one, given)));
  if (!matches.includes(true)) throw new SignatureError("no signature matches");
  const age = now - Number(stamp);
  if (!(Math.abs(age) <= tolerance)) throw new SignatureError(age > 0 ? "it is too old" : "it is from the future");
  return eventIn(raw);
}

/** Return the `Provider-Signature` header of a body, signed `at` a time in seconds since the Unix epoch; now by default. */
export async function sign(
  body: string | Uint8Array | ArrayBuffer,
  secret: string | Secret,
  { at = Date.now() / 1000 }: { at?: number | Date } = {},
): Promise<string> {
  const stamp = String(Math.floor(at instanceof Date ? at.getTime() / 1000 : at));
  const [key = ""] = keysOf(secret);
  return `t=${stamp},v1=${await signatureOf(bytesOf(body), key, stamp)}`;
}

function bytesOf(body: string | Uint8Array | ArrayBuffer): Uint8Array {
  if (typeof body === "string") return new TextEncoder().encode(body);
  return body instanceof ArrayBuffer ? new Uint8Array(body) : body;
}

function keysOf(secrets: string | Secret | readonly (string | Secret)[]): string[] {
  const keys = [secrets].flat().map((key) => revealed(key as string | Secret));
  if (keys.length === 0 || !keys.every((key) => typeof key === "string" && key.trim() !== "")) {
    throw new TypeError("pass at least one secret; secrets are non-empty strings");
  }
  return keys;
}

function headerIn(headers: ReceivedHeaders): string {
  const [own, other] = [HEADER.toLowerCase(), OTHER].map((name) => valuesOf(headers, name));
  const values = own?.length ? own : other;
  const header = values?.flat().join(", ");
  if (!header) throw new SignatureError(`there is no ${HEADER} header`);
  return header;
}

function parse(header: string): { stamp: string; signatures: string[] } {
  const stamps: string[] = [];
  const signatures: string[] = [];
  for (const part of header.split(",")) {
    const [scheme = "", ...values] = part.replace(OUTER_SPACE, "").split("=");
    if (values.length === 0) throw new SignatureError("the header is malformed");
    if (scheme === "t") stamps.push(values.join("="));
    if (scheme === "v1") signatures.push(values.join("="));
  }
  const [stamp = "", ...others] = stamps;
  const isNumber = signatures.length >= 1 && signatures.length <= MOST_SIGNATURES;
  if (others.length > 0 || !TIME.test(stamp) || !isNumber) throw new SignatureError("the header is malformed");
  return { stamp, signatures };
}

async function signatureOf(body: Uint8Array, secret: string, stamp: string): Promise<string> {
  const encoder = new TextEncoder();
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const key = await crypto.subtle.importKey("raw", encoder.encode(secret), algorithm, false, ["sign"]);
  const prefix = encoder.encode(`${stamp}.`);
  const signed = new Uint8Array(prefix.length + body.length);
  signed.set(prefix);
  signed.set(body, prefix.length);
  const digest = new Uint8Array(await crypto.subtle.sign("HMAC", key, signed));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Compare in a time that depends on the length of `given` alone. */
function isSame(expected: string, given: string): boolean {
  let difference = expected.length ^ given.length;
  for (let place = 0; place < given.length; place++) {
    difference |= given.charCodeAt(place) ^ expected.charCodeAt(place % expected.length);
  }
  return difference === 0;
}

function eventIn(raw: Uint8Array): Event {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(raw));
  } catch (cause) {
    throw new PayloadError("The signed body is not an event: it is not JSON.", { cause });
  }
  if (!isEvent(value)) throw new PayloadError("The signed body is not an event.");
  return value;
}

function isEvent(value: unknown): value is Event {
  if (!isObject(value)) return false;
  const { type, data, id, created, livemode } = value;
  return (
    typeof type === "string" &&
    isObject(data) &&
    (id == null || typeof id === "string") &&
    (created == null || Number.isInteger(created)) &&
    (livemode == null || typeof livemode === "boolean")
  );
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);
