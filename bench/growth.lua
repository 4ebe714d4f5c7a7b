-- Signed events as webhook.lua sends them, but of any number of tenants: nothing is prepared for each tenant.
local month = tonumber(os.getenv("BENCH_MONTH"))
local events, position = "", 1
local pieces, places, length = {}, {}, 0

sent, exhausted = 0, 0 -- global, so that done() can ask the thread for them

function setup(thread)
  sender = thread
end

function init(_)
  local file = io.open(os.getenv("BENCH_TEMPLATE"))
  local template = file:read("*a")
  file:close()
  -- the head, the signature, what ends the head, the length, the blank line; then the body
  pieces = {
    "POST " .. os.getenv("BENCH_PATH") .. " HTTP/1.1\r\nHost: " .. wrk.host .. ":" .. wrk.port ..
      "\r\nContent-Type: application/json; charset=utf-8\r\n" .. os.getenv("BENCH_HEADER") ..
      ": t=" .. os.getenv("BENCH_STAMP") .. ",v1=",
    "", "\r\nContent-Length: ", "", "\r\n\r\n",
  }
  local from = 1
  while true do
    local first, last, mark = string.find(template, "<(%l+)>", from)
    if not first then break end
    pieces[#pieces + 1] = string.sub(template, from, first - 1)
    length = length + first - from
    pieces[#pieces + 1] = ""
    places[#places + 1] = { #pieces, mark }
    from = last + 1
  end
  pieces[#pieces + 1] = string.sub(template, from)
  length = length + #template - from + 1
  file = io.open(os.getenv("BENCH_EVENTS"))
  events = file:read("*a") -- one string: the garbage collector would go through lines again and again
  file:close()
  collectgarbage("setpause", 1000)
end

local is_tried, values = false, {}

function request()
  if not is_tried then -- wrk looks at one request before it begins, and does not send it
    is_tried = true
    return wrk.format("GET", "/")
  end
  local _, last, tenant, id, second, signature = string.find(events, "^(%d+) (%S+) (%d+) (%x+)\n", position)
  if not last then
    exhausted = 1
    return wrk.format("GET", "/exhausted")
  end
  position, sent = last + 1, sent + 1
  if second ~= values.created then
    values.created, values["end"] = second, tostring(tonumber(second) + month)
  end
  values.tenant, values.id = tenant, id
  local total = length
  for number = 1, #places do
    local place = places[number]
    local value = values[place[2]]
    pieces[place[1]] = value
    total = total + #value
  end
  pieces[2], pieces[4] = signature, total
  return table.concat(pieces)
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format("RESULT %d %d %d %d %d %d %d %d\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), errors.status,
    errors.connect + errors.read + errors.write + errors.timeout, sender:get("sent"), sender:get("exhausted")))
end
