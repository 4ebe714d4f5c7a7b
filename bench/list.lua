-- Requests of one path, each with another of many credentials: a whole header value a line.
local requests, count, position = {}, 0, 0

function init(_)
  local head = "GET " .. os.getenv("BENCH_PATH") .. " HTTP/1.1\r\nHost: " .. wrk.host .. ":" .. wrk.port .. "\r\n" ..
    os.getenv("BENCH_MORE_HEADERS") .. os.getenv("BENCH_HEADER") .. ": "
  for line in io.lines(os.getenv("BENCH_CREDENTIALS")) do
    count = count + 1
    requests[count] = head .. line .. "\r\n\r\n"
  end
end

function request()
  position = position % count + 1
  return requests[position]
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format("RESULT %d %d %d %d %d %d %d 0\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), errors.status,
    errors.connect + errors.read + errors.write + errors.timeout, summary.requests))
end
