/** A page of a list. */
export class Page<T> {
  readonly #after: (cursor: string) => Promise<Page<T>>;

  constructor(
    /** The items of the page. */
    readonly data: T[],
    /** The cursor of the next page, for the parameter `cursor` of the list; null on the last page. */
    readonly nextCursor: string | null,
    after: (cursor: string) => Promise<Page<T>>,
  ) {
    this.#after = after;
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

type Fetched<T> = { data: T[]; nextCursor: string | null };

/** All items of a list; pages are fetched on demand. Each iteration fetches them again. */
export class Pager<T> implements AsyncIterable<T> {
  readonly #fetch: (position: { cursor?: string }) => Promise<Fetched<T>>;

  constructor(fetch: (position: { cursor?: string }) => Promise<Fetched<T>>) {
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
    const { data, nextCursor } = await this.#fetch(position);
    return new Page(data, nextCursor, (cursor) => this.#page({ cursor }));
  }
}
