// Generates src/generated, the methods and types of the service's OpenAPI document. `npm run build` runs it.
import { cpSync, rmSync } from "node:fs";

import { createClient } from "@hey-api/openapi-ts";

const camel = (name) => name.replace(/[-_](.)/g, (_, letter) => letter.toUpperCase());

/** The resource and the action of an operation: projects.create, apiKeys.rotate, billing.events.list. */
function methodName(path, { operationId }) {
  const parts = path.replace(/^\/api\/v1\/(me\/)?/, "").split("/");
  const names = parts.filter((part) => !part.startsWith("{")).map(camel);
  const endsInAction = names.length > 1 && names[0] !== "billing";
  return [...names, ...(endsInAction ? [] : [/^[a-z]+/.exec(operationId)[0]])].join(".");
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

await createClient({
  input: "../tests/contract/openapi.json",
  output: { path: "src/generated", importFileExtension: ".js" },
  logs: { level: "warn", file: false },
  parser: {
    filters: { operations: { exclude: ["/webhooks/", "/auth/verify/", "GET /healthz", "GET /readyz"] } },
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
rmSync("dist", { recursive: true, force: true });
// A part of the generated code is the generator's own.
cpSync("node_modules/@hey-api/openapi-ts/LICENSE.md", "dist/generated/LICENSE.md");
