import type { Call, WithResponse } from "./client.js";

type Fetched<T> = { data: T[]; nextCursor: string | null };

/** A page of a list. */
export class Page<T> {
  /** The items of the page. */
  readonly data: T[];
  /** The cursor of the next page, for the parameter `cursor` of the list; null on the last page. */
  readonly nextCursor: string | null;
  readonly #response: Response;
  readonly #after: (cursor: string) => Promise<Page<T>>;

  constructor({ data, response }: WithResponse<Fetched<T>>, after: (cursor: string) => Promise<Page<T>>) {
    this.data = data.data;
    this.nextCursor = data.nextCursor;
    this.#response = response;
    this.#after = after;
  }

  /** The raw response: its status, headers and body. */
  get response(): Response {
    return this.#response;
  }

  /** Whether there is another page. */
  get hasNext(): boolean {
    return this.nextCursor !== null;
  }

  /** Fetch the next page. Rejects on the last one: check `hasNext`. */
  async next(): Promise<Page<T>> {
    if (this.nextCursor === null) throw new RangeError("There is no next page: check hasNext first.");
    return this.#after(this.nextCursor);
  }
}

/** All items of a list; pages are fetched on demand. Each iteration fetches them again. */
export class Pager<T> implements AsyncIterable<T> {
  readonly #fetch: (position: { cursor?: string }) => Call<Fetched<T>>;

  constructor(fetch: (position: { cursor?: string }) => Call<Fetched<T>>) {
    this.#fetch = fetch;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void> {
    for await (const page of this.pages()) yield* page.data;
  }

  /** Iterate over the pages, each with the cursor of the next one. */
  async *pages(): AsyncGenerator<Page<T>, void> {
    let page = await this.firstPage();
    yield page;
    while (page.hasNext) {
      page = await page.next();
      yield page;
    }
  }

  /** Fetch a single page: the one at the given cursor. */
  async firstPage(): Promise<Page<T>> {
    return this.#page({});
  }

  async #page(position: { cursor?: string }): Promise<Page<T>> {
    return new Page(await this.#fetch(position).withResponse(), (cursor) => this.#page({ cursor }));
  }
}
