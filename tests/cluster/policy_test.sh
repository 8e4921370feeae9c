#!/bin/bash
# policy_test.sh BUILD - job_submit keeps jobs inside the pins of policy and job, on submit and on modify, whatever the client does.
. "$(dirname "$0")/lib.sh"
job="--wrap true -o /dev/null"
sed -e '/^PlugStackConfig/d' -e '/^CliFilterPlugins/d' "$SLURM_CONF" > "$D/own.conf"  # a user's own configuration: no plugin of ours
bare="env SLURM_CONF=$D/own.conf"
chmod 644 "$D/own.conf"
refused() {  # NAME PATTERN...: the last run was refused with these words and left no job
  local name=$1; shift
  if [ $rc = 0 ]; then fail "$name: it was submitted: $out"; return; fi
  says "$name" "$out" "$@"
}

# --- submit
run $as_user $bare sbatch -A clinic -p us-h100 $job
refused "clinic outside" 'partition us-h100' 'pin residency\(EU\|EEA\|CH\)' 'account clinic' 'field country = US'
run $as_user $bare sbatch -A clinic -p rtx4090 $job
refused "clinic at an unknown operator" 'partition rtx4090' 'pin sovereign' 'field operator_country = unknown'
run $as_user $bare sbatch -A clinic -p h100,us-h100 $job
refused "clinic, a list of partitions" 'partition us-h100' 'pin residency'
run $as_user $bare srun -A clinic -p cpu-virginia true
refused "clinic by srun" 'partition cpu-virginia' 'field country = US'
run $as_user $bare salloc -A clinic -p cpu-virginia true
refused "clinic by salloc" 'partition cpu-virginia'
run $as_user $bare env SBATCH_PARTITION=us-h100 SBATCH_ACCOUNT=clinic sbatch $job
refused "clinic by the environment" 'partition us-h100'
run $as_user $bare sbatch -A clinic -p us-h100 --array=1-3 $job
refused "clinic, an array" 'partition us-h100'
run $as_user $bare sbatch -A clinic -p us-h100 --test-only $job
refused "clinic, a dry run" 'partition us-h100'
run $as_user $bare sbatch -A clinic -p cpu-berlin $job : -A clinic -p us-h100 $job
refused "clinic, second component" 'partition us-h100'
equal "no job came of it" "$(jobs_known)" 0
run $as_user $bare sbatch -A clinic -p cpu-virginia --reservation=none $job
refused "clinic with a reservation" 'partition cpu-virginia'
# Slurm hands its reservations to Lua anew only when they changed in a later second than its last look. (A job that names one not seen yet is
# bound to the default partition, which is checked and written down: it cannot run elsewhere.)
sleep 1.2
check "a reservation" timeout 10 scontrol create reservation=away starttime=now duration=60 users=nobody nodes=us-1 partition=us-h100
run $as_user $bare sbatch -A clinic --reservation=away $job
refused "clinic by a reservation's partition" 'partition us-h100' 'field country = US'

run $as_user $bare sbatch -A clinic -p h100,a100 --hold $job
equal "clinic inside" $rc 0
held=$(id_of "$out")
says "the pins are recorded" "$(job_field "$held" AdminComment)" '^shardfit1;pins=residency\(EU\|EEA\|CH\)&sovereign;plan=$'
run $as_user $bare sbatch -A clinic --hold $job
equal "clinic in the default partition" $rc 0
equal "which is written down" "$(job_field "$(id_of "$out")" Partition)" cpu-berlin
run $as_user $bare sbatch -A other -p us-h100 --hold $job
equal "an account without pins" $rc 0
free=$(id_of "$out")

