-- Keeps jobs inside their pins, in slurmctld: whatever the client did, a job that must stay in a region is refused elsewhere, on submit
-- and on modify. Reads the tables that `shardfit policy publish` writes; needs nothing else. Lua 5.1 to 5.4.
--
-- From a site's own job_submit.lua:
--   local shardfit = dofile("/usr/share/shardfit/lua/shardfit_policy.lua")
--   function slurm_job_submit(job, partitions, uid)
--     local rc = shardfit.submit(job, partitions, uid)
--     if rc ~= slurm.SUCCESS then return rc end
--     ... -- the site's own rules
--   end
--   function slurm_job_modify(job, record, partitions, uid) return shardfit.modify(job, record, partitions, uid) end
-- The global SHARDFIT_POLICY names the tables' file; default /var/lib/shardfit/policy.lua.

local M = {}

local tables, tables_id  -- what is loaded, and the first line of its file

local function tables_path() return SHARDFIT_POLICY or "/var/lib/shardfit/policy.lua" end

-- The tables in force. The file's first line carries a digest of the rest, so an unchanged file costs one short read. A file that is
-- absent or broken is an error, and errors refuse jobs: the tables before it may have allowed what these forbid.
local function load_tables()
  local path = tables_path()
  local file, why = io.open(path, "r")
  if not file then error("the policy tables cannot be read (" .. tostring(why) .. "): run shardfit policy publish", 0) end
  local first = file:read("*l")
  file:close()
  if tables and first == tables_id then return tables end
  if not first or not first:match("^%-%- shardfit policy 1 %x+$") then error(path .. " is not a table of this version: run shardfit policy publish", 0) end
  tables, tables_id = nil, nil
  local chunk, problem = loadfile(path)
  if not chunk then error(path .. " is broken (" .. tostring(problem) .. "): run shardfit policy publish", 0) end
  local t = chunk()
  if type(t) ~= "table" or t.version ~= 1 then error(path .. " is not a table of this version: run shardfit policy publish", 0) end
  tables, tables_id = t, first
  return t
end

-- ---------------------------------------------------------------- pins

local function trim(s) return (s:gsub("^%s+", ""):gsub("%s+$", "")) end

