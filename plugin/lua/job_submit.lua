-- job_submit.lua for a site that has none of its own: JobSubmitPlugins=lua, this file (or a link to it) beside slurm.conf.
-- A site with its own calls shardfit_policy.lua from it, as that file's head shows.
local here = SHARDFIT_LUA or (debug.getinfo(1, "S").source:match("^@(.*)/[^/]*$") or "/usr/share/shardfit/lua")
local shardfit = dofile(here .. "/shardfit_policy.lua")

function slurm_job_submit(job, partitions, uid) return shardfit.submit(job, partitions, uid) end
function slurm_job_modify(job, record, partitions, uid) return shardfit.modify(job, record, partitions, uid) end

return slurm.SUCCESS
