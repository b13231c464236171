#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two nodes: network namespaces with an address of their own each, a cable between them, host names of their own, and an
# mpirun that starts its daemon on the second through an agent in the place of ssh. Four ranks over both give the bits of four
# ranks of one node; without the cable, and when a node dies, the job ends with a message and a non-zero code.
source "$(dirname "$0")/setup.bash"
unset FLEXION_BIN
here=$FX_SOURCE_DIR/tests/integration
net=10.77.$(($$ % 200 + 20))
a=fx-a-$$ b=fx-b-$$
cleanup() {
  for n in "$a" "$b"; do
    ip netns pids "$n" 2> /dev/null | xargs -r kill -9 2> /dev/null
    ip netns del "$n" 2> /dev/null
  done
}
trap cleanup EXIT
for n in "$a" "$b"; do ip netns add "$n" && ip -n "$n" link set lo up || { echo "no network namespace can be made"; exit 1; }; done
ip link add veth0 netns "$a" type veth peer name veth0 netns "$b" || { echo "no virtual cable can be made"; exit 1; }
ip -n "$a" addr add "$net.1/24" dev veth0 && ip -n "$a" link set veth0 up
ip -n "$b" addr add "$net.2/24" dev veth0 && ip -n "$b" link set veth0 up

# What mpirun calls as `agent HOST COMMAND...`.
cat > "$TMP/agent" <<P
#!/bin/bash
[ "\$1" = "$net.2" ] || { echo "agent: no such host \$1" >&2; exit 1; }
shift
exec ip netns exec $b unshare --uts bash -c 'hostname nodeb; eval "\$*"' agent "\$@"
P
chmod +x "$TMP/agent"
printf '%s slots=2\n' "$net.1" "$net.2" > "$TMP/hosts"
printf 'localhost slots=4\n' > "$TMP/host"
python3 "$here/corpus.py" "$TMP/corpus.txt" 400 5

job() { # job OUT HOSTS STEPS overrides...: four ranks
  local out=$1 hosts=$2 steps=$3
  shift 3
  ip netns exec "$a" unshare --uts bash -c 'hostname nodea; exec "$@"' node timeout -k 1 300 "$FX_SOURCE_DIR/launch/run.sh" -np 4 \
    --hostfile "$TMP/$hosts" --mca plm_rsh_agent "$TMP/agent" --mca btl tcp,self --mca btl_tcp_if_include "$net.0/24" \
    --mca oob_tcp_if_include "$net.0/24" -- train "$here/tiny.yaml" data.train="[lines:$TMP/corpus.txt]" runtime.threads=1 \
    runtime.device=cpu train.iters="$steps" train.eval_interval=0 checkpoint.dir="$TMP/$out" "$@" > "$TMP/$out.log" 2>&1
}
fails() { ! "$@"; }
export FLEXION_BIN=$FLEXION
check "four ranks of one node" job one host 20
check "four ranks of two nodes" job two hosts 20
grep -h "step 20/20" "$TMP/one.log" "$TMP/two.log" | cut -c1-120
check "the nodes are two" bash -c "ip netns exec $a '$TMP/agent' $net.2 hostname | grep -q nodeb"
check "the checkpoints are equal bit by bit" "$FLEXION" ckpt diff "$TMP/one/step_00000020" "$TMP/two/step_00000020"
cp -r "$TMP/two" "$TMP/resumed"
check "one node resumes what two saved" job resumed host 30
check "30 steps of one node" job whole host 30
check "as if there had been no change" "$FLEXION" ckpt diff "$TMP/whole/step_00000030" "$TMP/resumed/step_00000030"

# A node that dies takes the job down.
( job dies hosts 100000; echo $? > "$TMP/code" ) &
check "it trains" await "$TMP/dies.log" 'step 20/' $!
ip netns pids "$b" | xargs -r kill -9
began=$SECONDS
wait
check "the job ends with a code" bash -c "[ '$(cat "$TMP/code")' -ne 0 ]"
check "within 20 s" bash -c "[ $((SECONDS - began)) -le 20 ]"
check "with a message" bash -c "[ -s '$TMP/dies.log' ]"
ip -n "$a" link set veth0 down
check "without the cable no job runs" fails job cable hosts 5
check "and leaves nothing" bash -c "[ ! -e '$TMP/cable' ]"
finish
