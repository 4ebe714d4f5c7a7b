-- Signed events, each sent once; the bodies are those that bench/events.py composes. The file of events holds one a
-- line: tenant number, id, second, signature, price.
local marks = { ["<id>"] = true, ["<created>"] = true, ["<end>"] = true, ["<price>"] = true }
local month, tenants = 30 * 24 * 3600, 1000 -- as in bench/events.py and bench/support.py
local events, position = "", 1
local pieces, places, lengths = {}, {}, {}
local second_known, second_text, end_text

-- Where each mark is among a tenant's pieces is the same for all tenants, so that filling them in is cheap.
local function cut(template)
  local cuts, from = {}, 1
  while true do
    local first, last = string.find(template, "<%l+>", from)
    if not first then break end
    cuts[#cuts + 1] = string.sub(template, from, first - 1)
    cuts[#cuts + 1] = string.sub(template, first, last)
    from = last + 1
  end
  cuts[#cuts + 1] = string.sub(template, from)
  return cuts
end

sent, exhausted = 0, 0 -- global, so that done() can ask the thread for them

function setup(thread)
  sender = thread
end

function init(_)
  local file = io.open(os.getenv("BENCH_FOLDER") .. "/template")
  local template = file:read("*a")
  file:close()
  local head = "POST " .. os.getenv("BENCH_PATH") .. " HTTP/1.1\r\nHost: " .. wrk.host .. ":" .. wrk.port ..
    "\r\nContent-Type: application/json; charset=utf-8\r\n" .. os.getenv("BENCH_HEADERS") .. ": "
  for tenant = 0, tenants - 1 do
    local body = cut((string.gsub(template, "<tenant>", tostring(tenant))))
    local length = 0
    for _, piece in ipairs(body) do
      if not marks[piece] then length = length + #piece end
    end
    -- the head, the signature, what ends the head, the length, the blank line; then the body
    local all = { head, "", "\r\nContent-Length: ", "", "\r\n\r\n" }
    for _, piece in ipairs(body) do all[#all + 1] = piece end
    pieces[tenant], lengths[tenant] = all, length
  end
  for number, piece in ipairs(pieces[0]) do
    if marks[piece] then places[#places + 1] = { number, piece } end
  end
  file = io.open(os.getenv("BENCH_FOLDER") .. "/events")
  events = file:read("*a") -- one string: the garbage collector would go through lines again and again
  file:close()
  collectgarbage("setpause", 1000)
end

local is_tried = false

function request()
  if not is_tried then -- wrk looks at one request before it begins, and does not send it
    is_tried = true
    return wrk.format("GET", "/")
  end
  local _, last, tenant, id, second, signature, price =
    string.find(events, "^(%d+) (%S+) (%d+) (%S+) (%S+)\n", position)
  if not last then
    exhausted = 1
    return wrk.format("GET", "/exhausted")
  end
  position, sent = last + 1, sent + 1
  tenant = tonumber(tenant)
  if second ~= second_known then
    second_known, second_text, end_text = second, second, tostring(tonumber(second) + month)
  end
  local values = { ["<id>"] = id, ["<created>"] = second_text, ["<end>"] = end_text, ["<price>"] = price }
  local request, length = pieces[tenant], lengths[tenant]
  for number = 1, #places do
    local place = places[number]
    local value = values[place[2]]
    request[place[1]] = value
    length = length + #value
  end
  request[2], request[4] = signature, length
  return table.concat(request)
end

function done(summary, latency, _)
  local errors = summary.errors
  io.write(string.format("RESULT %d %d %d %d %d %d %d %d\n", summary.requests, summary.duration,
    latency:percentile(50), latency:percentile(99), errors.status,
    errors.connect + errors.read + errors.write + errors.timeout, sender:get("sent"), sender:get("exhausted")))
end
