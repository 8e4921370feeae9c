-- lua policy_bench.lua SHARDFIT_POLICY.lua - time of one job_submit check with 10,000 (partition, pin) entries: 100 partitions in 100 regions,
-- 100 accounts with a pin each; jobs name one partition, or a list of five.
local module = arg[1] or "plugin/lua/shardfit_policy.lua"
local path = os.tmpname()
local out = { "return { version = 1, default = {}, users = {}, qos = {}, partition_pins = {}, accounts = {" }
for a = 1, 100 do out[#out + 1] = string.format('["a%d"] = {"residency(EU|EEA|CH)", "provider(p%d|common)", "sovereign"},', a, a) end
out[#out + 1] = "}, partitions = {"
for p = 1, 100 do out[#out + 1] = string.format('["p%d"] = {region = "r/%d"},', p, p) end
out[#out + 1] = "}, facts = {"
for p = 1, 100 do
  out[#out + 1] = string.format('["r/%d"] = {["residency(eu)"] = 3, ["residency(de)"] = 3, ["provider(common)"] = 3, sovereign = 3, text = {country = "country = DE"}},', p)
end
out[#out + 1] = "} }"
local file = assert(io.open(path, "w"))
file:write("-- shardfit policy 1 0123456789abcdef\n", table.concat(out, "\n"))
file:close()

slurm = { SUCCESS = 0, ERROR = -1, ESLURM_ACCESS_DENIED = 2002, log_user = function(_, m) error(m) end, log_info = function() end }
SHARDFIT_POLICY = path
local shardfit = dofile(module)
local parts = { p1 = { flag_default = 1 } }
local function measure(name, partition)
  local rounds, best = 2000, math.huge
  for _ = 1, 5 do
    local begin = os.clock()
    for i = 1, rounds do
      local job = { partition = partition, account = "a" .. (i % 100 + 1), user_name = "u", spank_job_env = { [0] = "SHARDFIT_PLAN_SHA256=ab", "SHARDFIT_PINS=residency(EU)" } }
      assert(shardfit.submit(job, parts, 0) == 0)
    end
    best = math.min(best, (os.clock() - begin) / rounds)
  end
  print(string.format("%-20s %7.1f us a job (%s)", name, best * 1e6, _VERSION))
end
measure("one partition", "p57")
measure("list of five", "p1,p20,p40,p60,p80")
os.remove(path)
