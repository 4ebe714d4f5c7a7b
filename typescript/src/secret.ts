/** The text of each secret: apart from its object, so that consoles and debuggers do not show it. */
const values = new WeakMap<Secret, string>();
const MASK = "**********";

/** A credential that logs, templates and JSON show as asterisks; `reveal()` returns it. */
export class Secret {
  constructor(value: string) {
    values.set(this, value);
  }

  /** Return the value. */
  reveal(): string {
    return values.get(this) as string;
  }

  toString(): string {
    return MASK;
  }

  toJSON(): string {
    return MASK;
  }

  [Symbol.for("nodejs.util.inspect.custom")](): string {
    return `Secret('${MASK}')`;
  }
}

/** Return the text of a secret or of a plain string. */
export const revealed = (value: string | Secret): string => (value instanceof Secret ? value.reveal() : value);
