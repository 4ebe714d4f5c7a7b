-- Requests as list.lua sends them, but with so many credentials that they are kept as one string: the garbage
-- collector would go through them again and again.
local head, credentials, position = "", "", 1

function init(_)
  head = "GET " .. os.getenv("BENCH_PATH") .. " HTTP/1.1\r\nHost: " .. wrk.host .. ":" .. wrk.port .. "\r\n" ..
    os.getenv("BENCH_HEADER") .. ": "
  local file = io.open(os.getenv("BENCH_CREDENTIALS"))
  credentials = file:read("*a")
  file:close()
end

function request()
  local _, last, credential = string.find(credentials, "([^\n]+)\n", position)
  position = last < #credentials and last + 1 or 1
  return head .. credential .. "\r\n\r\n"
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format("RESULT %d %d %d %d %d %d %d 0\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), errors.status,
    errors.connect + errors.read + errors.write + errors.timeout, summary.requests))
end
