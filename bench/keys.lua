-- Project lists, each request with another of many keys.
local keys, count, position = {}, 0, 0
for line in io.lines(os.getenv("BENCH_KEYS")) do
  count = count + 1
  keys[count] = "Bearer " .. line
end

function request()
  position = position % count + 1
  wrk.headers["Authorization"] = keys[position]
  return wrk.format("GET", "/api/v1/projects")
end

function done(summary, latency, _)
  io.write(string.format("RESULT %d %d %d %d\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99)))
end
