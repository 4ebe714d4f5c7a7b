import { type Call, Client, OF_A_TENANT, type Parts, type WithResponse } from "./client.js";
import { Entitlements } from "./entitlements.js";
import { Api } from "./generated/sdk.gen.js";
import {
  type ActingOptions,
  actingSettings,
  type CallOptions,
  type CopyOptions,
  copiedSettings,
  settingsOf,
  type TenantryOptions,
} from "./settings.js";
import { Auth } from "./verify.js";

export { EventFollower, EventPager } from "./changes.js";
export type {
  ApiKeyEvent,
  AuditTrailEvent,
  ChangeEvent,
  EntitlementEvent,
  FollowParameters,
  GrantEvent,
  InvitationEvent,
  MemberEvent,
  PaymentReversalEvent,
  TenantEvent,
} from "./changes.js";
export {
  AbortError,
  APIError,
  AuthenticationError,
  BadGatewayError,
  BadRequestError,
  ConfigurationError,
  ConflictError,
  ConnectionFailedError,
  CursorExpiredError,
  EntitlementDeniedError,
  FeatureNotGrantedError,
  GatewayTimeoutError,
  HeadTooLargeError,
  MethodNotAllowedError,
  NotConfiguredError,
  NotFoundError,
  PayloadTooLargeError,
  PermissionDeniedError,
  QuotaExceededError,
  RateLimitedError,
  RequestTimeoutError,
  ServerError,
  TenantryError,
  TimedOutError,
  UnavailableError,
  UnknownFeatureError,
  UnreadableAnswerError,
  UnsupportedMediaTypeError,
  ValidationFailedError,
} from "./errors.js";
export type { Call, WithResponse } from "./client.js";
export type { Consumption, ConsumeParameters } from "./entitlements.js";
export { expressErrorHandler, fastifyErrorHandler, toResponse } from "./frameworks.js";
export type * from "./generated/types.gen.js";
export type { ReceivedHeaders } from "./headers.js";
export { Page, Pager } from "./pager.js";
export { Secret } from "./secret.js";
export type { ActingOptions, CallOptions, CopyOptions, TenantryOptions } from "./settings.js";
export type { Access, Principal, ReceivedRequest, VerifyOptions } from "./verify.js";
export * as webhooks from "./webhooks.js";

/** The parts of a request that no method has. */
export interface RequestParts {
  query?: Record<string, string | number | boolean | undefined>;
  /** What becomes JSON. */
  body?: unknown;
  /** Makes a POST one that is retried: 1 to 255 visible ASCII characters. */
  idempotencyKey?: string;
}

/**
 * A client of one service with one credential.
 *
 * Its constructor and `withOptions` throw `ConfigurationError`, and `TypeError` or `RangeError` for an option that is none.
 */
export class Tenantry extends Api {
  readonly #auth: Auth;
  readonly #entitlements: Entitlements;

  /** `client` is for copies. */
  constructor(options: TenantryOptions = {}, client: Client = new Client(settingsOf(options))) {
    super(client);
    this.#auth = new Auth(client);
    this.#entitlements = new Entitlements(client);
  }

  /**
   * Return a copy of the client with other options for all its calls; every method takes those of a call, too. The copy
   * shares the rest. Headers are added to those of the client, and are sent with its own requests, never with a check of
   * another caller.
   */
  withOptions(options: CopyOptions): Tenantry {
    return new Tenantry({}, this.client.with(copiedSettings, options));
  }

  /**
   * Return a client that acts for a tenant, with the rights of its owner: `client.tenant("acme").apiKeys.create(...)`.
   * It sends no request. Throws `ConfigurationError` without `operatorToken`, and `TypeError` for an id that is none.
   */
  tenant(tenantId: string, acting: ActingOptions = {}): Tenantry {
    return new Tenantry({}, this.client.with(actingSettings, tenantId, acting));
  }

  /**
   * Send any request, and return what its JSON says; `withResponse` gives the raw response, too. `path` begins with
   * `/api/v1/`. It is retried like other calls, and rejects with the same errors.
   */
  request(method: string, path: string, parts: RequestParts = {}, options: CallOptions = {}): Call<unknown> {
    const { query, body, idempotencyKey, ...others } = parts;
    const request: Parts = {
      method: method.toUpperCase(),
      url: path,
      query,
      body,
      headers: { "Idempotency-Key": idempotencyKey },
      security: OF_A_TENANT,
      content: "either",
      unknown: Object.keys(others)[0],
    };
    return this.client.send<unknown>(request, options);
  }

  override get auth(): Auth {
    return this.#auth;
  }

  override get entitlements(): Entitlements {
    return this.#entitlements;
  }

  override toString(): string {
    return `Tenantry(${this.client.baseUrl})`;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return this.toString();
  }
}
