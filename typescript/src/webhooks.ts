// Webhooks, by the rules of the Python SDK: unwrap those that tenantry sends; verify and sign events of the payment provider.
import type { ChangeEvent } from "./changes.js";
import { TenantryError } from "./errors.js";
import { type ReceivedHeaders, valuesOf } from "./headers.js";
import { revealed, type Secret } from "./secret.js";

/** The header with the payment provider's signature. `Stripe-Signature` is accepted too. */
export const PROVIDER_HEADER = "Provider-Signature";

const PROVIDER_NAMES = [PROVIDER_HEADER.toLowerCase(), "stripe-signature"] as const;
const OWN_NAMES = ["webhook-id", "webhook-timestamp", "webhook-signature"] as const;
const MOST_SIGNATURES = 16;
const TIME = /^[0-9]{1,12}$/;
const SECRET_PREFIX = "whsec_";
const SECRET_BYTES = [24, 64] as const;
const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;
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

/** An event of the payment provider; `data.object` is its subscription, invoice or other object. */
export interface PaymentProviderEvent {
  type: string;
  data: Record<string, any>;
  id?: string | null;
  /** Seconds since the Unix epoch. */
  created?: number | null;
  livemode?: boolean | null;
}

export type Body = string | Uint8Array | ArrayBuffer;
export type Secrets = string | Secret | readonly (string | Secret)[];

export interface VerifyOptions {
  /** How many seconds old, or in the future, a signature may be; 300 by default. */
  tolerance?: number;
  /** The current time in seconds since the Unix epoch. */
  now?: number;
}

/** What a request claims: when its sender signed it, and the signatures. */
interface Signatures {
  time: string;
  values: string[];
}

/**
 * Verify the signature of a webhook that tenantry sent, and return its event, as `operator.events.follow` has it.
 *
 * `body` is the raw, unparsed body. The signature (Standard Webhooks) must match one of the endpoint's `secrets`. Rejects
 * with `SignatureError`, with `PayloadError` for a signed body that is not an event, and with `TypeError` for a parsed body
 * and for faulty secrets.
 */
export async function unwrap(
  body: Body,
  headers: ReceivedHeaders,
  secrets: Secrets,
  options: VerifyOptions = {},
): Promise<ChangeEvent> {
  const raw = bytesOf(body);
  const keys = textsOf(secrets).map(decoded);
  const { id, ...signatures } = ownSignatures(headers);
  const expected = await Promise.all(keys.map((key) => ownSignature(raw, key, `${id}.${signatures.time}.`)));
  checkMatch(expected, signatures);
  checkAge(signatures, options);
  return eventIn(raw, isChangeEvent);
}

/**
 * Verify the signature of the payment provider's webhook, and return its event.
 *
 * The arguments and errors are those of `unwrap`; `secrets` are those that the provider gave you.
 */
export async function verifyProviderEvent(
  body: Body,
  headers: ReceivedHeaders,
  secrets: Secrets,
  options: VerifyOptions = {},
): Promise<PaymentProviderEvent> {
  const raw = bytesOf(body);
  const keys = textsOf(secrets);
  const signatures = providerSignatures(headers);
  const expected = await Promise.all(keys.map((key) => providerSignature(raw, key, signatures.time)));
  checkMatch(expected, signatures);
  checkAge(signatures, options);
  return eventIn(raw, isProviderEvent);
}

/** Return the `Provider-Signature` header of a body, signed `at` a time in seconds since the Unix epoch; now by default. */
export async function signProviderEvent(
  body: Body,
  secret: string | Secret,
  { at = Date.now() / 1000 }: { at?: number | Date } = {},
): Promise<string> {
  const time = String(Math.floor(at instanceof Date ? at.getTime() / 1000 : at));
  const [key = ""] = textsOf(secret);
  return `t=${time},v1=${await providerSignature(bytesOf(body), key, time)}`;
}

// Arguments

function bytesOf(body: Body): Uint8Array {
  if (typeof body === "string") return new TextEncoder().encode(body);
  if (ArrayBuffer.isView(body)) return new Uint8Array(body.buffer, body.byteOffset, body.byteLength);
  if (body instanceof ArrayBuffer) return new Uint8Array(body);
  throw new TypeError("body must be the raw body as it was received: bytes or text, not parsed");
}

function textsOf(secrets: Secrets): string[] {
  const texts = [secrets].flat().map((secret) => revealed(secret as string | Secret));
  if (texts.length === 0 || !texts.every((text) => typeof text === "string" && text.trim() !== "")) {
    throw new TypeError("pass at least one secret; secrets are non-empty strings");
  }
  return texts;
}

const headerOf = (headers: ReceivedHeaders, name: string): string => valuesOf(headers, name).flat().join(", ");
const hasHeader = (headers: ReceivedHeaders, name: string): boolean => valuesOf(headers, name).length > 0;

