-- jobcomp.lua: one JSON line for every attempt of a job, at its end, in the spool that `shardfit ledger import` reads.
-- JobCompType=jobcomp/lua, this file (or one that calls it by dofile) beside slurm.conf. It appends to one local file and does nothing
-- else, because slurmctld waits for it; it never fails. SHARDFIT_SPOOL and SHARDFIT_CLUSTER name the file and the cluster.

local escapes = { ['"'] = '\\"', ["\\"] = "\\\\", ["\n"] = "\\n", ["\r"] = "\\r", ["\t"] = "\\t" }

-- JSON is UTF-8: a byte that is not part of a well-formed character (names of files may hold any) becomes U+FFFD.
local sequences = { "^[\194-\223][\128-\191]", "^\224[\160-\191][\128-\191]", "^[\225-\236\238\239][\128-\191][\128-\191]", "^\237[\128-\159][\128-\191]",
  "^\240[\144-\191][\128-\191][\128-\191]", "^[\241-\243][\128-\191][\128-\191][\128-\191]", "^\244[\128-\143][\128-\191][\128-\191]" }
local function well_formed(bytes)
  local out, at = {}, 1
  while at <= #bytes do
    local character
    for _, pattern in ipairs(sequences) do character = character or bytes:match(pattern, at) end
    out[#out + 1] = character or "\\ufffd"
    at = at + (character and #character or 1)
  end
  return table.concat(out)
end

local function quoted(text)
  local escaped = tostring(text):gsub('[%c"\\\127]', function(c) return escapes[c] or string.format("\\u%04x", c:byte()) end)
  return '"' .. escaped:gsub("[\128-\255]+", well_formed) .. '"'
end

local function json(value)
  local kind = type(value)
  if kind == "number" then
    if value ~= value or value == math.huge or value == -math.huge then return "null" end
    if value == math.floor(value) and value < 2 ^ 53 and value > -2 ^ 53 then return string.format("%.0f", value) end
    return string.format("%.17g", value)
  elseif kind == "boolean" then
    return tostring(value)
  elseif kind == "string" then
    return quoted(value)
  elseif kind == "table" then  -- a list, as Slurm numbers it: from 0
    local keys, out = {}, {}
    for k in pairs(value) do
      if type(k) == "number" then keys[#keys + 1] = k end
    end
    table.sort(keys)
    for _, k in ipairs(keys) do out[#out + 1] = json(value[k]) end
    return "[" .. table.concat(out, ",") .. "]"
  end
  return "null"
end

local fields = { "job_id", "array_job_id", "array_task_id", "het_job_id", "restart_cnt", "job_state", "start_time", "end_time", "submit_time", "partition", "nodes",
  "total_nodes", "total_cpus", "gres_used", "tres_per_node", "tres_fmt_alloc_str", "admin_comment", "spank_job_env", "exit_code", "user_id", "user_name", "account",
  "name", "work_dir", "time_limit" }

local function line(job)
  local parts = { '"v":1', '"cluster":' .. quoted(SHARDFIT_CLUSTER or "") }
  for _, name in ipairs(fields) do
    local ok, value = pcall(function() return job[name] end)
    parts[#parts + 1] = quoted(name) .. ":" .. json(ok and value or nil)
  end
  return "{" .. table.concat(parts, ",") .. "}\n"
end

function slurm_jobcomp_log_record(job)
  local ok, why = pcall(function()
    local text = line(job)
    local file = assert(io.open(SHARDFIT_SPOOL or "/var/spool/shardfit/jobs.ndjson", "a"))
    file:setvbuf("full", #text + 1)  -- one write a line: a reader sees whole lines
    assert(file:write(text))
    assert(file:close())
  end)
  if not ok then pcall(slurm.log_error, "%s", "shardfit: jobcomp.lua: job " .. tostring(job and job.job_id) .. " was not recorded: " .. tostring(why)) end
  return slurm.SUCCESS or 0
end

return slurm.SUCCESS
