-- One request after the other on each connection, each with another of many credentials; an empty line sends none.
local requests, position = {}, 0
local pause = tonumber(os.getenv("BENCH_PAUSE_MS"))

function init()
  for line in io.lines(os.getenv("BENCH_CREDENTIALS")) do
    wrk.headers["Authorization"] = line ~= "" and "Bearer " .. line or nil
    requests[#requests + 1] = wrk.format("GET", os.getenv("BENCH_PATH"))
  end
end

function request()
  position = position % #requests + 1
  return requests[position]
end

-- At random, so that the connections do not send together.
if pause > 0 then
  function delay()
    return math.random(0, 2 * pause)
  end
end

function done(summary, _, _)
  local errors = summary.errors
  io.write(string.format("RESULT %d %d %d %d\n", summary.requests, summary.duration, errors.status,
    errors.connect + errors.read + errors.write + errors.timeout))
end
