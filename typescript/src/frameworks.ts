import { APIError } from "./errors.js";

/** Express's response, as far as it is used. */
export interface ExpressResponse {
  status(code: number): this;
  set(headers: Record<string, string>): this;
  send(body: string): unknown;
}

/** Fastify's reply, as far as it is used. */
export interface FastifyReply {
  code(statusCode: number): this;
  headers(values: Record<string, string>): this;
  send(payload: string): unknown;
}

/**
 * Answer a caller that `verify` rejected in Express, with the service's status, headers and problem document. Other errors
 * go on to the next handler. After the routes: `app.use(expressErrorHandler)`.
 */
export function expressErrorHandler(
  error: unknown,
  _request: unknown,
  response: ExpressResponse,
  next: (error: unknown) => void,
): void {
  if (!rejectsCaller(error)) return next(withoutStatus(error));
  response.status(error.statusCode).set(error.headersToPassOn).send(error.content);
}

/** The same in Fastify: `app.setErrorHandler(fastifyErrorHandler)`. */
export function fastifyErrorHandler(error: unknown, _request: unknown, reply: FastifyReply): unknown {
  if (!rejectsCaller(error)) throw withoutStatus(error);
  return reply.code(error.statusCode).headers(error.headersToPassOn).send(error.content);
}

/**
 * Return the same answer as the web's `Response`, as for Next.js, Deno and Bun; throw another error. In Hono:
 * `app.onError(toResponse)`.
 */
export function toResponse(error: unknown): Response {
  if (hasResponse(error)) return error.getResponse(); // Hono's own HTTPException
  if (!rejectsCaller(error)) throw error;
  return new Response(error.content, { status: error.statusCode, headers: error.headersToPassOn });
}

function hasResponse(error: unknown): error is { getResponse(): Response } {
  return error instanceof Error && "getResponse" in error && typeof error.getResponse === "function";
}

function rejectsCaller(error: unknown): error is APIError {
  return error instanceof APIError && error.isForCaller;
}

/** Return an error that Express and Fastify answer with 500: they would send `statusCode` and `headers` of an `APIError`. */
function withoutStatus(error: unknown): unknown {
  return error instanceof APIError ? new Error(error.message, { cause: error }) : error;
}
