-- Distinct signed events, one request each. The file holds one event a line: tenant number, id, second, signature.
local file = os.getenv("BENCH_EVENTS")
local filler = string.rep("x", 3300)
local events, count, position = {}, 0, 0

for line in io.lines(file) do
  count = count + 1
  events[count] = line
end

function init(_)
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
end

function request()
  position = position + 1
  if position > count then
    return wrk.format("GET", "/exhausted")
  end
  local tenant, id, second, signature = string.match(events[position], "(%S+) (%S+) (%S+) (%S+)")
  local body = '{"id":"' .. id .. '","object":"event","type":"customer.subscription.updated","created":' .. second ..
    ',"livemode":true,"api_version":"2025-03-31.basil","data":{"object":{"id":"sub_' .. tenant ..
    '","object":"subscription","status":"active","customer":"cus_' .. tenant ..
    '","cancel_at_period_end":false,"metadata":{"orgId":"t' .. tenant ..
    '"},"items":{"object":"list","data":[{"id":"si_1","price":{"id":"price_pro"},"current_period_end":1900000000}]},' ..
    '"description":"' .. filler .. '"}}}'
  wrk.headers["Provider-Signature"] = "t=" .. os.getenv("BENCH_TIMESTAMP") .. ",v1=" .. signature
  return wrk.format("POST", "/api/v1/webhooks/payment-provider", nil, body)
end

local refused = 0
function response(status)
  if status ~= 200 then
    refused = refused + 1
  end
end

function done(summary, latency, _)
  io.write(string.format("RESULT %d %d %d %d\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99)))
end
