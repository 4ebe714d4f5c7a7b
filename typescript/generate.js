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
  EndingView: "AccessEnding",
  FeedPage: "EventPage",
  ListedEndpoint: "WebhookEndpointStatus",
  NewApiKey: "ApiKeyFields", // the body of a creation
  OutboundEvent: "ChangeEventFields", // src/changes.ts has the kinds of events
  Outcome: "EventOutcome",
  PlanView: "Plan",
  SessionAddress: "HostedSession",
  StateView: "BillingStateDetails",
  SubscriptionView: "SubscriptionState",
};

/** Parts of paths that group resources. */
const GROUPS = new Set(["billing", "operator"]);

/** Resources below a tenant's path that only the operator changes. */
const OF_OPERATOR = new Set(["grants", "apiKeys"]);

/** Actions whose paths do not name them as verbs. */
const ACTIONS = {
  confirmation: "requestConfirmation",
  consumptions: "giveBack",
  explanation: "explain",
  find: "find",
  import: "importKeys",
};

const FEED = "url: '/api/v1/operator/events',";

/** Methods with paths of operations that take an idempotency key, and of those whose responses have no content. */
const KEYED = new Set();
const EMPTY = new Set();

const camel = (name) => name.replace(/[-_](.)/g, (_, letter) => letter.toUpperCase());

/** The resource and the action of an operation: projects.create, apiKeys.rotate, billing.events.list. */
function methodName(path, { operationId }) {
  const parts = path.replace(/^\/api\/v1\/(me\/)?/, "").split("/");
  const names = parts.filter((part) => !part.startsWith("{")).map(camel);
  if (names[0] === "tenants" && OF_OPERATOR.has(names[1])) names[0] = "operator";
  const action = ACTIONS[names.at(-1)];
  if (action) return [...names.slice(0, -1), action].join(".");
  const endsInAction = names.length > (GROUPS.has(names[0]) ? 2 : 1);
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
    const address = path.replace(/\{\w+\}/g, camel);
    for (const [method, { parameters = [], responses }] of Object.entries(operations)) {
      if (parameters.some(({ name }) => name === "Idempotency-Key")) KEYED.add(`${method} ${address}`);
      if (responses[204]) EMPTY.add(`${method} ${address}`);
    }
    delete paths[path];
    paths[address] = operations;
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

/** Let the methods send their requests with this package's client: the generator's own goes. */
function useOwnClient(methods) {
  change(methods, "import { client } from './client.gen.js';\n", "");
  change(methods, /import \{ buildClientParams, .*? from '\.\/client\/index\.js';/, 'import { partsOf } from "../parameters.js";');
  change(methods, /buildClientParams\(\[parameters\], \[\{ args: (\[.*?\]) \}\]\)/gs, "partsOf(parameters, $1)");
  const base = "class HeyApiClient {\n    constructor(protected readonly client: Client) {}\n}\n\n";
  change(methods, /export type Options<.*?(?=export class ApiKeys )/s, base);
  change(methods, /    public static readonly __registry.*?\n    \}\n/s, "");
  change(methods, /\(\{ client: this\.client \}\)/g, "(this.client)");
  change(methods, /<ThrowOnError extends boolean = true>/g, "");
  change(methods, /options\?: Options<never, ThrowOnError>/g, "options?: CallOptions");
  const call = /\(options\?\.client \?\? this\.client\)\.(\w+)<(\w+), \w+, ThrowOnError, 'data'>\(\{(.*?)\n        \}\);/gs;
  change(methods, call, (_, method, answers, parts) => {
    const [, url] = /url: '(.*?)'/.exec(parts);
    const sent = parts
      .replace("responseStyle: 'data',", `method: '${method.toUpperCase()}',${facts(`${method} ${url}`)}`)
      .replace("            ...options,\n", "")
      .replace(/,\n +headers: \{.*?\n +\}$/s, "");
    return `this.client.send<${answers}[keyof ${answers}]>({${sent}\n        }, options);`;
  });
  change(methods, ...importFrom("settings", "type { CallOptions }"));
  change(methods, ...importFrom("client", "type { Client }"));
}

/** The lines that tell the client what else it must know of an operation. */
function facts(operation) {
  const lines = [KEYED.has(operation) && "isKeyed: true,", EMPTY.has(operation) && "content: 'nothing',"];
  return lines.filter(Boolean).map((line) => `\n            ${line}`).join("");
}

/** Let each list return a pager, in place of its first page. */
function returnPagers(methods) {
  const list = /public list(?<signature>\(.*?\)) \{(?<before>.*?)return (?<send>this\.client\.send)<(?<answers>\w+)\[.*?>\((?<parts>\{.*?)\n        \}, options\);/gs;
  change(methods, list, (...match) => {
    const { signature, before, send, answers, parts } = match.at(-1);
    const [kind, items] = parts.includes(FEED) ? ["EventPager", ""] : ["Pager", `<${answers}[200]["data"][number]>`];
    const query = before.includes("params") ? "{ ...params.query, ...position }" : "position";
    return (
      `public list${signature}: ${kind}${items} {${before}return new ${kind}((position) => ` +
      `${send}<${answers}[200]>(${parts},\n            query: ${query}\n        }, options));`
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
     * Return the changes as they come, without an end: iterate over the result. The options apply to each request, except
     * \`retries\`: it asks again for as long as the service is unreachable.
     */
    public follow(parameters: FollowParameters = {}, options: CallOptions = {}): EventFollower {
        const once = { ...options, retries: 0 };
        const read = (position: object) => this.list({ ...parameters, ...position }, once).firstPage();
        return new EventFollower(read, parameters, options.signal);
    }
`;
  change(methods, new RegExp(`(${FEED}.*?\\n    \\}\\n)`, "s"), `$1${follow}`);
  change(methods, ...importFrom("changes", "{ EventFollower, EventPager, type FollowParameters }"));
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
useOwnClient(methods);
returnPagers(methods);
followChanges(types, methods);
maskSecrets(types, methods);
nameIdempotencyKeys(methods);
for (const unused of ["client", "core", "client.gen.ts", "index.ts"]) rmSync(`src/generated/${unused}`, { recursive: true });
const { version } = JSON.parse(readFileSync("package.json", "utf-8"));
writeFileSync("src/generated/version.gen.ts", `export const VERSION = ${JSON.stringify(version)};\n`);
rmSync("dist", { recursive: true, force: true });
// A part of the generated code is the generator's own.
cpSync("node_modules/@hey-api/openapi-ts/LICENSE.md", "dist/generated/LICENSE.md");
