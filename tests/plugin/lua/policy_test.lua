-- lua policy_test.lua PLUGIN_LUA_DIR - the check of job_submit against tables made by hand: fields, lists, features, evidence, forged input.
local dir = arg[1]
local path = os.tmpname()
local function publish(text, digest)
  local f = assert(io.open(path, "w"))
  f:write("-- shardfit policy 1 ", digest, "\n", text)
  f:close()
end
publish([[
return { version = 1, default = {"residency(EU|CH)"},
  accounts = { clinic = {"residency(EU|EEA|CH)", "sovereign"}, free = {}, certified = {"cert(C5>=2)"}, sealed = {"seal>=3"}, proven = {"residency(EU)", "evidence(verified)"} },
  users = { alice = {"city(Berlin)"} }, qos = { long = {"provider(good|better)"} }, partition_pins = { mixed = {"residency(EU)"} },
  partitions = { eu = {region = "r/eu"}, us = {region = "r/us"}, none = {region = ""}, lost = {region = "r/lost"}, mixed = {region = "", by_feature = {{"fin", "r/eu"}, {"usa", "r/us"}}},
                 both = {region = "", by_feature = {{"fin", "r/eu"}}} },
  facts = { ["r/eu"] = {["residency(eu)"] = 4, ["residency(eea)"] = 4, ["residency(fi)"] = 4, ["provider(good)"] = 2, ["city(berlin)"] = 1, sovereign = 1,
                        certs = {c5 = {rank = 4, level = 2, untilday = 4102444800}, old = {rank = 4, level = 9, untilday = 1}}, seal = {level = 3, rank = 2}, text = {country = "country = FI"}},
            ["r/us"] = {["residency(us)"] = 2, text = {country = "country = US", sovereign = "operator_country = US"}} } }
]], "0a")
SHARDFIT_POLICY = path
local said
slurm = { SUCCESS = 0, ERROR = -1, ESLURM_ACCESS_DENIED = 2002, log_user = function(_, m) said = m end, log_info = function() end, reservations = { r1 = { partition = "us" } } }
local shardfit = dofile(dir .. "/shardfit_policy.lua")
local parts = { eu = { flag_default = 1 }, us = { flag_default = 0 } }
local count, failed = 0, 0
local function expect(name, good)
  count = count + 1
  if not good then failed = failed + 1; print("FAILED: " .. name .. " (said: " .. tostring(said) .. ")") end
end
local function submit(job) said = nil; return shardfit.submit(job, parts, 1000) == 0 end
local function modify(job, record) said = nil; return shardfit.modify(job, record, parts, 1000) == 0 end
local function refused(name, job, ...)
  local r = submit(job)
  local all = not r
  for _, word in ipairs({ ... }) do all = all and said ~= nil and said:find(word, 1, true) ~= nil end
  expect(name, all)
end

expect("inside", submit({ account = "clinic", partition = "eu" }))
refused("outside", { account = "clinic", partition = "us" }, "partition us", "pin residency(EU|EEA|CH)", "account clinic", "country = US")
refused("list, last", { account = "clinic", partition = "eu, us" }, "partition us")
refused("list, first", { account = "clinic", partition = "us,eu" }, "partition us")
refused("a partition the site file does not have", { account = "clinic", partition = "new" }, "partition new", "site file")
refused("a partition without region", { account = "clinic", partition = "none" }, "partition none")
refused("a region nobody describes", { account = "clinic", partition = "lost" }, "r/lost")
refused("unknown account: the default", { account = "x", partition = "us" }, "pin residency(EU|CH)", "account x having no entry")
refused("no account: the default", { partition = "us" }, "no account being named")
refused("empty account: the default", { account = "", partition = "us" }, "no account being named")
refused("the user's default account", { default_account = "clinic", partition = "us" }, "account clinic")
expect("an account with an empty list", submit({ account = "free", partition = "us" }))
refused("user", { account = "free", user_name = "alice", partition = "us" }, "city(Berlin)", "user alice")
expect("user, inside", submit({ account = "free", user_name = "alice", partition = "eu" }))
refused("qos", { account = "free", qos = "long", partition = "us" }, "provider(good|better)", "qos long")
local job = { account = "clinic" }
expect("default partition", submit(job))
expect("is written down", job.partition == "eu")
refused("a reservation's partition", { account = "clinic", reservation = "r1" }, "partition us")
expect("a reservation with a partition named", submit({ account = "clinic", reservation = "r1", partition = "eu" }))

