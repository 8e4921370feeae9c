-- lua jobcomp_test.lua PLUGIN_LUA_DIR - the spool's lines: JSON whatever names hold, and no failure of any kind.
local errors = 0
slurm = { SUCCESS = 0, log_error = function() errors = errors + 1 end }
SHARDFIT_SPOOL, SHARDFIT_CLUSTER = os.tmpname(), 'c"1'
dofile(arg[1] .. "/jobcomp.lua")
local failed = 0
local function expect(name, good, detail)
  if not good then failed = failed + 1; print("FAILED: " .. name .. ": " .. tostring(detail)) end
end
expect("a line", slurm_jobcomp_log_record({ job_id = 7, name = 'a"b\\c\n\1\127\195\169\255\237\160\128z', spank_job_env = { [0] = "A=1", "B=2" }, start_time = 1790000000, total_cpus = 1.5, array_task_id = 4294967294 }) == 0)
expect("another", slurm_jobcomp_log_record(setmetatable({}, { __index = function(_, k) if k == "job_id" then return 8 end error("no " .. k) end })) == 0)
local file = io.open(SHARDFIT_SPOOL)
local first, second, third = file:read("*l"), file:read("*l"), file:read("*l")
file:close()
expect("two lines", first and second and not third)
for _, part in ipairs({ '{"v":1,"cluster":"c\\"1","job_id":7,', '"name":"a\\"b\\\\c\\n\\u0001\\u007f\195\169\\ufffd\\ufffd\\ufffd\\ufffdz"', '"spank_job_env":["A=1","B=2"]', '"start_time":1790000000,', '"total_cpus":1.5,', '"array_task_id":4294967294,', '"nodes":null,' }) do
  expect("part", first:find(part, 1, true), part .. " in " .. first)
end
expect("unreadable fields are null", second:find('"job_id":8,"array_job_id":null', 1, true), second)
expect("no error so far", errors == 0)
os.remove(SHARDFIT_SPOOL)
SHARDFIT_SPOOL = "/nonexistent/folder/spool"
expect("an unwritable spool", slurm_jobcomp_log_record({ job_id = 9 }) == 0 and errors == 1)
expect("no job at all", slurm_jobcomp_log_record(nil) == 0)
print(_VERSION .. (failed == 0 and ": all well" or ": failures"))
os.exit(failed == 0 and 0 or 1)
