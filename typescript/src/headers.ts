/** Headers as `fetch` or Node.js have them. */
export type ReceivedHeaders = Headers | Record<string, string | string[] | undefined>;

/** All values of a header. Node.js writes its name in lower case, but not every gateway does. */
export function valuesOf(headers: ReceivedHeaders, name: string): unknown[] {
  if (isHeaders(headers)) return [headers.get(name)].filter((value) => value !== null);
  const values = Object.keys(headers).filter((key) => key.toLowerCase() === name).map((key) => headers[key]);
  return values.filter((value) => value !== undefined);
}

/** Whether these are `Headers`, which a framework may have a class of its own for. */
function isHeaders(headers: ReceivedHeaders): headers is Headers {
  return typeof headers.get === "function";
}
