#!/bin/bash
# plugin_test.sh BUILD - the shared object alone, against a stand-in for the program `shardfit`: what it exports, how it fails, what reaches
# the job, and that nothing else is touched.
. "$(dirname "$0")/lib.sh"
so=$BUILD/lib/slurm/spank_shardfit.so

# --- the file
exports=$(nm -D --defined-only "$so" | awk '{print $3}')
equal "exported names" "$(grep -vE '^(plugin_(name|type|version)|slurm_spank_[a-z_]+|spank_options|cli_filter_p_[a-z_]+)$' <<< "$exports")" ""
says "hooks are exported" "$exports" '^slurm_spank_init$' '^slurm_spank_init_post_opt$' '^cli_filter_p_pre_submit$' '^plugin_version$'
equal "hooks that slurmd and slurmstepd would call" "$(grep -E 'slurm_spank_(job_prolog|job_epilog|user_init|task_|slurmd_exit|exit)' <<< "$exports")" ""
needs=$(ldd "$so")
equal "libraries" "$(grep -E 'torch|curl|sqlite|stdc\+\+|gcc_s|slurm' <<< "$needs")" ""
undefined=$(nm -D --undefined-only "$so" | awk '{print $2}' | grep -E 'slurm|spank' | tr '\n' ' ')
says "Slurm's functions come from the loading program" "$undefined" 'slurm_option_set' 'spank_option_register'

# --- a stand-in whose answer is a file
fake=$D/jobs/shardfit
cat > "$fake" <<'F'
#!/bin/bash
here=$(dirname "$0")
printf '%s\n' "$*" >> "$here/asked"
case $(cat "$here/mode") in
  hang) trap '' TERM; sleep 60 ;;
  crash) kill -SEGV $$ ;;
  fails) exit 7 ;;
  input) echo 'shardfit: job.json: /model: no such folder "x"; name a folder with config.json' >&2; exit 2 ;;
  cut) printf 'shardfit-decide 1\nset partition us-h100\n'; exit 0 ;;
  old) echo 'shardfit-decide 0'; exit 0 ;;
  odd) printf 'shardfit-decide 1\nset wrap evil\nend 0\n'; exit 0 ;;
  long) head -c 3000000 /dev/zero | tr '\0' 'x'; exit 0 ;;
  *) cat "$here/answer" ;;
esac
F
chmod 755 "$fake"; : > asked; chmod 666 asked; echo answer > mode
cat > answer <<'A'
shardfit-decide 1
say The choice is cpu-zurich.
set partition cpu-zurich
set nodes 2
set ntasks-per-node 1
set cpus-per-task 2
set mem 500M
default time 00:17:00
default comment chosen
env SHARDFIT_PLAN /plans/p 1/plan.json
env SHARDFIT_JOB /plans/job.json
env SHARDFIT_DEEPSPEED_CONFIG /plans/deepspeed.json
env SHARDFIT_FSDP_CONFIG /plans/accelerate_fsdp.yaml
env SHARDFIT_TORCHTITAN_ARGS /plans/torchtitan.args
env SHARDFIT_PLAN_SHA256 0123abcd
control SHARDFIT_PINS residency(EU|CH)
end 0
A
plugstack() { echo "$1 $so shardfit=$2 conf=$D/shardfit.conf" > "$D/plugstack.conf"; }
plugstack required "$fake"
# A spool directory that answers: the jobs' output
cat > job.sh <<'J'
#!/bin/bash
#SBATCH --partition=us-h100
#SBATCH --gpus=h100:2 --nodelist=us-1 --constraint=nvlink --mem-per-cpu=10G --ntasks=7
#SBATCH --hw-job=script.json
env | grep ^SHARDFIT_ | sort
echo "ran $SLURM_JOB_PARTITION $SLURM_JOB_NUM_NODES"
srun sh -c 'echo "rank $SLURM_PROCID of $SLURM_NTASKS cpus $SLURM_CPUS_PER_TASK"'
srun --hw=auto --hw-job=inner.json sh -c 'echo inner'
sbatch -p cpu-berlin --parsable -o /dev/null --wrap true
J
chmod 755 job.sh

