// An Express service whose callers tenantry authenticates. Start it with `npm start`, and call it:
//   curl -i http://127.0.0.1:8080/reports -H "Authorization: Bearer $KEY"    # needs a key with the scope reports:read
import { expressErrorHandler, Tenantry } from "@tenantry/client";
import express from "express";

const tenantry = new Tenantry();

/** Accept only requests whose credential covers the scope. tenantry decides about each one. */
const needs = (scope) => async (request, response, next) => {
  response.vary(["Authorization", "X-Organization-Id"]).set("Cache-Control", "private");
  response.locals.caller = await tenantry.auth.verify(request, scope);
  next();
};

const app = express();

app.get("/reports", needs("reports:read"), (request, response) => {
  response.json({ tenant: response.locals.caller.orgId, reports: [] });
});

app.use(expressErrorHandler);

const server = app.listen(Number(process.env.PORT ?? 8080), "127.0.0.1", () => {
  console.log(`http://127.0.0.1:${server.address().port}/reports`);
});
