import type { Parts } from "./client.js";

/** Where a parameter of a method goes, and under which name. */
interface Field {
  in: "body" | "headers" | "path" | "query";
  key: string;
  map?: string;
}

/** Return the parts of a request from a method's parameters. An unknown one is refused when the request is sent. */
export function partsOf(parameters: object | undefined, fields: readonly Field[]): Omit<Parts, "method" | "url"> {
  const parts: Partial<Record<Field["in"], Record<string, unknown>>> = {};
  for (const [name, value] of Object.entries(parameters ?? {})) {
    const field = fields.find(({ key }) => key === name);
    if (field === undefined) return { unknown: name };
    (parts[field.in] ??= {})[field.map ?? name] = value;
  }
  return parts;
}