run sbatch --hw=auto --hw-pin='residency(EU|CH);sovereign' --hw-deadline=12h --hw-max-cost=500EUR --hw-gpu=h100,a100 --hw-max-nodes=2 --parsable -o job.out job.sh
equal "auto submits" $rc 0
says "prints the decision and what it replaces" "$out" 'The choice is cpu-zurich' 'replaces --partition=us-h100 .*--gpus=h100:2'
id=$(id_of "$out")
equal "what shardfit is asked" "$(cat asked)" "slurm-decide --mode auto --command sbatch --job script.json --pin residency(EU|CH);sovereign --deadline 12h --max-cost 500EUR --gpu h100,a100 --max-nodes 2"
check "the job ends" wait_for 15 job_is "$id" COMPLETED
text=$(cat job.out)
says "variables reach the job" "$text" '^SHARDFIT_PLAN=/plans/p 1/plan.json$' '^SHARDFIT_JOB=/plans/job.json$' '^SHARDFIT_DEEPSPEED_CONFIG=/plans/deepspeed.json$' \
  '^SHARDFIT_FSDP_CONFIG=/plans/accelerate_fsdp.yaml$' '^SHARDFIT_TORCHTITAN_ARGS=/plans/torchtitan.args$' '^SHARDFIT_PLAN_SHA256=0123abcd$'
says "and its steps run as decided" "$text" '^ran cpu-zurich 2$' '^rank 0 of 2 cpus 2$' '^rank 1 of 2 cpus 2$' '^inner$'
equal "srun inside asks nothing" "$(grep -c . asked)" 1
equal "time limit of the decision" "$(job_field "$id" TimeLimit)" 00:17:00
equal "comment" "$(job_field "$id" Comment)" chosen
says "job_submit sees plan and pins" "$(job_field "$id" AdminComment)" '^shardfit1;pins=residency\(EU\|CH\)&sovereign;plan=0123abcd$'
nested=$(tail -1 job.out)
check "a job of the job ends" wait_for 15 job_is "$nested" COMPLETED
equal "and has no decision of its own" "$(job_field "$nested" AdminComment)" ""
says "the spool names the plan" "$(grep "\"job_id\":$id," "$D/spool/jobs.ndjson")" '"SHARDFIT_PLAN=/plans/p 1/plan.json"' '"SHARDFIT_PLAN_SHA256=0123abcd"'
equal "the spool's line of the inner job does not" "$(grep "\"job_id\":$nested," "$D/spool/jobs.ndjson" | grep -c SHARDFIT_)" 0

run sbatch --hw=auto -t 5 --comment=mine --export=NONE --parsable -o none.out job.sh
id=$(id_of "$out")
check "with --export=NONE it ends" wait_for 20 job_is "$id" COMPLETED
says "and has the variables" "$(cat none.out)" '^SHARDFIT_PLAN_SHA256=0123abcd$'
equal "the user's own time stays" "$(job_field "$id" TimeLimit)" 00:05:00
equal "the user's own comment stays" "$(job_field "$id" Comment)" mine
run env FOO=bar sbatch --hw=auto --export=FOO --hw-job=x --parsable -o list.out --wrap 'env | grep -E "^(FOO|SHARDFIT_JOB)="'
check "with --export=LIST it ends" wait_for 15 job_is "$(id_of "$out")" COMPLETED
says "and has both" "$(cat list.out)" '^FOO=bar$' '^SHARDFIT_JOB='
run srun --hw=auto --hw-job=x sh -c 'echo $SHARDFIT_PLAN_SHA256 $SLURM_JOB_PARTITION'
says "srun" "$out" '0123abcd cpu-zurich'
run salloc --hw=auto --hw-job=x srun sh -c 'echo $SHARDFIT_PLAN_SHA256 $SLURM_JOB_PARTITION'
says "salloc" "$out" '0123abcd cpu-zurich'

# --- where options come from
: > asked
run env SBATCH_HW=show SBATCH_HW_JOB=env.json SBATCH_HW_PIN=sovereign sbatch job.sh
equal "environment over script" "$(cat asked)" "slurm-decide --mode show --command sbatch --job env.json --pin sovereign"
: > asked
run env SBATCH_HW_JOB=env.json sbatch --hw=show --hw-job=line.json job.sh
equal "command line over environment" "$(cat asked)" "slurm-decide --mode show --command sbatch --job line.json"
: > asked
run env SBATCH_HW_JOB=env.json sbatch -p cpu-berlin -o /dev/null --wrap true
equal "without --hw nothing happens" "$rc $(cat asked)" "0 "
run env SBATCH_HW=auto sbatch --hw=off -p cpu-berlin -o /dev/null job.sh
equal "off wins over the environment" "$rc $(cat asked)" "0 "