-- features
expect("feature that stays inside", submit({ account = "clinic", partition = "mixed", features = "nvlink&fin" }))
refused("feature outside", { account = "clinic", partition = "mixed", features = "usa" }, "country = US")
refused("no feature", { account = "clinic", partition = "mixed" }, "feature usa")
refused("either feature", { account = "clinic", partition = "mixed", features = "fin|usa" }, "feature usa")
refused("counted features", { account = "clinic", partition = "mixed", features = "[fin*1&usa*1]" }, "feature usa")
refused("nodes without a feature", { account = "clinic", partition = "both" }, "partition both")
expect("pins of a partition", submit({ account = "free", partition = "mixed", features = "fin" }))
refused("pins of a partition, outside", { account = "free", partition = "mixed", features = "usa" }, "partition mixed")

-- certificates, seal, evidence
expect("certificate", submit({ account = "certified", partition = "eu" }))
refused("certificate outside", { account = "certified", partition = "us" }, "cert(C5>=2)", "certifications")
expect("seal", submit({ account = "sealed", partition = "eu" }))
refused("seal outside", { account = "sealed", partition = "us" }, "seal_level")
expect("evidence of the fields used", submit({ account = "proven", partition = "eu" }))
refused("evidence of the union's fields", { account = "proven", partition = "eu", user_name = "alice" }, "evidence(verified)", "city")

-- the job's own pins
local function own(pins) return { account = "free", partition = "eu", spank_job_env = { [0] = "A=b", "SHARDFIT_PINS=" .. pins } } end
job = own("residency(FI)&sovereign")
expect("own pins", submit(job))
expect("are recorded", job.admin_comment == "shardfit1;pins=residency(FI)&sovereign;plan=")
refused("own pin fails", own("residency(DE)"), "residency(DE)", "the job itself")
refused("expired certificate", own("cert(OLD)"), "cert(OLD)")
refused("certificate level", own("cert(C5>=3)"), "cert(C5>=3)")
for _, odd in ipairs({ "x", "residency(", "residency()", "evidence(strong)", "cert()", "seal>=", "seal>=x", "%b()", "residency(EU) or true" }) do refused("odd pin " .. odd, own(odd), "refused") end
expect("the alias", not submit({ account = "free", partition = "us", spank_job_env = { [0] = "_SLURM_SPANK_OPTION_shardfit_hw_pin=eu-sovereign" } }))
job = { account = "free", partition = "us", environment = { SHARDFIT_PLAN_SHA256 = "ab12" } }
expect("plan by the environment", submit(job) and job.admin_comment == "shardfit1;pins=;plan=ab12")
job = { account = "free", partition = "us", environment = { SHARDFIT_PLAN_SHA256 = "ab12", SLURM_JOB_ID = "5" } }
expect("not of an enclosing job", submit(job) and job.admin_comment == nil)
job = { account = "free", partition = "us", spank_job_env = { [0] = "SHARDFIT_PLAN_SHA256=ab;pins=x" } }
expect("a forged plan", submit(job) and job.admin_comment == nil)
job = { account = "clinic", partition = "eu", admin_comment = "other tool|x=1" }
expect("other tools' comment stays", submit(job) and job.admin_comment:find("^other tool|x=1 shardfit1;pins=residency%(EU|EEA|CH%)&sovereign;plan=$"))

-- modify
local record = { account = "clinic", partition = "eu", admin_comment = "x shardfit1;pins=residency(EU|EEA|CH)&sovereign;plan=ab" }
expect("modify: partition", not modify({ partition = "us" }, record))
expect("modify: account, then partition", not modify({ partition = "us" }, { account = "free", partition = "eu", admin_comment = record.admin_comment }))
expect("modify: account of a job outside", not modify({ account = "clinic" }, { account = "free", partition = "us" }))
expect("modify: features", not modify({ features = "usa" }, { account = "free", partition = "mixed", features = "fin" }))
expect("modify: qos", not modify({ qos = "long" }, { account = "free", partition = "us" }))
expect("modify: inside", modify({ account = "free" }, record))
expect("modify: something else, tables not even read", modify({ time_limit = 5 }, { account = "clinic", partition = "us" }))
job = { admin_comment = "new" }
expect("modify: an administrator's comment", modify(job, record) and job.admin_comment == "new shardfit1;pins=residency(EU|EEA|CH)&sovereign;plan=ab")

-- tables come and go
publish("return { version = 1, default = {}, accounts = {}, users = {}, qos = {}, partition_pins = {}, partitions = {}, facts = {} }", "0b")
expect("new tables at once", submit({ account = "clinic", partition = "us" }))
publish("return {", "0c")
expect("broken tables", not submit({ account = "free", partition = "us" }) and said:find("could not be checked", 1, true))
publish("error({})", "0d")
expect("failing tables", not submit({ account = "free", partition = "us" }))
publish("return { version = 2 }", "0e")
expect("another version", not submit({ account = "free", partition = "us" }))
os.remove(path)
expect("absent tables", not submit({ account = "free", partition = "us" }) and said:find("policy publish", 1, true))
print(string.format("%s: %d checks, %d failed", _VERSION, count, failed))
os.exit(failed == 0 and 0 or 1)
