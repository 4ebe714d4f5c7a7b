-- Requests of a file in turn, which NUL bytes separate. In each request <n> is the number of requests sent before it.
local requests, numbered, position = {}, {}, 0

function init(_)
  local file = io.open(os.getenv("BENCH_REQUESTS"))
  for text in string.gmatch(file:read("*a"), "%Z+") do
    requests[#requests + 1] = text
    local head, tail = string.match(text, "^(.*)<n>(.*)$")
    numbered[#requests] = head and { head, tail } or false
  end
  file:close()
end

function request()
  position = position + 1
  local number = (position - 1) % #requests + 1
  local parts = numbered[number]
  if parts then return parts[1] .. position .. parts[2] end
  return requests[number]
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format("RESULT %d %d %d %d %d %d %d 0\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), errors.status,
    errors.connect + errors.read + errors.write + errors.timeout, summary.requests))
end