-- Adds the atoms of "a&b;c" to `into` (list and set), aliases expanded.
local function add_atoms(text, into)
  for part in text:gmatch("[^&;]+") do
    local atom = trim(part)
    local expanded = { atom }
    if atom:lower() == "eu-sovereign" then expanded = { "residency(EU|EEA|CH)", "sovereign" } end
    for _, a in ipairs(expanded) do
      if a ~= "" and not into[a] then
        into[a] = true
        into[#into + 1] = a
      end
    end
  end
end

local function number_of(text) return tonumber((text or ""):match("%d+%.?%d*")) end

-- The rank of evidence (1 recalled, 2 listed, 3 site, 4 verified) that `facts` gives for one atom; nil = not met; second value: the field.
local function judge(atom, facts, now)
  local kind, inside = atom:match("^(%a+)%((.*)%)$")
  kind = (kind or atom):lower()
  if kind == "residency" or kind == "city" or kind == "provider" then
    local best
    for word in (inside or ""):gmatch("[^|]+") do
      local rank = facts[kind .. "(" .. trim(word):lower() .. ")"]
      if rank and (not best or rank > best) then best = rank end
    end
    return best, kind == "residency" and "country" or kind
  elseif kind == "sovereign" then
    return facts.sovereign, "sovereign"
  elseif kind == "cert" then
    local scheme, least = (inside or ""):match("^%s*([^><=]+)%s*>=%s*(.+)$")
    local cert = facts.certs and facts.certs[trim(scheme or inside or ""):lower()]
    if not cert then return nil, "certifications" end
    if cert.untilday and now > cert.untilday then return nil, "certifications" end
    if least and not (cert.level and number_of(least) and cert.level >= number_of(least)) then return nil, "certifications" end
    return cert.rank, "certifications"
  elseif kind:match("^seal") then
    local least = number_of(atom)
    if facts.seal and least and facts.seal.level >= least then return facts.seal.rank, "seal_level" end
    return nil, "seal_level"
  end
  return nil, nil
end

local evidence_ranks = { recalled = 1, listed = 2, site = 3, verified = 4 }

-- nil when the region satisfies every atom; else the atom, and what of the region fails it.
local function region_fails(t, region, atoms, now)
  local facts = t.facts[region]
  local least, least_atom, weakest, weakest_field = 0, nil, 5, nil
  for _, atom in ipairs(atoms) do
    local level = atom:match("^evidence%((.*)%)$")
    if level then
      local rank = evidence_ranks[trim(level):lower()]
      if not rank then return atom, "it is not understood" end
      if rank > least then least, least_atom = rank, atom end
    elseif not facts then
      return atom, "nothing is known of region " .. tostring(region)
    else
      local rank, field = judge(atom, facts, now)
      if not field then return atom, "it is not understood" end
      if not rank then return atom, "region " .. region .. ", field " .. (facts.text and facts.text[field] or field .. " = unknown") end
      if rank < weakest then weakest, weakest_field = rank, field end
    end
  end
  if least_atom and weakest < least then
    return least_atom, "region " .. region .. ", field " .. weakest_field .. " rests on weaker evidence"
  end
  return nil
end

-- The names that every node of a job must have, or nil where the constraint is more than names joined by '&'.
local function conjunction(features)
  local names = {}
  if not features or features == "" then return names end
  if features:find("[|%[%]%(%)%*,]") then return nil end
  for name in features:gmatch("[^&]+") do names[trim(name)] = true end
  return names
end

-- nil when a job with these features stays inside the pins anywhere in the partition.
local function partition_fails(t, name, features, atoms, now)
  local p = t.partitions[name]
  if not p then return atoms[1], "the site file does not say where it stands" end
  if not p.by_feature then return region_fails(t, p.region, atoms, now) end
  local names = conjunction(features)
  for _, entry in ipairs(p.by_feature) do
    if names and names[entry[1]] then
      local atom, why = region_fails(t, entry[2], atoms, now)
      if atom then return atom, why end
      return nil
    end
  end
  for _, entry in ipairs(p.by_feature) do
    local atom, why = region_fails(t, entry[2], atoms, now)
    if atom then return atom, why .. " (its nodes with feature " .. entry[1] .. "; ask for others with --constraint)" end
  end
  return region_fails(t, p.region, atoms, now)
end

-- ---------------------------------------------------------------- jobs

local function given(value) return value ~= nil and value ~= "" end

local function list(text)
  local out = {}
  for name in (text or ""):gmatch("[^,]+") do out[#out + 1] = trim(name) end
  return out
end

-- Fields of Slurm's job objects: an unknown name is nil in every version.
local function field(object, name)
  local ok, value = pcall(function() return object[name] end)
  if ok then return value end
  return nil
end

local function default_partition(partitions)
  for name, p in pairs(partitions or {}) do
    if p.flag_default == 1 then return name end
  end
  return nil
end

-- Slurm takes a reservation's partition where the job names none.
local function partitions_of(partition, reservation, parts)
  if given(partition) then return list(partition) end
  if given(reservation) and slurm.reservations then
    local found = {}
    for _, name in ipairs(list(reservation)) do
      local r = field(slurm.reservations, name)
      local p = r and field(r, "partition")
      if given(p) then found[#found + 1] = p end
    end
    if #found > 0 then return found end
  end
  local name = default_partition(parts)
  return name and { name } or {}
end

-- What a spank plugin handed over: NAME=value entries, numbered from 0.
local function spank_value(job, name)
  local env = field(job, "spank_job_env")
  local plain, found = field(job, "environment"), nil  -- of batch jobs; all there is after `shardfit submit` without the plugin
  if name:match("^SHARDFIT_") and plain and not field(plain, "SLURM_JOB_ID") then found = field(plain, name) end  -- a job's own jobs inherit its variables
  if type(env) ~= "table" then return found end
  for _, entry in pairs(env) do
    local n, value = tostring(entry):match("^([^=]*)=(.*)$")
    if n == name then found = value end
  end
  return found
end

local tag_pattern = "shardfit1;pins=([^;]*);plan=(%x*)"

-- Pins by policy; `origin[atom]` says whose they are.
local function policy_atoms(t, who, atoms, origin)
  local function take(pins, whose)
    for _, atom in ipairs(pins or {}) do
      add_atoms(atom, atoms)
      origin[atom] = origin[atom] or whose
    end
  end
  if given(who.account) and t.accounts[who.account] then
    take(t.accounts[who.account], "account " .. who.account)
  else
    take(t.default, given(who.account) and "policy default, account " .. who.account .. " having no entry" or "policy default, no account being named")
  end
  take(t.users[who.user or ""], "user " .. tostring(who.user))
  take(t.qos[who.qos or ""], "qos " .. tostring(who.qos))
  for _, name in ipairs(who.partitions) do take(t.partition_pins[name], "partition " .. name) end
end

-- The first breach: partition, atom, reason. nil when there is none.
local function breach(t, names, features, atoms)
  if #atoms == 0 then return nil end
  local now = os.time()
  if #names == 0 then return "(none)", atoms[1], "no partition is named and the cluster has no default" end
  for _, name in ipairs(names) do
    local atom, why = partition_fails(t, name, features, atoms, now)
    if atom then return name, atom, why end
  end
  return nil
end

local function refusal(name, atom, why, origin)
  return string.format("shardfit: refused: partition %s does not meet pin %s (of %s): %s", name, atom, origin[atom] or "the job", why)
end

local function with_tag(comment, atoms, plan)
  local tag = "shardfit1;pins=" .. table.concat(atoms, "&") .. ";plan=" .. (plan or "")
  if not given(comment) then return tag end
  local from, to = comment:find(tag_pattern)
  if from then return comment:sub(1, from - 1) .. tag .. comment:sub(to + 1) end
  return comment .. " " .. tag
end

-- SHARDFIT_PINS is what the plugin made of job file and options; the bare option is what is left of it without the plugin.
local function own_atoms(job, atoms, origin)
  for _, name in ipairs({ "SHARDFIT_PINS", "_SLURM_SPANK_OPTION_shardfit_hw_pin" }) do
    local text = spank_value(job, name)
    if text then
      local own = {}
      add_atoms(text, own)
      for _, atom in ipairs(own) do
        add_atoms(atom, atoms)
        origin[atom] = origin[atom] or "the job itself"
      end
    end
  end
end

local function check_submit(job, parts)
  local t = load_tables()
  local account = given(field(job, "account")) and job.account or field(job, "default_account")
  local qos = given(field(job, "qos")) and job.qos or field(job, "default_qos")
  local named = given(job.partition)
  local names = partitions_of(job.partition, field(job, "reservation"), parts)
  local atoms, origin = {}, {}
  policy_atoms(t, { account = account, user = field(job, "user_name"), qos = qos, partitions = names }, atoms, origin)
  own_atoms(job, atoms, origin)
  local name, atom, why = breach(t, names, field(job, "features"), atoms)
  if name then return refusal(name, atom, why, origin) end
  local plan = (spank_value(job, "SHARDFIT_PLAN_SHA256") or ""):match("^%x+$")
  if #atoms > 0 and not named then job.partition = table.concat(names, ",") end  -- what was checked is what runs
  if #atoms > 0 or plan then job.admin_comment = with_tag(field(job, "admin_comment"), atoms, plan) end
  return nil
end

local relevant = { "partition", "account", "qos", "features", "req_nodes", "reservation", "admin_comment" }

local function check_modify(job, record, parts)
  local changed = false
  for _, name in ipairs(relevant) do changed = changed or field(job, name) ~= nil end
  if not changed then return nil end
  local t = load_tables()
  local function now_or_then(name)
    local new = field(job, name)
    if new ~= nil then return new end
    return field(record, name)
  end
  local names = partitions_of(now_or_then("partition"), now_or_then("reservation"), parts)
  local atoms, origin = {}, {}
  local pins, plan = (field(record, "admin_comment") or ""):match(tag_pattern)
  if pins then  -- what bound it when it was submitted binds it still, whatever account it moves to
    add_atoms(pins, atoms)
    for _, atom in ipairs(atoms) do origin[atom] = "the job since it was submitted" end
  end
  policy_atoms(t, { account = now_or_then("account"), user = field(record, "user_name"), qos = now_or_then("qos"), partitions = names }, atoms, origin)
  local name, atom, why = breach(t, names, now_or_then("features"), atoms)
  if name then return refusal(name, atom, why, origin) end
  -- Only an administrator's change may carry an admin_comment (Slurm refuses any other); it must not drop the record.
  if pins and given(field(job, "admin_comment")) then job.admin_comment = with_tag(job.admin_comment, atoms, plan) end
  return nil
end

-- ---------------------------------------------------------------- hooks

local function guarded(check, ...)
  local ok, message = pcall(check, ...)
  if not ok then message = "shardfit: refused: the pins could not be checked: " .. tostring(message) end
  if not message then return slurm.SUCCESS end
  pcall(slurm.log_user, "%s", message)
  pcall(slurm.log_info, "%s", message)
  return slurm.ESLURM_ACCESS_DENIED or slurm.ERROR
end

function M.submit(job, partitions, _) return guarded(check_submit, job, partitions) end
function M.modify(job, record, partitions, _) return guarded(check_modify, job, record, partitions) end

return M
