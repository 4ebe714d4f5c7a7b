// Generates src/generated, the methods and types of the service's OpenAPI document. `npm run build` runs it.
import { cpSync, readFileSync, rmSync, writeFileSync } from "node:fs";

import { createClient } from "@hey-api/openapi-ts";

/** Schemas that the Python SDK names otherwise. */
const NAMES = {
  Action: "AuditAction",
  ApiKeyWithSecret: "NewApiKey",
  BillingEventView: "BillingEvent",
  BillingFields: "BillingState",
  EndedKey: "RevokedKey",
  FeedPage: "EventPage",
  NewApiKey: "ApiKeyFields", // the body of a creation
  OutboundEvent: "ChangeEventFields", // src/changes.ts has the kinds of events
  Outcome: "EventOutcome",
  PlanView: "Plan",
  SessionAddress: "HostedSession",
};

/** Parts of paths that group resources. */
const GROUPS = new Set(["billing", "operator"]);

/** Resources below a tenant's path that only the operator changes. */
const OF_OPERATOR = new Set(["grants", "apiKeys"]);

/** Actions whose paths do not name them as verbs. */
const ACTIONS = { confirmation: "requestConfirmation", import: "importKeys" };

const FEED = "url: '/api/v1/operator/events',";

const camel = (name) => name.replace(/[-_](.)/g, (_, letter) => letter.toUpperCase());

/** The resource and the action of an operation: projects.create, apiKeys.rotate, billing.events.list. */
function methodName(path, { operationId }) {
  const parts = path.replace(/^\/api\/v1\/(me\/)?/, "").split("/");
  const names = parts.filter((part) => !part.startsWith("{")).map(camel);
  if (names[0] === "tenants" && OF_OPERATOR.has(names[1])) names[0] = "operator";
  const action = ACTIONS[names.at(-1)];
  if (action) return [...names.slice(0, -1), action].join(".");
  const endsInAction = names.length > 1 && !GROUPS.has(names[0]);
  return [...names, ...(endsInAction ? [] : [/^[a-z]+/.exec(operationId)[0]])].join(".");
}

/** Read the service's document, with schemas named as in the Python SDK. */
function readDocument() {
  const document = JSON.parse(readFileSync("../tests/contract/openapi.json", "utf-8"), (key, value) =>
    key === "$ref" ? value.replace(/\w+$/, (name) => NAMES[name] ?? name) : value,
  );
  const renamed = Object.entries(document.components.schemas).map(([name, schema]) => {
    const title = NAMES[name] ?? name;
    return [title, { ...schema, title }];
  });
  document.components.schemas = Object.fromEntries(renamed);
  return document;
}

/** Name methods by resource, and let them take ids in camel case and the fields of the body as plain arguments. */
function prepare(document) {
  const { paths, components } = document;
  delete document.servers; // every client has its own address
  delete components.headers; // the generator has no use for them
  for (const [path, operations] of Object.entries(paths)) {
    for (const operation of Object.values(operations)) {
      operation.operationId = methodName(path, operation);
      for (const parameter of operation.parameters ?? []) {
        if (parameter.in === "path") parameter.name = camel(parameter.name);
      }
      for (const response of Object.values(operation.responses)) delete response.headers;
      const content = operation.requestBody?.content["application/json"];
      const body = content?.schema.anyOf?.[0] ?? content?.schema; // the other choice is null: no body
      if (body?.$ref) content.schema = components.schemas[body.$ref.split("/").at(-1)];
    }
    delete paths[path];
    paths[path.replace(/\{\w+\}/g, camel)] = operations;
  }
}

/** Change generated source. Throws if what is to be changed is not there. */
function change(file, pattern, replacement) {
  const source = readFileSync(file, "utf-8");
  const changed = source.replace(pattern, replacement);
  if (changed === source) throw new Error(`${file} has no ${pattern}`);
  writeFileSync(file, changed);
}

const importFrom = (module, names) => [/\n\n/, `\n\nimport ${names} from "../${module}.js";\n`];

/** Let each list return a pager, in place of the promise of its first page. */
function returnPagers(methods) {
  const signature = /public list<.*?>\((?<parameters>.*?)options\?: .*?\) \{(?<before>.*?)/;
  const call = /return (?<get>\(options\?\.client .*?\.get)<(?<answers>\w+), (?<errors>\w+), ThrowOnError(?<rest>.*?)\n +\}\);/;
  change(methods, new RegExp(signature.source + call.source, "gs"), (...match) => {
    const { parameters, before, get, answers, errors, rest } = match.at(-1);
    if (rest.includes(FEED)) return match[0]; // it has no end
    const query = parameters ? "{ ...params.query, ...position }" : "position";
    return (
      `public list(${parameters}options?: Options<never, true>): Pager<${answers}[200]["data"][number]> {${before}` +
      `return new Pager((position) => ${get}<${answers}, ${errors}, true${rest},\n            query: ${query}\n        }));`
    );
  });
  change(methods, ...importFrom("pager", "{ Pager }"));
}

/** Let the change feed be followed, and give its events the types of their kinds. */
function followChanges(types, methods) {
  const follow = `
    /**
     * Follow the changes of all tenants (operator)
     *
     * Return the changes as they come, without an end: iterate over the result.
     */
    public follow(parameters: FollowParameters = {}, options: { signal?: AbortSignal } = {}): EventFollower {
        return new EventFollower((position) => this.list({ ...parameters, ...position }, options), parameters, options.signal);
    }
`;
  change(methods, new RegExp(`(${FEED}.*?\\n    \\}\\n)`, "s"), `$1${follow}`);
  change(methods, ...importFrom("changes", "{ EventFollower, type FollowParameters }"));
  change(types, "data: Array<ChangeEventFields>;", "data: Array<ChangeEvent>;");
  change(types, ...importFrom("changes", "type { ChangeEvent }"));
}

/** Keep secrets out of what is printed: those of new keys, and of leak reports. */
function maskSecrets(types, methods) {
  change(types, /(export type NewApiKey = \{.*? secret: )string;/s, "$1Secret;");
  change(methods, "secret: string;", "secret: string | Secret;");
  for (const file of [types, methods]) change(file, ...importFrom("secret", "type { Secret }"));
}

/** Name the parameter of an idempotency key like the others. */
function nameIdempotencyKeys(methods) {
  change(methods, /'Idempotency-Key'\?: string/g, "idempotencyKey?: string");
  change(methods, /key: 'Idempotency-Key'/g, "key: 'idempotencyKey', map: 'Idempotency-Key'");
}

await createClient({
  input: readDocument(),
  output: { path: "src/generated", importFileExtension: ".js" },
  logs: { level: "warn", file: false },
  parser: {
    filters: { operations: { exclude: ["/webhooks/", "/auth/verify/", "/consume/", "GET /healthz", "GET /readyz"] } },
    patch: { input: prepare },
  },
  plugins: [
    "@hey-api/typescript",
    { name: "@hey-api/client-fetch", throwOnError: true },
    {
      name: "@hey-api/sdk",
      paramsStructure: "flat",
      responseStyle: "data",
      operations: { strategy: "single", containerName: "Api" },
    },
  ],
});
const [methods, types] = ["sdk", "types"].map((name) => `src/generated/${name}.gen.ts`);
returnPagers(methods);
followChanges(types, methods);
maskSecrets(types, methods);
nameIdempotencyKeys(methods);
rmSync("dist", { recursive: true, force: true });
// A part of the generated code is the generator's own.
cpSync("node_modules/@hey-api/openapi-ts/LICENSE.md", "dist/generated/LICENSE.md");
