import type { Call } from "./client.js";
import { APIError } from "./errors.js";
import type {
  ApiKey,
  AuditEvent,
  ChangeEventFields,
  Entitlement,
  EventPage,
  Grant,
  Invitation,
  ManagedTenant,
  Member,
  PaymentReversal,
} from "./generated/types.gen.js";
import { delayBefore, mayPass, pause } from "./transport.js";

/** The objects that changes are of, by the word before the dot of an event's type. */
interface ChangedObjects {
  tenant: ManagedTenant;
  member: Member;
  invitation: Invitation;
  api_key: ApiKey;
  grant: Grant;
  entitlement: Entitlement;
  billing: PaymentReversal;
  audit: AuditEvent;
}

type EventOf<Kind extends keyof ChangedObjects> = Omit<ChangeEventFields, "type" | "data"> & {
  /** What was changed, and how. */
  type: `${Kind}.${string}`;
  /** The whole object after the change, without secrets. */
  data: ChangedObjects[Kind];
};

export type TenantEvent = EventOf<"tenant">;
export type MemberEvent = EventOf<"member">;
export type InvitationEvent = EventOf<"invitation">;
export type ApiKeyEvent = EventOf<"api_key">;
export type GrantEvent = EventOf<"grant">;
export type EntitlementEvent = EventOf<"entitlement">;
export type PaymentReversalEvent = EventOf<"billing">;
export type AuditTrailEvent = EventOf<"audit">;

/** A change. Its `type` tells what kind of object `data` is. A newer service may have further types. */
export type ChangeEvent =
  | TenantEvent
  | MemberEvent
  | InvitationEvent
  | ApiKeyEvent
  | GrantEvent
  | EntitlementEvent
  | PaymentReversalEvent
  | AuditTrailEvent;

/** Which changes to follow. */
export interface FollowParameters {
  /** A `nextCursor`, the id of an event, or `now`; by default from the oldest event that is kept. */
  after?: string;
  /** Types, separated by commas: `api_key.revoked`, or all of a kind: `member.*`. By default all but `audit.*`. */
  types?: string;
  /** Only this tenant. */
  orgId?: string;
  /** How many events a page has at most. */
  limit?: number;
  /** How many seconds the service waits for the first event: 1 to 20, the default. */
  wait?: number;
}

interface Position {
  after?: string;
  wait?: number;
}

type Read = (position: Position) => Call<EventPage>;

const LONGEST_WAIT = 20;
const EARLY = 0.5; // before this share of the wait, an empty answer is early

/**
 * The changes from a cursor until now; pages are fetched on demand. Each iteration fetches them again.
 *
 * `operator.events.follow` continues without an end.
 */
export class EventPager implements AsyncIterable<ChangeEvent> {
  readonly #read: Read;

  constructor(read: Read) {
    this.#read = read;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ChangeEvent, void> {
    for await (const page of this.pages()) yield* page.data;
  }

  /** Iterate over the pages. The last one is empty; later changes follow its `nextCursor`. */
  async *pages(): AsyncGenerator<EventPage, void> {
    let page = await this.firstPage();
    yield page;
    while (page.data.length > 0) {
      page = await this.#read({ after: page.nextCursor });
      yield page;
    }
  }

  /** Fetch a single page: the events after the given cursor. */
  firstPage(): Call<EventPage> {
    return this.#read({});
  }
}

/**
 * The changes as they come, without an end: iterate over it, or over its `pages`.
 *
 * It asks again after a lost connection, 408, 429, 502, 503 and 504, for as long as they last, and neither repeats nor leaves
 * out an event. To continue after a restart of your program, store `cursor` together with the effect of the event, and
 * pass it as `after`. One loop at a time may iterate; another one continues after `cursor`.
 */
export class EventFollower implements AsyncIterable<ChangeEvent> {
  readonly #read: Read;
  readonly #wait: number;
  readonly #signal: AbortSignal | undefined;
  #cursor: string | undefined;
  #failures = 0;

  constructor(
    read: Read,
    { after, wait = LONGEST_WAIT }: FollowParameters,
    signal: AbortSignal | undefined,
  ) {
    if (wait < 1) throw new RangeError("wait must be 1 to 20 seconds");
    this.#read = read;
    this.#wait = wait;
    this.#signal = signal;
    this.#cursor = after;
  }

  /** The place after the last event or page that you got; before the first one, `after`. It also moves on without events. */
  get cursor(): string | undefined {
    return this.#cursor;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<ChangeEvent, void> {
    for await (const page of this.pages()) {
      for (const event of page.data) {
        this.#cursor = event.id;
        yield event;
      }
      this.#cursor = page.nextCursor;
    }
  }

  /** Iterate over pages of at least one event, and over an empty page whenever there was no event for `wait` seconds. */
  async *pages(): AsyncGenerator<EventPage, void> {
    for (;;) {
      const page = await this.#nextPage();
      this.#cursor = page.nextCursor;
      yield page;
    }
  }

  async #nextPage(): Promise<EventPage> {
    for (;;) {
      // "now" must become a place at once: an answer that is lost later would move it
      const wait = this.#cursor === "now" ? 0 : this.#wait;
      const began = performance.now();
      let page: EventPage;
      try {
        page = await this.#read({ wait, ...(this.#cursor === undefined ? {} : { after: this.#cursor }) });
      } catch (error) {
        if (!mayPass(error)) throw error;
        await this.#pause(error instanceof APIError ? error.retryAfter : undefined);
        continue;
      }
      if (page.data.length > 0 || performance.now() - began >= 1000 * wait * EARLY) this.#failures = 0;
      else await this.#pause(); // the process that answered is stopping
      return page;
    }
  }

  async #pause(seconds = 0): Promise<void> {
    this.#failures += 1;
    await pause(1000 * seconds + delayBefore(this.#failures), this.#signal);
  }
}