# --- show submits nothing
before=$(jobs_known)
run sbatch --hw=show --hw-job=x --wrap true
equal "show" "$rc $out" "0 The choice is cpu-zurich."
printf 'shardfit-decide 1\nsay Nothing fits.\nend 3\n' > answer
run sbatch --hw=show --hw-job=x --wrap true
equal "show, nothing fits" "$rc $out" "3 Nothing fits."
run sbatch --hw=auto --hw-job=x --wrap true
equal "auto, nothing fits" "$rc $out" "3 Nothing fits."

# --- failures: one line, in time, nothing submitted
failing() {  # NAME STATUS PATTERN
  run sbatch --hw=auto --hw-job=x --wrap true
  equal "$1: exit status" $rc "$2"
  equal "$1: one line" "$(wc -l <<< "$out")" 1
  says "$1" "$out" "$3"
}
echo hang > mode
start=$(date +%s%N); failing "hanging shardfit" 1 'did not decide within 3 s; nothing was submitted'
took=$((($(date +%s%N) - start) / 1000000))
check "hanging shardfit: in time ($took ms)" test $took -lt 4500
equal "nothing of it is left" "$(pgrep -cf "$fake slurm-decide")" 0
sed -i 's/"decide_timeout_seconds": 3/"decide_timeout_seconds": 1/' "$SHARDFIT_CONF"
failing "hanging shardfit, other limit" 1 'did not decide within 1 s'
echo crash > mode; failing "crashing shardfit" 1 'crashed while deciding: Segmentation fault; nothing was submitted'
echo fails > mode; failing "failing shardfit" 1 'failed with exit status 7; nothing was submitted'
echo input > mode; failing "bad input" 2 'job.json: /model: no such folder "x"; name a folder'
echo cut > mode; failing "an answer without its end" 1 'has no end; nothing was submitted'
echo old > mode; failing "another version" 1 'not of the version this plugin reads'
echo odd > mode; failing "an option that is not the decision's" 1 'not understood: set wrap evil; nothing was submitted'
echo long > mode; failing "an endless answer" 1 'too long; nothing was submitted'
echo answer > mode
plugstack optional "$D/nothing/shardfit"; failing "missing shardfit, optional plugin" 1 'shardfit was not found .*nothing was submitted'
plugstack required "$D/jobs/job.json"; touch job.json; chmod 755 job.json; failing "not a program" 1 'could not be started'
plugstack required "$fake"
run sbatch --hw=auto --wrap true; says "no job file" "$out" 'needs --hw-job=FILE'
run sbatch --hw-gpu=h100 --wrap true; says "an option without --hw" "$out" '--hw-gpu needs --hw=auto or --hw=show'
run sbatch --hw=maybe --wrap true; says "an unknown mode" "$out" '--hw=maybe is not known: auto'
run sbatch --hw=auto --hw-job=x --wrap true : --wrap true; says "a heterogeneous job" "$out" 'heterogeneous'
sed '/^CliFilterPlugins/d' "$SLURM_CONF" > "$D/nofilter.conf"
run env SLURM_CONF="$D/nofilter.conf" sbatch --hw=auto --hw-job=x --wrap true
equal "without CliFilterPlugins: exit status" $rc 1
says "without CliFilterPlugins" "$out" 'needs CliFilterPlugins=shardfit'
equal "none of these was submitted" "$(jobs_known)" "$before"

# --- and plain sbatch lives on
echo crash > mode
run sbatch -p cpu-berlin -o /dev/null --wrap true; equal "plain sbatch, shardfit crashing" $rc 0
plugstack required "$D/nothing/shardfit"
run sbatch -p cpu-berlin -o /dev/null --wrap true; equal "plain sbatch, shardfit missing" $rc 0
check "and it runs" wait_for 15 job_is "$(id_of "$out")" COMPLETED
equal "nodes are well" "$(timeout 10 sinfo -h -N -o %T | sort -u | grep -vcE '^(idle|mixed|allocated|completing|planned)$')" 0
equal "slurmd has nothing to say of the plugin" "$(grep -ciE 'spank|shardfit' "$D"/log/slurmd.ber1.log)" 0
summary