# --- modify: 22.05 does not show the text to the user; it is in slurmctld's log
modify() { run $as_user scontrol update jobid="$1" "$2"; logged=$(grep 'shardfit: refused' "$D/log/slurmctld.log" | tail -1); }
modify "$held" partition=us-h100
refused "moving to another partition" 'denied'
says "its text" "$logged" 'partition us-h100' 'pin residency' 'field country = US'
modify "$held" partition=a100,us-h100
refused "moving to a list" 'denied'
modify "$held" reservation=away
equal "a reservation elsewhere changes no partition" "$(job_field "$held" Partition)" h100,a100
modify "$held" account=other
equal "another account" $rc 0
modify "$held" partition=us-h100
refused "then to another partition: what bound the job still does" 'denied'
says "its text" "$logged" 'partition us-h100' 'the job since it was submitted'
modify "$held" partition=a100
equal "inside the pins it may move" $rc 0
says "the record stays" "$(job_field "$held" AdminComment)" 'pins=residency\(EU\|EEA\|CH\)&sovereign'
modify "$held" admincomment=none
refused "users do not write admin_comment" 'denied'
modify "$free" account=clinic
refused "taking a bound account where the job stands outside" 'denied'
says "its text" "$logged" 'partition us-h100' 'account clinic'
run timeout 10 scontrol update jobid="$held" partition=us-h100
refused "root is held to the policy as well" 'denied'
check "an administrator's comment" timeout 10 scontrol update jobid="$held" admincomment=checked
says "keeps the record" "$(timeout 10 scontrol -o show job "$held")" 'AdminComment=checked shardfit1;pins=residency'
modify "$held" timelimit=3
equal "unrelated changes are not looked at" $rc 0

# --- an unknown account falls under policy.default
sed -i 's/"default": {"pins": \[\]}/"default": {"pins": ["eu-sovereign"]}/' "$SHARDFIT_CONF"
run timeout 20 "$BUILD/bin/shardfit" policy check
equal "check sees stale tables" $rc 1
says "and says so" "$out" 'stale'
check "publish" timeout 20 "$BUILD/bin/shardfit" policy publish
run $as_user $bare sbatch -A nobody-knows-it -p us-h100 $job
refused "an unknown account, at once after publishing" 'partition us-h100' 'pin residency' 'policy default, account nobody-knows-it having no entry' 'field country = US'
run $as_user $bare sbatch -p us-h100 $job
refused "no account" 'partition us-h100' 'policy default, no account being named'
run $as_user $bare sbatch -A lab -p us-h100 $job
refused "an account with its own entry" 'residency\(EU\|CH\)' 'account lab'
run $as_user $bare sbatch -A lab -p zrh-a100 --hold $job
equal "which replaces the default" $rc 0

# --- the job's own pins only add
run $as_user sbatch -A lab --hw-pin='residency(DE)' --hw=off -p a100 $job
refused "own pin" 'pin residency\(DE\)' 'the job itself' 'partition a100' 'field country = FI'
run $as_user sbatch -A lab --hw-pin='evidence(site)' --hw=off -p a100 $job
refused "evidence of the policy's pins" 'pin evidence\(site\)' 'weaker evidence'
run $as_user sbatch -A lab --hw-pin='residency(US)' --hw=off -p us-h100 $job
refused "own pin does not loosen" 'residency\(EU\|CH\)'
run $as_user sbatch -A lab --hw-pin='nonsense(x)' --hw=off -p a100 $job
refused "a pin that is not understood" 'nonsense\(x\)' 'not understood'

# --- broken or absent tables refuse
cp "$D/state/policy.lua" "$D/state/saved.lua"
echo 'return {' > "$D/state/policy.lua"
run $as_user $bare sbatch -A lab -p cpu-berlin $job
refused "broken tables" 'could not be checked' 'policy publish'
printf -- '-- shardfit policy 1 abc\nerror("x")\n' > "$D/state/policy.lua"
run $as_user $bare sbatch -A lab -p cpu-berlin $job
refused "tables that fail" 'could not be checked'
rm "$D/state/policy.lua"
run $as_user $bare sbatch -A lab -p cpu-berlin $job
refused "absent tables" 'could not be checked' 'policy publish'
mv "$D/state/saved.lua" "$D/state/policy.lua"
run $as_user $bare sbatch -A lab -p cpu-berlin --hold $job
equal "tables are back" $rc 0
summary