// Both senders

function checkMatch(expected: string[], signatures: Signatures): void {
  const matches = expected.flatMap((one) => signatures.values.map((given) => isSame(one, given)));
  if (!matches.includes(true)) throw new SignatureError("no signature matches");
}

function checkAge({ time }: Signatures, { tolerance = 300, now = Date.now() / 1000 }: VerifyOptions): void {
  const age = now - Number(time);
  if (!(Math.abs(age) <= tolerance)) throw new SignatureError(age > 0 ? "it is too old" : "it is from the future");
}

/** Compare in a time that depends on the length of `given` alone. */
function isSame(expected: string, given: string): boolean {
  let difference = expected.length ^ given.length;
  for (let place = 0; place < given.length; place++) {
    difference |= given.charCodeAt(place) ^ expected.charCodeAt(place % expected.length);
  }
  return difference === 0;
}

/** Return the HMAC-SHA256 of a prefix and a body. */
async function digestOf(prefix: string, body: Uint8Array, key: BufferSource): Promise<Uint8Array> {
  const algorithm = { name: "HMAC", hash: "SHA-256" };
  const imported = await crypto.subtle.importKey("raw", key, algorithm, false, ["sign"]);
  const head = new TextEncoder().encode(prefix);
  const signed = new Uint8Array(head.length + body.length);
  signed.set(head);
  signed.set(body, head.length);
  return new Uint8Array(await crypto.subtle.sign("HMAC", imported, signed));
}

function eventIn<Event>(raw: Uint8Array, isEvent: (value: unknown) => value is Event): Event {
  let value: unknown;
  try {
    value = JSON.parse(new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(raw));
  } catch (cause) {
    throw new PayloadError("The signed body is not an event: it is not JSON.", { cause });
  }
  if (!isEvent(value)) throw new PayloadError("The signed body is not an event.");
  return value;
}

const isObject = (value: unknown): value is Record<string, unknown> =>
  typeof value === "object" && value !== null && !Array.isArray(value);

// tenantry

/** Return the key that a secret contains. The error does not show the secret. */
function decoded(secret: string): BufferSource {
  const text = secret.startsWith(SECRET_PREFIX) ? secret.slice(SECRET_PREFIX.length) : "";
  const key = Uint8Array.from(BASE64.test(text) ? atob(text) : "", (character) => character.charCodeAt(0));
  const [least, most] = SECRET_BYTES;
  if (key.length < least || key.length > most) {
    throw new TypeError(`a secret of tenantry's webhooks is ${SECRET_PREFIX} and base64 of ${least} to ${most} bytes`);
  }
  return key;
}

async function ownSignature(body: Uint8Array, key: BufferSource, prefix: string): Promise<string> {
  return `v1,${btoa(String.fromCharCode(...(await digestOf(prefix, body, key))))}`;
}

function ownSignatures(headers: ReceivedHeaders): Signatures & { id: string } {
  const [id = "", time = "", header = ""] = OWN_NAMES.map((name) => headerOf(headers, name));
  const missing = OWN_NAMES.find((name) => headerOf(headers, name) === "");
  if (missing !== undefined && PROVIDER_NAMES.some((name) => hasHeader(headers, name))) {
    throw new SignatureError("the payment provider sent it: use webhooks.verifyProviderEvent");
  }
  if (missing !== undefined) throw new SignatureError(`there is no ${missing} header`);
  const values = header.split(" ");
  if (!TIME.test(time) || values.length > MOST_SIGNATURES) throw new SignatureError("its headers are malformed");
  return { id, time, values };
}

function isChangeEvent(value: unknown): value is ChangeEvent {
  if (!isObject(value)) return false;
  const { id, type, orgId, at, version, data } = value;
  return [id, type, orgId, at].every((text) => typeof text === "string") && Number.isInteger(version) && data !== undefined;
}

// The payment provider

async function providerSignature(body: Uint8Array, secret: string, time: string): Promise<string> {
  const digest = await digestOf(`${time}.`, body, new TextEncoder().encode(secret));
  return Array.from(digest, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function providerSignatures(headers: ReceivedHeaders): Signatures {
  const name = PROVIDER_NAMES.find((each) => hasHeader(headers, each));
  const header = name === undefined ? "" : headerOf(headers, name);
  if (header !== "") return parse(header);
  if (hasHeader(headers, "webhook-signature")) throw new SignatureError("tenantry sent it: use webhooks.unwrap");
  throw new SignatureError(`there is no ${PROVIDER_HEADER} header`);
}

function parse(header: string): Signatures {
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
  return { time: stamp, values: signatures };
}

function isProviderEvent(value: unknown): value is PaymentProviderEvent {
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
