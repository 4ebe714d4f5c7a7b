-- Requests that consume, each of another counter: a path and a credential a line. With BENCH_KEYS each has an
-- idempotency key of its own.
local heads, count, position = {}, 0, 0
local body = '{"amount":1}'
local keys = os.getenv("BENCH_KEYS")

function init(_)
  for line in io.lines(os.getenv("BENCH_COUNTERS")) do
    local path, credential = string.match(line, "^(%S+) (.+)$")
    count = count + 1
    heads[count] = "POST " .. path .. " HTTP/1.1\r\nHost: " .. wrk.host .. ":" .. wrk.port ..
      "\r\nContent-Type: application/json\r\nContent-Length: " .. #body .. "\r\nAuthorization: " .. credential .. "\r\n"
  end
end

function request()
  position = position + 1
  local head = heads[position % count + 1]
  if keys then head = head .. "Idempotency-Key: " .. keys .. position .. "\r\n" end
  return head .. "\r\n" .. body
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format("RESULT %d %d %d %d %d %d %d 0\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), errors.status,
    errors.connect + errors.read + errors.write + errors.timeout, summary.requests))
end
